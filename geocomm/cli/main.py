"""Entry point of the `geocomm` console script. It imports next to nothing: a Ctrl+C comes early, too."""

from __future__ import annotations

import sys

from geocomm.core.ended_by_signal import end_in_a_line
from geocomm.core.place import speaks_here

_LOAD_LONG = ("train", "run", "subscribe")
"""Commands in which a signal may come before they can handle it."""


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] and sys.argv[1] in _LOAD_LONG:
        end_in_a_line(sys.argv[1], speaks=speaks_here())
    from geocomm.cli.commands import run_command

    run_command()
