"""A Python for tests of whole jobs: a script that forks the programs named here from a WarmPython, and is Python else.

What a forked program starts by `sys.executable` is started by the script too. Signals, variables, output and exit
status pass through it, but it is not the parent of what is forked (`forked_for`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys

from support.warm_python import EXECUTABLE, FORKED, shared_folder
from support.warm_ranks import warm_agents, warm_ranks

_OF_AGENTS = ("geocomm", "geocomm.elastic.agent_process", "support.elastic_rank")
_OF_RANKS = ("geocomm.elastic.torchrun_of_site", "geocomm.group.rendezvous.torchrun_process", "torch.distributed.run")


@functools.cache
def warm_executable() -> str:
    """The path of the script. A program that is a file is forked from what has imported torch."""
    script = shared_folder() / f"python-{os.getpid()}"
    agents, ranks = (shlex.join(warm.command()) for warm in (warm_agents(), warm_ranks()))
    script.write_text(
        f"""#!/bin/sh
export {EXECUTABLE}="$0"
unbuffered=
[ "$1" = -u ] && unbuffered=-u && shift
case "$1" in
  -m)
    [ "$2 $3" = "geocomm doctor" ] && shift && exec {ranks} "$@"
    case "$2" in
      {"|".join(_OF_AGENTS)}) shift; exec {agents} "$@";;
      {"|".join(_OF_RANKS)}) shift; exec {ranks} "$@";;
    esac;;
  *.py) exec {ranks} "$@";;
esac
exec {shlex.quote(sys.executable)} $unbuffered "$@"
"""
    )
    script.chmod(0o700)
    return str(script)


def forked_for() -> dict[int, int]:
    """Processes that run and were forked for a command: the command's id by theirs."""
    found: dict[int, int] = {}
    for file in shared_folder().glob(f"*{FORKED}"):
        with contextlib.suppress(OSError, ValueError):  # it comes or goes
            found[int(file.stem)] = int(file.read_text())
    return found
