"""torchrun for a site of one node, which tells how it ended in a line: its ranks have told their errors themselves.

They are forked (`rank_forks`), where this torch's torchrun lets one say how they are started. `torchrun_of_site` forks
the process that runs it.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
import tempfile
from typing import Any, cast

import torch
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import SignalException, api
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.site import site_name
from geocomm.elastic.rank_forks import RankForks
from geocomm.group.rendezvous.first_error import hide_torchruns_lines, tell_failure
from geocomm.group.rendezvous.launch_checks import check_program

_PRELOADED = ("torch._dynamo", "geocomm.sync.local_steps.local_steps")
run = cast(Any, torchrun)  # without types


def preload() -> None:
    """Import what ranks import."""
    for name in _PRELOADED:
        importlib.import_module(name)


def fork_ranks() -> None:
    """Have torchrun fork them."""
    forks = RankForks()

    class Handler(cast(Any, SubprocessHandler)):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            forked = forks.start(args, env, self._stdout, self._stderr)
            if forked is not None:
                return forked
            return super()._popen(args, env)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    cast(Any, api).get_subprocess_handler = Handler


def main(arguments: list[str]) -> int:
    """Run torchrun; its exit status, or EXIT_BAD_INPUT for what no other start would mend."""
    # torchrun's own folder for what ranks say of their errors is never removed, and each start makes one.
    own, folder = os.getpid(), tempfile.mkdtemp(prefix="geocomm-torchrun-")
    try:
        return _run(arguments, folder)
    finally:
        if os.getpid() == own:  # not a rank that was forked inside
            shutil.rmtree(folder, ignore_errors=True)


def _run(arguments: list[str], folder: str) -> int:
    # Not by the name of this machine, as by default: nothing may know that name.
    chosen = run.parse_args(["--standalone", "--local-addr", "127.0.0.1", "--log-dir", folder, *arguments])
    try:
        check_program(chosen)
    except BadInput as error:
        print(f"geocomm run: {error}", file=sys.stderr, flush=True)
        return EXIT_BAD_INPUT
    hide_torchruns_lines()
    # A second signal, while torchrun formats its line about the first, would show as a traceback.
    agent = logging.getLogger("torch.distributed.elastic.agent.server.api")
    agent.addFilter(lambda record: not str(record.msg).startswith("Received %s death signal"))
    lets_one = hasattr(api, "get_subprocess_handler") and hasattr(SubprocessHandler, "_popen")
    in_use = torch.cuda.is_initialized()  # a fork cannot use a device that is in use before it
    if lets_one and not chosen.no_python and not chosen.run_path and not in_use:
        fork_ranks()
    try:
        run.run(chosen)
    except SignalException:  # the supervisor's
        return 1
    except ChildFailedError as error:
        tell_failure(error, site_name() or "")
        return 1
    return 0
