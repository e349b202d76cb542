"""Child processes: such as end with the one that starts them, also where that is killed; pipes and signals to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

# In a program of its own, which becomes the command: between fork and exec of a process with threads, Python must not
# run (`preexec_fn`). What it asks the kernel for outlives exec.
_PROGRAM = """
import ctypes, os, signal, sys
parent, number = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != parent:
    os.kill(os.getpid(), number)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def ending_with_this(command: Sequence[str], number: signal.Signals = signal.SIGTERM) -> list[str]:
    """What runs a command that the kernel sends a signal when the thread that started it has ended."""
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), str(int(number)), *command]


def send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Send a signal to a child that has not ended.

    asyncio's own methods ask first whether it has, which takes the exit status away from the loop that waits for it.
    """
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)


def input_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """The end of the pipe that this process writes to. ValueError: the child was started without `stdin=PIPE`."""
    if process.stdin is None:
        raise ValueError(f"process {process.pid} was not started with stdin=PIPE")
    return process.stdin


def output_of(process: subprocess.Popen[bytes]) -> IO[bytes]:
    """The end of the pipe that this process reads from. ValueError: the child was started without `stdout=PIPE`."""
    if process.stdout is None:
        raise ValueError(f"process {process.pid} was not started with stdout=PIPE")
    return process.stdout
