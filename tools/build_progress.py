"""Runs a command that builds with ninja and says how far it is.

    python tools/build_progress.py [--every SECONDS] build cmake --build build/native

prints `build: 12 of 120 steps after 34 s`: on a terminal one line that changes, elsewhere a new line every 10 s, also
while one step takes longer than that. What compilers say is passed on; the exit status is the command's.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import subprocess
import sys
import time
from typing import BinaryIO

_LINE_EVERY_S = 10.0
_REDRAW_EVERY_S = 0.5
_STATUS = re.compile(rb"@geocomm (\d+)/(\d+)@")


class Progress:
    """What is shown of a build called `name`, every so many seconds."""

    def __init__(self, name: str, out: BinaryIO, terminal: bool, every_s: float) -> None:
        self._name = name
        self._out = out
        self._terminal = terminal
        self._every_s = every_s
        self._began = self._shown = time.monotonic()
        self._done, self._total = 0, 0

    def take(self, line: bytes) -> None:
        """A line of ninja's: a status is counted, everything else is passed on."""
        if status := _STATUS.match(line):
            self._done, self._total = int(status[1]), int(status[2])
        elif not line.startswith(b"ninja: no work to do"):
            self._out.write((b"\r\x1b[K" if self._terminal else b"") + line)
            self._out.flush()

    def tick(self) -> None:
        """Show the progress if it is time to."""
        if time.monotonic() - self._shown >= self._every_s:
            self._show()

    def end(self) -> None:
        """The build is over. A short one leaves no line behind."""
        if self._shown > self._began:
            self._show()
        if self._terminal and self._shown > self._began:
            self._out.write(b"\n")
            self._out.flush()

    def _show(self) -> None:
        self._shown = time.monotonic()
        steps = f"{self._done} of {self._total} steps" if self._total else "0 steps"
        text = f"{self._name}: {steps} after {self._shown - self._began:.0f} s"
        self._out.write(f"\r\x1b[K{text}".encode() if self._terminal else f"{text}\n".encode())
        self._out.flush()


def build(name: str, command: list[str], every_s: float | None) -> int:
    """Run `command` as the build called `name`; its exit status. It is shown every `every_s` seconds."""
    terminal = sys.stdout.isatty()
    every_s = every_s or (_REDRAW_EVERY_S if terminal else _LINE_EVERY_S)
    progress = Progress(name, sys.stdout.buffer, terminal, every_s)
    environment = os.environ | {"NINJA_STATUS": "@geocomm %f/%t@"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            rest = b""
            while True:
                if selector.select(every_s / 4):
                    if not (received := os.read(process.stdout.fileno(), 1 << 16)):
                        break
                    *lines, rest = (rest + received).split(b"\n")
                    for line in lines:
                        progress.take(line + b"\n")
                progress.tick()
        if rest:
            progress.take(rest + b"\n")
        process.wait()
    progress.end()
    return process.returncode


def main() -> int:
    """Build as the command line says; the exit status."""
    parser = argparse.ArgumentParser(description="Runs a command that builds with ninja and says how far it is.")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="how often (10; on a terminal 0.5)")
    parser.add_argument("name", help="what the lines begin with")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    try:
        status = build(arguments.name, arguments.command, arguments.every)
    except KeyboardInterrupt:
        return 130
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
