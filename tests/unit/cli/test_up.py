"""`geocomm up`: what it refuses before it connects, and what it prints in place of doing it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from geocomm.cli.ssh_sites import launch
from geocomm.security.job_ca import JobCa
from support.command_tree import APP

SITES = 'hub = "192.0.2.10:29400"\n[sites.a]\nssh = "a"\n[sites.b]\nssh = ["n1", "n2"]\n'


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "sites.toml").write_text(SITES)
    (folder / "train.py").write_text("")
    monkeypatch.chdir(folder)
    return folder


def geocomm(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(APP, [*arguments])
    return result.exit_code, " ".join((result.output + result.stderr).split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("up", "other.toml", "--", "train.py"), "other.toml: No such file"),
        (("up",), "no script in ''"),
        (("up", "--", "--nproc-per-node", "8", "--lr", "x"), "no script in '--nproc-per-node 8 --lr x'"),
        (("up", "--", "trian.py"), "trian.py: there is no such file in"),
        (("up", "--", "--nproc-per-node", "8", "trian.py", "sites.toml"), "did you mean 'train.py'?"),
        (("up", "--attach", "--", "train.py"), "--attach takes no script"),
        (("up", "--only", "a", "--", "train.py"), "--only is for --elastic and --attach"),
        (("up", "--elastic", "--only", "aa", "--", "train.py"), "there is no site 'aa'; did you mean 'a'?"),
        (("up", "--elastic", "--", "train.py"), "sites.b: several nodes need site_hub"),
        (("down", "--only", "c"), "there is no site 'c'"),
    ],
)
def test_wrong_input_is_refused_with_what_to_do(arguments: tuple[str, ...], told: str) -> None:
    status, text = geocomm(*arguments)
    assert status == 2
    assert told in text


def test_each_reason_has_a_line_of_its_own_without_what_a_terminal_obeys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(what: launch.Up) -> int:
        raise launch.NotStartedError("a: it lacks tar\nb: it says \x1b[2J")

    monkeypatch.setattr(launch, "up", refuse)
    result = CliRunner().invoke(APP, ["up", "--", "train.py"])
    assert (result.exit_code, result.stderr) == (2, "geocomm up: a: it lacks tar\nb: it says ?[2J\n")


def test_print_shows_what_each_node_gets_and_changes_nothing(work: Path) -> None:
    status, text = geocomm("up", "sites.toml", "--print", "--", "--max-restarts", "2", "train.py", "it's")
    assert status == 0
    assert "geocomm keys create a b" in text
    assert text.count("| ssh -- a 'sh -c") == 2
    assert "--nnodes 3 --node-rank 2 --max-restarts 2 train.py 'it'\"'\"'s'" in text
    assert {path.name for path in work.iterdir()} == {"sites.toml", "train.py"}


def test_backend_of_the_file_is_an_option_of_each_node_and_not_for_elastic_runs(work: Path) -> None:
    path = work / "sites.toml"
    path.write_text('backend = "geocomm"\nbackend_name = "nccl"\n' + path.read_text())
    status, text = geocomm("up", "--print", "--", "train.py")
    assert status == 0
    assert text.count("geocomm run --hub 192.0.2.10:29400 --backend geocomm --backend-name nccl") == 3
    status, text = geocomm("up", "--elastic", "--print", "--", "train.py")
    assert status == 2
    assert "backend and backend_name are for runs without --elastic" in text


def test_print_has_no_key_and_no_other_sites_folder(work: Path) -> None:
    JobCa.create(work / "geocomm-keys", "job", ["a", "b"], 2)
    status, text = geocomm("up", "--print", "--", "train.py")
    assert status == 0
    assert "PRIVATE KEY" not in text
    of_a = text.partition("# b (n1)")[0]
    assert "geocomm-keys/a" in of_a
    assert "geocomm-keys/b" not in of_a


def test_print_of_an_elastic_run_has_its_options_at_each_node(work: Path) -> None:
    path = work / "sites.toml"
    path.write_text(path.read_text() + 'site_hub = "10.0.0.1:29500"\nlisten = "0.0.0.0:29400"\n')
    status, text = geocomm("up", "--elastic", "--print", "--", "train.py")
    assert status == 0
    assert "--hub 192.0.2.10:29400 --elastic --run-dir ../run --wait-for a,b -- train.py" in text
    first, second = text.partition("# b (n1)")[2].split("# b (n2)")
    nodes = "--site-nodes 2 --node-rank {} --site-hub 10.0.0.1:29500"
    assert "--listen 0.0.0.0:29400 --lead --elastic --run-dir ../run --wait-for a,b " + nodes.format(0) in first
    assert "--elastic --run-dir ../run-1 " + nodes.format(1) in second
