"""The pipes to and from a child process that was started with them."""

from __future__ import annotations

import subprocess
from typing import IO


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
