"""A program that waits for a hub which never comes ends with all of its processes when it is asked to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.hub_support import make_keys
from support.local_jobs import free_port
from support.wan_support import IMPORTS, wait_until

WAITS = (
    "import sys, torch.distributed as dist\n"
    "dist.init_process_group('geocomm', init_method=sys.argv[1], rank=1, world_size=2)"
)


def dials(hub: str) -> bool:
    """Whether a process runs whose work is to dial that hub, and which leaves signals to the program that it serves."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().decode()
            if "store_process" in command and hub in command:
                ignored = int((process / "status").read_text().partition("SigIgn:")[2].split()[0], 16)
                return bool(ignored >> signal.SIGTERM - 1 & 1)
    return False


OTHERS = [pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGINT, signal.SIGHUP)]


@pytest.mark.parametrize("number", [signal.SIGTERM, *OTHERS], ids=lambda number: number.name)
def test_program_that_waits_for_a_hub_leaves_nobody_behind(tmp_path: Path, number: signal.Signals) -> None:
    keys = make_keys(tmp_path / "keys")["b"].folder
    hub = f"127.0.0.1:{free_port()}"
    before = signal.signal(number, signal.SIG_DFL)  # a program that is to ignore it, as below nohup, lives on
    program = subprocess.Popen(
        [sys.executable, "-c", WAITS, f"geocomm://{hub}"],
        env=os.environ | {"PYTHONPATH": IMPORTS, "GEOCOMM_KEYS": str(keys), "GEOCOMM_SITE": "b"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    signal.signal(number, before)
    try:
        wait_until(lambda: dials(hub), "it waits for the hub", 60)
        os.killpg(program.pid, number)  # as Ctrl+C does, to the whole group
        program.communicate(timeout=100)  # until nobody has its stderr any more, as `| tee` waits
        assert program.returncode != 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
