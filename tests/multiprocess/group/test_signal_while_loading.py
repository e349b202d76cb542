"""SIGTERM and Ctrl+C before a command has begun its work: one line, and status 128 + the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from geocomm.core.addresses import listeners
from support.hub_support import HUB_HOST, make_keys
from support.local_jobs import free_port
from support.train_ranks import SMALL_RUN
from support.wan_support import IMPORTS, wait_until

pytestmark = pytest.mark.timeout(280)
LIMIT_S = 100
FORKS = """
import os, signal, sys, time
from geocomm.core.ended_by_signal import end_in_a_line

end_in_a_line("run")
child = os.fork()
if child == 0:
    time.sleep(100)
os.kill(child, signal.SIGTERM)  # as one ends its workers
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(100)
"""

LATE = """
import os, signal, sys, time
from geocomm.core.ended_by_signal import end_in_a_line

end_in_a_line("run")
sys.setswitchinterval(100)  # the thread that listens comes to nothing before the main thread waits
os.kill(os.getpid(), signal.SIGTERM)
signal.signal(signal.SIGTERM, lambda *_: None)
time.sleep(1)
"""


def start(*command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": IMPORTS, "OMP_NUM_THREADS": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def training(folder: Path, *fields: str) -> Sequence[str]:
    chosen = [*SMALL_RUN, f"output_dir={folder / 'run'}", *fields]
    return ("-m", "geocomm", "train", *(word for field in chosen for word in ("--set", field)))


def place_of_two(port: int) -> dict[str, str]:
    """Of the first rank of two."""
    return {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def last_line(said: str) -> str:
    """The last line of what was said, which ends in no traceback."""
    assert "Traceback" not in said, said
    return said.splitlines()[-1]


def listens(port: int) -> bool:
    """Whether a process of this machine listens there."""
    return any(listener.port == port for listener in listeners())


def loads_torch(pid: int) -> bool:
    """Whether that process, or one that it has started, has begun to import torch."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return "/libc10.so" in Path(f"/proc/{pid}/maps").read_text() or any(map(loads_torch, map(int, children)))
    except OSError:  # it has ended
        return False


def ended(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What a command has said that was ended by the signal; to its whole session, as a terminal and systemd do."""
    os.killpg(process.pid, number)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + number, said
    return said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_train_that_imports_torch_ends_in_a_line(tmp_path: Path, number: signal.Signals) -> None:
    # On a busy machine it may have come farther, and waits for the other rank.
    process = start(*training(tmp_path, "distributed.startup_timeout_seconds=250"), **place_of_two(free_port()))
    wait_until(lambda: loads_torch(process.pid), "it imports torch", LIMIT_S)
    assert last_line(ended(process, number)) == f"geocomm train: ended by {number.name}"


@pytest.mark.slow  # test_waiting_ends.py has a program that waits for others
def test_train_that_waits_for_another_rank_ends_in_a_line(tmp_path: Path) -> None:
    port = free_port()
    process = start(*training(tmp_path, "distributed.startup_timeout_seconds=250"), **place_of_two(port))
    wait_until(lambda: listens(port), "its store is there", LIMIT_S)
    assert ended(process, signal.SIGTERM).endswith("geocomm train: ended by SIGTERM\n")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_run_that_imports_torch_ends_in_a_line(tmp_path: Path, number: signal.Signals) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "train.py").write_text("import torch\n")
    process = start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}", "--"),
        *("--nnodes", "2", "--node-rank", "0", str(tmp_path / "train.py")),
        GEOCOMM_KEYS=str(tmp_path / "keys" / "a"),
    )
    wait_until(lambda: loads_torch(process.pid), "its torchrun imports torch", LIMIT_S)
    assert last_line(ended(process, number)) == f"geocomm run: ended by {number.name}"


def test_run_that_imports_its_command_line_ends_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        "import pathlib, time\npathlib.Path(__file__ + '.loads').touch()\ntime.sleep(200)\n"
    )
    process = start("-m", "geocomm", "run", PYTHONPATH=f"{tmp_path}{os.pathsep}{IMPORTS}")
    wait_until(lambda: (tmp_path / "typer.py.loads").exists(), "it imports typer", LIMIT_S)
    assert ended(process, signal.SIGINT) == "geocomm run: ended by SIGINT\n"


def test_forked_process_ends_as_before_and_another_handler_takes_over() -> None:
    process = start("-c", FORKS)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert said == f"-{int(signal.SIGTERM)}\n"
    assert process.returncode == 7


def test_signal_just_before_another_handler_takes_over_is_not_lost() -> None:
    process = start("-c", LATE)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (128 + signal.SIGTERM, "geocomm run: ended by SIGTERM\n")
