"""A signal that comes while a program loads ends it with a line.

Imports of torch and DeepSpeed take tens of seconds. Python's own handlers run in the main thread alone, which may be
inside of C++ for long, as in a wait for other ranks: a thread listens here.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from types import FrameType

_DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@dataclass(frozen=True)
class _Ending:
    """The handler of both signals. It acts in the main thread, too: so a signal that comes just before another handler
    takes its place is not lost between the two."""

    command: str
    speaks: bool
    _begun: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, number: int, _: FrameType | None = None) -> None:
        if self._begun.acquire(blocking=False):  # the thread and the main thread may both come here
            if self.speaks:
                os.write(2, f"geocomm {self.command}: ended by {signal.Signals(number).name}\n".encode())
            os._exit(128 + number)


def end_in_a_line(command: str, *, speaks: bool = True) -> None:
    """From here on SIGINT and SIGTERM end this process with status 128 + the signal, until `begun` or another handler.

    For the main thread of a program that has nothing to save yet. What is ignored, as below nohup, stays ignored.

    Args:
        command: The command of geocomm, for the line on stderr.
        speaks: Whether there is a line: of several ranks of a machine one is enough.
    """
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    ending = _Ending(command, speaks)
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) == default:
            signal.signal(number, ending)
    # A forked process has no thread that listens, and until it is as before would write to the one of its parent.
    os.register_at_fork(before=_hold_back, after_in_parent=_let_through, after_in_child=_of_child)
    threading.Thread(target=_listen, args=(ours, ending), name="signals", daemon=True).start()


def begun() -> None:
    """Signals act again as they did before `end_in_a_line`. For handlers that put back what they found."""
    signal.set_wakeup_fd(-1)
    for number, default in _DEFAULTS.items():
        if isinstance(signal.getsignal(number), _Ending):
            signal.signal(number, default)


def _hold_back() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _DEFAULTS)


def _of_child() -> None:
    begun()
    _let_through()


def _listen(descriptor: int, ending: _Ending) -> None:
    while heard := os.read(descriptor, 1):
        if signal.getsignal(heard[0]) is ending:  # others have a handler of their own
            ending(heard[0])
