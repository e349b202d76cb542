"""Processes that end with the one that starts them, also where that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

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
