"""Ranks that are forked are what ranks that torchrun starts are."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.elastic_sites import ENVIRONMENT

pytestmark = pytest.mark.timeout(600)
# It writes what it is to $FOLDER, and ends as its argument says.
PROGRAM = """
import atexit, json, multiprocessing, os, random, signal, sys, time

def facts():
    import numpy, torch
    words = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
    return {
        "argv": sys.argv,
        "name": __name__,
        "file": os.path.abspath(__file__),
        "path": sys.path[0],
        "command": words,
        "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "threads": torch.get_num_threads(),
        "rank": [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")],
        "asked": os.environ["ASKED"],
        "unbuffered": not hasattr(sys.stdout.buffer, "raw"),
        "children": multiprocessing.get_context("spawn").Pool(1).map(abs, [-1]),
        "descriptors": len(os.listdir("/proc/self/fd")) < 30,
        "main": sys.modules["__main__"].facts is facts,
        "drawn": [random.random(), numpy.random.rand()],
        "parent": open(f"/proc/{os.getppid()}/comm").read(),
        "ppid": os.getppid(),
    }

if __name__ == "__main__":
    place = os.path.join(os.environ["FOLDER"], os.environ["RANK"])
    with open(place + ".new", "w") as file:
        json.dump(facts(), file)
    os.rename(place + ".new", place)
    print("said", end="")
    if sys.argv[1] == "ends":  # with descriptors of its own, one of each number that was free
        own = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]
        atexit.register(lambda: [os.close(each) for each in own])
    if sys.argv[1] == "raises":  # once both are there, and one of them: torchrun ends the other
        while not all(os.path.exists(os.path.join(os.environ["FOLDER"], rank)) for rank in "01"):
            time.sleep(0.01)
        if os.environ["RANK"] == "1":
            time.sleep(200)
        raise ValueError("its own error")
    if sys.argv[1] == "waits":
        signal.signal(signal.SIGTERM, lambda *_: (print("asked to end", flush=True), sys.exit(0)))
        print("waits", flush=True)
        time.sleep(200)
"""


def launch(folder: Path, *arguments: str, asked: socket.socket | None = None) -> subprocess.Popen[str]:
    """torchrun of a site, with two ranks. asked: the other end of its socket; without one it runs once."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-u", "-m", "geocomm.elastic.torchrun_of_site", "--nproc-per-node", "2", *arguments]
    environment = ENVIRONMENT | {"FOLDER": str(folder), "OMP_NUM_THREADS": "1", "ASKED": "yes"}
    (scratch := folder / "tmp").mkdir()
    environment["TMPDIR"] = str(scratch)
    environment["PYTHONPATH"] += os.pathsep + str(folder.parent)
    own, given = socket.socketpair()
    with own, given:
        own.sendall(b"\n")
        return subprocess.Popen(
            command,
            stdin=given.fileno() if asked is None else asked.fileno(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
        )


def ranks(folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / str(rank)).read_text()) for rank in range(2)]


# test_supervisor.py forks a module.
@pytest.mark.parametrize("how", ["script", pytest.param("module", marks=pytest.mark.slow)])
def test_a_forked_rank_is_like_a_started_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "program_of_ranks.py"
    path.write_text(PROGRAM)
    program = [str(path)] if how == "script" else ["-m", path.stem]
    found: list[list[dict[str, Any]]] = []
    started = ["--no-python", sys.executable, "-u", *program]
    for name, arguments in (("forked", program), ("started", started)):
        process = launch(tmp_path / name, *arguments, "raises")
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 1, said
        assert "ValueError: its own error" in said
        assert "rank_forks" not in said
        found.append(ranks(tmp_path / name))
        scratch = [one.name for one in (tmp_path / name / "tmp").iterdir()]
        assert not [one for one in scratch if one.startswith(("torchelastic", "geocomm"))]
    drawn = [one.pop("drawn") for one in found[0]]
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]
    parents = [{(one.pop("ppid"), one.pop("parent")) for one in some} for some in found]
    assert len(parents[0]) == 1
    for one in found[1]:
        del one["drawn"]
    assert found[0] == found[1]


def test_sigterm_to_torchrun_reaches_forked_ranks_which_end_as_they_like(tmp_path: Path) -> None:
    path = tmp_path / "program_of_ranks.py"
    path.write_text(PROGRAM)
    process = launch(tmp_path / "ranks", str(path), "waits")
    assert process.stdout is not None
    said = ""
    while said.count("waits") < 2:
        line = process.stdout.readline()
        assert line, said
        said += line
    process.terminate()
    said, _ = process.communicate()
    assert said.count("asked to end") == 2, said
    assert process.returncode == 1


def test_descriptors_of_a_forked_rank_are_its_own_until_its_very_end(tmp_path: Path) -> None:
    path = tmp_path / "program_of_ranks.py"
    path.write_text(PROGRAM)
    process = launch(tmp_path / "ranks", str(path), "ends")
    said, _ = process.communicate(timeout=240)
    assert (process.returncode, said) == (0, "saidsaid")


def test_sigterm_between_torchruns_ends_what_forks_them_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "program_of_ranks.py"
    path.write_text(PROGRAM)
    own, asked = socket.socketpair()
    with own:
        with asked:
            process = launch(tmp_path / "ranks", str(path), "ends", asked=asked)
        own.sendall(b"\n")
        assert own.recv(10) == b"0\n"
        while process.poll() is None:  # one more while it ends, as from a supervisor that ends
            process.terminate()
        said, _ = process.communicate()
        assert (process.returncode, said) == (-signal.SIGTERM, "saidsaid")
