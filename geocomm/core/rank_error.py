"""What ended a rank, kept where torchrun looks for it, and told by the frames of the user's own program.

`geocomm run` repeats it as its last line, at every site (group/rendezvous/first_error.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from types import TracebackType

from geocomm.core.environment import under_geocomm_run
from geocomm.core.message_log import logger
from geocomm.core.place import local_rank

_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_TOLD = "told"
_IN_CALLBACK = re.compile(r"Got the following error when running the callback: (\w+: .*?)(?:\s+At:\s.*)?", re.DOTALL)
"""How torch's RuntimeError tells an error of a callback of a Future, such as a gradient hook's; behind it, where that
is."""


def cause_in_callback(message: str) -> str:
    """The error of a Future's callback that torch tells by this message, as `Class: message`; empty: it is none."""
    found = _IN_CALLBACK.fullmatch(message.strip())
    return found[1] if found else ""


def watch() -> None:
    """Keep the error that ends this program, where `geocomm run` has started it."""
    if not under_geocomm_run():
        return
    before: _Hook = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        keep(error)
        if not (before is sys.__excepthook__ and _tell_shortly(error, trace)):
            before(kind, error, trace)

    sys.excepthook = hook


def keep(error: BaseException) -> None:
    """Write it into torchrun's file of this rank's error, as torch's `record` does; the first one stays."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file or Path(file).exists() or isinstance(error, (KeyboardInterrupt, SystemExit)):
        return
    try:
        get_error_handler().record_exception(error)
    except OSError:  # a full disk: the traceback tells it
        return


def _tell_shortly(error: BaseException, trace: TracebackType | None) -> bool:
    """Print an error of geocomm without the frames of torch and geocomm, which tell a user nothing; whether it is one.

    GEOCOMM_LOG=debug shows them.
    """
    errors = sys.modules.get("geocomm.core.errors")
    cause = cause_in_callback(str(error)) if isinstance(error, RuntimeError) else ""
    kind = vars(errors).get(cause.partition(":")[0], type(error)) if errors else type(error)
    if errors is None or not issubclass(kind, errors.GeocommError):
        return False
    if logger().isEnabledFor(logging.DEBUG):
        return False
    frames = traceback.extract_tb(trace)
    hidden = (_PACKAGE, str(Path(sys.modules["torch"].__file__ or "").resolve().parent) + os.sep)
    own = traceback.StackSummary.from_list([one for one in frames if not _inside(one.filename, hidden)])
    told = [f"{type(error).__name__}: {cause}\n"] if cause else traceback.format_exception_only(type(error), error)
    left_out = [f"  (calls inside geocomm and torch are left out: {len(frames) - len(own)}; GEOCOMM_LOG=debug)\n"]
    lines = ["Traceback (most recent call last):\n", *own.format(), *left_out, *told]
    with _first_of_node() as first:
        if not first:  # most errors are those of all ranks
            where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
            lines = [f"{''.join(told).rstrip()}{where}\n"]
        print("".join(lines), end="", file=sys.stderr, flush=True)
    return True


@contextlib.contextmanager
def _first_of_node() -> Generator[bool]:
    """Whether no other rank of this node has told its error yet; the others wait until the body has.

    torchrun ends all ranks of a node soon after one has ended: the one that tells most must not be among them.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        yield local_rank() == 0
        return
    folder = Path(file).parents[1]  # of this start of all ranks of the node
    lock = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield not (folder / _TOLD).exists()
        with contextlib.suppress(OSError):  # a full disk: each of them tells all
            (folder / _TOLD).touch()
    finally:
        os.close(lock)


def _inside(file: str, folders: tuple[str, ...]) -> bool:
    return str(Path(file).resolve()).startswith(folders)
