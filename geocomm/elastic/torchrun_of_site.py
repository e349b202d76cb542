"""torchrun for a site of one node, once for each byte on stdin. The exit status is that of the last one.

python -m geocomm.elastic.torchrun_of_site TORCHRUN-ARGUMENTS

Each torchrun is forked from this process, which has imported torch and what ranks import: ranks that start again have
it at once. stdin is a socket, on which a line says how each torchrun has ended.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Generator
from importlib import import_module

from geocomm.core.child_processes import end_with_parent

_FORKED = "geocomm.elastic.forked_torchrun"


class _Torchruns:
    """Run one after the other. The one that runs gets the SIGTERM that this process gets, and is the last then.

    Where none runs, SIGTERM ends this process without a word: there is nothing to save, and a handler that raised would
    raise wherever Python is by then, as in what torch has to do at exit.
    """

    def __init__(self, arguments: list[str], asked: socket.socket) -> None:
        self._arguments, self._asked = arguments, asked
        self._ending = False

    def run(self) -> int:
        """Run one; its exit status."""
        parent = os.getpid()
        with _no_sigterm():
            try:
                pid = os.fork()
            except OSError as error:
                print(f"geocomm run: the ranks cannot be started: {error}", file=sys.stderr, flush=True)
                return 1
            if pid != 0:
                signal.signal(signal.SIGTERM, lambda number, _: self._pass_on(pid, number))
        if pid == 0:
            self._asked.close()
            end_with_parent(parent, signal.SIGTERM)
            sys.exit(import_module(_FORKED).main(self._arguments))
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # nobody else gets its number before the handler is gone
        with _no_sigterm():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _pass_on(self, pid: int, number: int) -> None:
        self._ending = True
        os.kill(pid, number)

    def run_all(self) -> int:
        """Run as many as are asked for; the exit status of the last one."""
        status = 0
        while not self._ending and self._asked.recv(1):
            status = self.run()
            with contextlib.suppress(OSError):  # nobody hears it
                self._asked.sendall(b"%d\n" % status)
        return status


@contextlib.contextmanager
def _no_sigterm() -> Generator[None]:
    """It comes after this context."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


def main(arguments: list[str]) -> int:
    """See the module."""
    asked = socket.socket(fileno=os.dup(0))
    with open(os.devnull, encoding="utf-8") as nothing:  # for the ranks
        os.dup2(nothing.fileno(), 0)
    gc.disable()  # it finds nothing while torch is imported, and takes a quarter of the time
    import_module(_FORKED).preload()
    gc.enable()
    gc.freeze()  # what is imported outlives every collection: else each fork copies its pages
    return _Torchruns(arguments, asked).run_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
