"""Sites that answer what nobody expects, or are busy with another's run. `ssh` is a program that runs `sh` here."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from geocomm.cli.ssh_sites import scripts
from geocomm.cli.ssh_sites.board import Board
from geocomm.cli.ssh_sites.code_folder import CodeFolder
from geocomm.cli.ssh_sites.launch import NotStartedError, Up, _Launch
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile
from geocomm.cli.ssh_sites.ssh import Order, Ssh, SshError
from geocomm.cli.ssh_sites.watch import Watch

_SSH = """#!/bin/sh
for word; do [ "$word" = -N ] && exit 0; done
while [ "$1" != -- ]; do shift; done
export HOME="$0-homes/$2"
cd "$HOME" && eval "exec $3"
"""
_PYTHON = "#!/bin/sh\nexec sleep 600\n"

_T = TypeVar("_T")


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SitesFile:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(_SSH)
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for name in "ab":
        folder = _home(tmp_path, name)
        (folder / f"geocomm-up/job/{name}/code").mkdir(parents=True)
        (folder / "python").write_text(_PYTHON)
        (folder / "python").chmod(0o755)
    text = "".join(f'[sites.{name}]\nssh = "{name}"\npython = "~/python"\n' for name in "ab")
    (tmp_path / "sites.toml").write_text(f'hub = "h:1"\n{text}')
    return SitesFile.read(tmp_path / "sites.toml")


def _home(folder: Path, name: str) -> Path:
    return folder / f"bin/ssh-homes/{name}"


def _runs(folder: Path, number: int) -> bool:
    name = "ab"[number]
    lock = _home(folder, name) / f"geocomm-up/job/{name}/node-{number}.lock"
    return subprocess.run(["flock", "-n", lock, "true"], check=False).returncode != 0


def _with_ssh(sites: SitesFile, work: Callable[[Ssh], Awaitable[_T]]) -> _T:
    async def whole() -> _T:
        async with Ssh(sites.ssh_config) as ssh:
            return await work(ssh)

    return asyncio.run(asyncio.wait_for(whole(), 120))


def test_start_that_finds_anothers_run_leaves_that_one_alone(sites: SitesFile, tmp_path: Path) -> None:
    nodes = sites.nodes
    a, b = nodes
    code = CodeFolder(tmp_path, ("train.py",), (), (), 0)

    async def work(ssh: Ssh) -> None:
        assert (await ssh.run(a, scripts.start(a, sites, ("x.py",), elastic=False))).status == 0
        board = Board(nodes)
        what = Up(sites, nodes, code, elastic=False, doctor=False, logs=False)
        try:
            with pytest.raises(NotStartedError, match="a: a run goes on there"):
                await _Launch(ssh, board, what, {})._start_all()
            while _runs(tmp_path, 1):  # it may end in its own time
                await asyncio.sleep(0.1)
            assert _runs(tmp_path, 0)
        finally:
            for node in (a, b):
                await ssh.run(node, scripts.stop(node))

    _with_ssh(sites, work)


def test_endless_answer_is_refused(sites: SitesFile) -> None:
    with pytest.raises(SshError, match="sends over 16 MiB"):
        _with_ssh(sites, lambda ssh: ssh.run(sites.nodes[0], Order("exec yes")))


@pytest.mark.parametrize("status", ["²", "256", "9" * 5000, "-1"])
def test_status_that_none_can_be_is_no_success(sites: SitesFile, tmp_path: Path, status: str) -> None:
    node: Node = sites.nodes[0]
    (_home(tmp_path, "a") / "geocomm-up/job/a/node-0.status").write_text(status)
    (_home(tmp_path, "a") / "geocomm-up/job/a/node-0.log").write_text("step 1\n")
    ended = _with_ssh(sites, lambda ssh: Watch(ssh, Board([node]), [node], elastic=True, logs=False).run(None))
    assert ended == 1
