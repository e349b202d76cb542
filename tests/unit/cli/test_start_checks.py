"""What keeps sites from a start, and the keys that are made for them."""

from __future__ import annotations

import hashlib
import json
import re
import time
from pathlib import Path

import pytest

from geocomm._version import __version__
from geocomm.cli.ssh_sites.checks import (
    Facts,
    against_each_other,
    against_start,
    bad_findings,
    hub_node,
    make_keys,
    read_facts,
)
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile
from geocomm.cli.ssh_sites.ssh import Done
from geocomm.security.job_ca import CA_KEY_FILE, JobCa
from geocomm.security.key_folder import KeysError

GOOD = Facts(
    now=time.time(),
    python="3.12.1",
    problem="",
    hub_here=False,
    geocomm=__version__,
    torch="2.13.0",
    free_bytes=1 << 40,
    writable=True,
    rsync=True,
    lacks=[],
    running=False,
)


@pytest.fixture
def sites(tmp_path: Path) -> SitesFile:
    path = tmp_path / "sites.toml"
    path.write_text('hub = "h:1"\n[sites.a]\nssh = "a"\n[sites.b]\nssh = "b"\n')
    return SitesFile.read(path)


def against(sites: SitesFile, **other: object) -> list[str]:
    return against_start(sites.nodes[1], GOOD.model_copy(update=other), make_keys(sites)["b"], 1 << 20)


def test_good_machine_may_start(sites: SitesFile) -> None:
    assert against(sites) == []
    own = hashlib.sha256((make_keys(sites)["b"] / "ca.pem").read_bytes()).hexdigest()
    assert against(sites, ca=own) == []


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"running": True}, "geocomm up --attach shows it, geocomm down ends it"),
        ({"ca": "0" * 64}, "are of another certificate authority than those in"),
        ({"problem": "No module named 'geocomm'"}, "lacks geocomm or torch (No module named 'geocomm')"),
        ({"geocomm": "0.0.1"}, f"has geocomm 0.0.1, this machine {__version__}. Install the same"),
        ({"lacks": ["flock"]}, "it lacks flock"),
        ({"writable": False}, 'may not be written. Name another folder in sites.toml: folder = "/'),
        ({"free_bytes": 3 << 20}, "its disk is full: 3 MiB are free"),
        ({"now": time.time() - 2 * 3600, "skew_s": -7200.0}, "its clock is -7200 s off this machine's"),
        ({"now": time.time() + 400 * 86400}, "its certificate expired on"),
    ],
)
def test_what_keeps_a_machine_from_a_start_is_told_with_the_fix(
    sites: SitesFile, other: dict[str, object], told: str
) -> None:
    (one,) = against(sites, **other)
    assert told in one
    assert not re.search(r" = *($|[;.,])", one)  # what to write there is said


def test_different_torch_is_told_with_its_sites(sites: SitesFile) -> None:
    a, b = sites.nodes
    assert against_each_other({a: GOOD, b: GOOD.model_copy(update={"torch": "2.13.5"})}) == []
    (told,) = against_each_other({a: GOOD, b: GOOD.model_copy(update={"torch": "2.12.0"})})
    assert "2.13 at a, 2.12 at b" in told


def test_hub_is_at_the_one_machine_that_has_its_address(sites: SitesFile, tmp_path: Path) -> None:
    a, b = sites.nodes
    here = GOOD.model_copy(update={"hub_here": True})
    assert hub_node(sites, {a: GOOD, b: here}) is b
    assert "no machine of sites.toml has the address h:1" in str(hub_node(sites, {a: GOOD, b: GOOD}))
    assert "a and b both have the address h:1" in str(hub_node(sites, {a: here, b: here}))
    path = tmp_path / "sites.toml"
    path.write_text(path.read_text() + 'listen = "0.0.0.0:29400"\n')
    translated = SitesFile.read(path)
    facts: dict[Node, Facts] = dict.fromkeys(translated.nodes, here)
    assert hub_node(translated, facts) is [*facts][1]


def test_answer_that_is_no_facts_tells_what_python_said(sites: SitesFile) -> None:
    told = read_facts(sites.nodes[0], Done(127, "", "sh: 1: exec: none: not found\n"), 0, 1)
    assert isinstance(told, str)
    assert "none: not found" in told
    assert 'in sites.toml: python = "~/' in told
    for nonsense in ("[" * 100_000, '{"now": NaN}', GOOD.model_copy(update={"now": 1e300}).model_dump_json()):
        assert isinstance(read_facts(sites.nodes[0], Done(0, nonsense, ""), 0, 1), str)
    greeting = "Welcome!\n" + GOOD.model_dump_json()  # of a login script that prints
    found = read_facts(sites.nodes[0], Done(0, greeting, ""), GOOD.now - 3, GOOD.now - 1)
    assert isinstance(found, Facts)
    assert found.skew_s == pytest.approx(2, abs=0.01)


def test_doctor_counts_what_is_bad_and_tells_why_it_could_not_look() -> None:
    findings = [
        {"name": "keys", "value": "expired", "state": "bad", "fix": "renew"},
        {"name": "x", "value": "y", "state": "warning", "fix": "z"},
    ]
    assert bad_findings(Done(1, "Welcome!\n" + json.dumps(findings, indent=1), "")) == ["keys: expired. renew"]
    assert bad_findings(Done(2, "", "geocomm doctor: GEOCOMM_PORT: bad\n")) == [
        "geocomm doctor says: geocomm doctor: GEOCOMM_PORT: bad"
    ]
    for nonsense in ("[\n1]", '[\n{"state": "bad"}]', "[\n" * 100_000):
        assert bad_findings(Done(3, nonsense, "")) == ["geocomm doctor says: nothing, and ended with status 3"]


def test_keys_are_made_kept_and_added(sites: SitesFile) -> None:
    made = make_keys(sites)
    before = made["a"].joinpath("key.pem").read_bytes()
    assert make_keys(sites)["a"].joinpath("key.pem").read_bytes() == before
    more = sites.model_copy(update={"sites": {**sites.sites, "c": sites.sites["a"]}})
    assert set(make_keys(more)) == {"a", "b", "c"}
    assert made["a"].joinpath("key.pem").read_bytes() == before
    (sites.keys / CA_KEY_FILE).unlink()
    assert set(make_keys(more)) == {"a", "b", "c"}  # the CA may lie elsewhere
    unknown = sites.model_copy(update={"sites": {**sites.sites, "d": sites.sites["a"]}})
    with pytest.raises(KeysError, match=r"has no keys of d, and no ca-key\.pem"):
        make_keys(unknown)


def test_keys_of_another_site_are_refused(sites: SitesFile, tmp_path: Path) -> None:
    JobCa.create(tmp_path / "geocomm-keys", "job", ["b"], 2)
    (tmp_path / "geocomm-keys/b").rename(tmp_path / "geocomm-keys/a")
    with pytest.raises(KeysError, match="has the keys of site b"):
        make_keys(sites)
