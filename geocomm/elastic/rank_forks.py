"""Ranks are forked from a process that has imported torch and geocomm once: each by itself takes seconds for that.

torchrun asks for them where it would start `python -u SCRIPT` or `python -u -m MODULE`; anything else it starts itself.
A forked rank is like a started one: it has its own session, arguments, variables, output and exit status, its own
`__main__`, and the command line that `ps` shows. Descriptors of the process that it was forked from are closed by what
owns them: one that was closed by its number alone would be closed again, later, as whatever has that number by then. Of
what libraries read at their import, torch's number of threads and numpy's random numbers are set anew. The process that
forks has one thread and never touches a device.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn, cast

_LONGEST_REQUEST_BYTES = 128 * 1024
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ForkedRank:
    """What torchrun needs of subprocess.Popen."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        """The exit status, once the process has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. subprocess.TimeoutExpired: the process has not ended in time."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"rank process {self.pid}", timeout or 0)
            told = os.read(self._status, 20)
            self.returncode = int(told) if told else -signal.SIGKILL  # with the process that it was forked from
            os.close(self._status)
        return self.returncode


class RankForks:
    """Made while this process has no threads of its own: it forks the one that ranks are forked from."""

    def __init__(self) -> None:
        self._own = dict(os.environ)
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the threads that numpy's library has, which knows forks
            pid = os.fork()
        if pid == 0:
            self._control.close()
            _run(theirs)  # a rank exits from there, as a program does
            os._exit(0)
        theirs.close()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[str] | None, err: IO[str] | None
    ) -> ForkedRank | None:
        """A rank; None: it has to be started otherwise. OSError: it cannot be forked."""
        python, program = list(arguments[:2]), arguments[2:]
        if python != [sys.executable, "-u"] or not program or (program[0].startswith("-") and program[0] != "-m"):
            return None
        changed = {name: value for name, value in environment.items() if self._own.get(name) != value}
        request = json.dumps([arguments, changed, [name for name in self._own if name not in environment]]).encode()
        if len(request) > _LONGEST_REQUEST_BYTES:
            return None
        status, its_status = os.pipe()
        try:
            descriptors = [1 if out is None else out.fileno(), 2 if err is None else err.fileno(), its_status]
            socket.send_fds(self._control, [request], descriptors)
            pid = int(self._control.recv(20) or b"0")
        finally:
            os.close(its_status)
        if pid < 0:
            os.close(status)
            return None
        if pid == 0:
            os.close(status)
            raise ChildProcessError("the process that ranks are forked from has ended")
        return ForkedRank(pid, status)


def _run(control: socket.socket) -> None:
    """The process that ranks are forked from, until torchrun has ended; and each rank."""
    for number in _ENDING:  # the ranks decide what becomes of theirs, and torchrun has to hear it
        signal.signal(number, signal.SIG_IGN)
    running: dict[int, tuple[int, int]] = {}  # by descriptor of a process: its id, and where its status goes
    while True:
        ready: list[int] = select.select([control.fileno(), *running], [], [])[0]
        for each in ready:
            if each in running:
                pid, status = running.pop(each)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(status)
                os.close(each)
                continue
            request, descriptors, _, _ = socket.recv_fds(control, _LONGEST_REQUEST_BYTES, 3)
            if not request:
                return
            out, err, status = descriptors
            here, there = os.pipe()
            try:
                pid = os.fork()
            except OSError:  # no memory, or too many processes: torchrun starts that one itself, or says why not
                for descriptor in (here, there, out, err, status):
                    os.close(descriptor)
                control.send(b"-1")
                continue
            if pid == 0:
                os.setsid()
                os.dup2(out, 1)
                os.dup2(err, 2)
                control.close()
                for descriptor in (here, there, out, err, status, *running, *(of for _, of in running.values())):
                    os.close(descriptor)
                running.clear()
                arguments, changed, gone = json.loads(request)
                _become(arguments, changed, gone)
            os.close(there)
            os.read(here, 1)  # until it has a session of its own, which torchrun signals
            os.close(here)
            running[os.pidfd_open(pid)] = (pid, status)
            os.close(out)
            os.close(err)
            control.send(str(pid).encode())


def _become(arguments: Sequence[str], changed: Mapping[str, str], gone: Sequence[str]) -> NoReturn:
    """The rank: run the program, and exit."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    os.environ.update(changed)
    for name in gone:
        os.environ.pop(name, None)
    with contextlib.suppress(OSError, ValueError):  # for people alone
        _show_as(arguments)
    _take_what_was_read()
    program = arguments[2:]
    is_module = program[0] == "-m"
    sys.argv = list(program[1:] if is_module else program)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    vars(main)["__builtins__"] = builtins
    try:
        if is_module:
            cast(Any, runpy)._run_module_as_main(program[1])
        else:
            path = Path(program[0])
            if not sys.flags.safe_path:
                sys.path[0] = str(path.resolve().parent)
            vars(main)["__file__"] = program[0]
            exec(compile(path.read_bytes(), program[0], "exec"), vars(main))
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
    sys.exit(0)


def _take_what_was_read() -> None:
    """What libraries have read or drawn when they were imported, and is this rank's own."""
    if threads := os.environ.get("OMP_NUM_THREADS", ""):
        with contextlib.suppress(ValueError):
            sys.modules["torch"].set_num_threads(int(threads))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _show_as(arguments: Sequence[str]) -> None:
    """Let this process's command line be that of the rank, where `ps` and others look."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    shown = b"\0".join(os.fsencode(argument) for argument in arguments)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
