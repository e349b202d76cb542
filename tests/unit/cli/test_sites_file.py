"""What sites.toml may say, and what it is told where it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.cli.ssh_sites.sites_file import SitesFile
from geocomm.core.bad_input import BadInput

GOOD = """
hub = "192.0.2.10:29400"
environment = {GEOCOMM_PORT = 29600, RATE = 0.5}
[sites.frankfurt]
ssh = "ubuntu@192.0.2.10"
python = "~/venv/bin/python"
[sites.virginia]
ssh = ["n1", "n2"]
folder = "~/runs/x"
"""


def read(folder: Path, text: str) -> SitesFile:
    path = folder / "sites.toml"
    path.write_text(text)
    return SitesFile.read(path)


def test_good_file_has_nodes_in_order_with_their_folders(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert [(node.number, node.ssh, node.rank_in_site, node.folder) for node in found.nodes] == [
        (0, "ubuntu@192.0.2.10", 0, "geocomm-up/job/frankfurt"),
        (1, "n1", 0, "runs/x"),
        (2, "n2", 1, "runs/x"),
    ]
    assert [str(node) for node in found.nodes] == ["frankfurt", "virginia (n1)", "virginia (n2)"]
    assert found.environment == {"GEOCOMM_PORT": "29600", "RATE": "0.5"}
    assert found.keys == tmp_path / "geocomm-keys"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('python = "~', 'pyton = "~', "sites.frankfurt: unknown key 'pyton'; did you mean 'python'?"),
        ("hub =", "hubb =", "unknown key 'hubb'; did you mean 'hub'?"),
        ('hub = "192.0.2.10:29400"', "", "hub is missing"),
        ("192.0.2.10:29400", "192.0.2.10", "'192.0.2.10' is not an address of the kind host:port"),
        ("192.0.2.10:29400", "127.0.0.1:29400", "127.0.0.1 leads each site to itself"),
        ("192.0.2.10:29400", "0.0.0.0:29400", "name the one that the other sites dial"),
        ("sites.virginia", "sites.frankfurt", "twice"),
        ("sites.virginia", "sites.'são paulo'", "use 'sao-paulo'"),
        ('"n1", "n2"', '"n1", "n1"', "ssh: n1 stands twice, for virginia and for virginia"),
        ('"n1", "n2"', '"ubuntu@192.0.2.10"', "stands twice, for frankfurt and for virginia"),
        ('"n1", "n2"', "", "sites.virginia.ssh"),
        ('"n1", "n2"', '"-oProxyCommand=x"', "is not what ssh takes"),
        ('"n1", "n2"', '"x@-oProxyCommand=x"', "is not what ssh takes"),
        ('"n1", "n2"', r'"n\u0000"', "is not what ssh takes"),
        ("~/runs/x", r"x\u0000", "is not a path"),
        ("~/runs/x", "-x", "is not a path"),
        ("~/runs/x", "~", "is not a path"),
        ('"n1", "n2"', '"ssh://n1:22"', "belongs into ssh's configuration"),
        ("folder =", "ranks = 0\nfolder =", "sites.virginia.ranks"),
        ("folder =", 'environment = {"A B" = 1}\nfolder =', "sites.virginia.environment"),
        ("folder =", 'listen = "x"\nfolder =', "'x' is not an address of the kind host:port"),
        ("[sites.f", 'backend = "geocom"\n[sites.f', "backend: 'geocom' is not one of script, geocomm; did you mean"),
        ("[sites.f", 'backend = "geocomm"\nbackend_name = "ncl"\n[sites.f', "backend_name: 'ncl' is not one of script"),
        ("[sites.f", 'backend_name = "nccl"\n[sites.f', 'backend_name is for backend = "geocomm"'),
        ('hub = "', "hub = ", "line 2"),
    ],
)
def test_fault_is_named_with_its_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(BadInput) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert told in str(caught.value)
    assert "sites.toml" in str(caught.value)


def test_missing_file_says_what_one_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\[sites.NAME\]"):
        SitesFile.read(tmp_path / "sites.toml")


def test_file_without_sites_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there are no sites"):
        read(tmp_path, 'hub = "a:1"\n')
