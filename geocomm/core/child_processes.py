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
parent, number, held_back = int(sys.argv[1]), int(sys.argv[2]), [int(one) for one in sys.argv[3].split(",") if one]
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != parent:
    os.kill(os.getpid(), number)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, held_back)
os.execvp(sys.argv[4], sys.argv[4:])
"""


def ending_with_this(
    command: Sequence[str], number: signal.Signals = signal.SIGTERM, held_back: Sequence[signal.Signals] = ()
) -> list[str]:
    """What runs a command that the kernel sends a signal when the thread that started it has ended.

    held_back: the signals that wait until the command wants them; all others reach it, whatever this process holds back
    at that moment. One that is to wait from the first moment on has to be held back here too.
    """
    held = ",".join(str(int(one)) for one in held_back)
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(os.getpid()), str(int(number)), held, *command]


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
