"""Starts `python -m MODULE` from a process that has imported what the module imports, which takes many seconds of CPU.

    warm = WarmPython("training", ["torch", "deepspeed"])
    process = warm.start("geocomm.train", ["--set", ...], os.environ | {...})
    out, err = process.communicate()

The new process is forked from that one and has everything else to itself: arguments, variables, output, exit status. It
ends as an interpreter does, but frees nothing (`_exit`). What stays: variables that libraries read when they are loaded
(OMP_NUM_THREADS is 1). All workers of pytest-xdist fork from one process of a name: who is first starts it, and it ends
once all of them have. Where a module cannot be imported, each of them gets a WarmPythonError with the traceback.

A program that starts processes by their command lines, as torchrun does, gets `warm.command("geocomm.train")`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from support.warm_command import MOST_ANSWER_BYTES, ask, connected, exit_status, fork

EXECUTABLE = "TESTS_PYTHON"
"""What is to be `sys.executable` in a forked process (`warm_executable`)."""
_LONGEST_REQUEST_BYTES = 1 << 20


class WarmProcess:
    """A started process; what it has of subprocess.Popen, it has alike."""

    stdin = None

    def __init__(self, pid: int, status: int, out: IO[str], err: IO[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._files = (out, err)

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._reap()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. subprocess.TimeoutExpired: it has not ended in time."""
        if self.returncode is None and timeout is not None and not select.select([self._status], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self._reap() if self.returncode is None else self.returncode

    def _reap(self) -> int:
        self.returncode = exit_status(self._status)
        os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it wrote to stdout and stderr, once it has ended. subprocess.TimeoutExpired: not in time."""
        self.wait(timeout)
        for file in self._files:
            file.seek(0)
        out, err = (file.read() for file in self._files)
        return out, err

    def send_signal(self, number: signal.Signals) -> None:
        """To the process, unless it is known to have ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it, hard."""
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """The process to fork from; `modules` are imported there, in this order. What is forked ends with who asked."""

    def __init__(self, name: str, modules: Sequence[str]) -> None:
        address = shared_folder() / f"{name}{_SERVER}"
        self._address = str(address)
        with _locked(address):
            if not address.exists():
                _start_server(self._address, modules)
            self._server = connected(self._address)

    def wait(self) -> None:
        """Until the modules are imported, a minute and more on a busy machine."""
        ask(self._server, b"{}")

    def command(self, *module: str) -> list[str]:
        """A command line in place of `python -m module`, or of `python FILE.py`, to which arguments are added.

        At a site of the emulated WAN the process that it starts is at that site too.
        """
        return [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_command.py")), self._address, *module]

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        most_file_bytes: int | None = None,
        log: IO[str] | None = None,
        stdin: int = 0,
    ) -> WarmProcess:
        """`python -m module arguments…` with these variables and with this process's working directory.

        `most_file_bytes`: no file that it writes can become larger (RLIMIT_FSIZE), what it prints included.
        `log`: of both stdout and stderr; else `communicate` returns them. `stdin`: the descriptor of its input.
        """
        out = log or tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the WarmProcess has them
        err = log or tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        status, its_status = os.pipe()
        descriptors = [stdin, out.fileno(), err.fileno(), its_status]
        pid = fork(self._server, module, arguments, environment, descriptors, most_file_bytes=most_file_bytes)
        os.close(its_status)
        return WarmProcess(pid, status, out, err)


def shared_folder() -> Path:
    """Of this process and the other workers of pytest-xdist, with the addresses. The last server to end removes it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    folder = Path(tempfile.gettempdir()) / f"geocomm-warm-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


_SERVER = ".server"
FORKED = ".forked"


@contextlib.contextmanager
def _locked(address: Path) -> Generator[None]:
    """Nobody else starts or ends the server with that address."""
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _start_server(address: str, modules: Sequence[str]) -> None:
    """In a session of its own: it outlives the process that starts it, if others still fork from it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GEOCOMM_", "PYTEST_"))}
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno()), *modules],
            env=kept | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    atexit.register(process.poll)  # keeps it, so that nothing says that it still runs


def _become(request: dict[str, Any], files: Sequence[int]) -> NoReturn:
    """The forked process: run the module, and exit. `files`: its stdin, stdout, stderr."""
    for place, file in enumerate(files):
        os.dup2(file, place)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["variables"])
    if (beside := request["beside"]) is not None:
        _enter_namespaces(beside)
    sys.executable = os.environ.get(EXECUTABLE, sys.executable)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(request["folder"])
    sys.path[:1] = [request["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [request["module"], *request["arguments"]]
    if (most := request["most_file_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    if (errors := sys.modules.get("geocomm.core.rank_error")) is not None:
        errors.watch()  # as `import torch` does
    status = 0
    try:
        if request["module"].endswith(".py"):
            sys.path[0] = str(Path(request["module"]).parent)
            runpy.run_path(request["module"], run_name="__main__")
        else:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if status == 1 and end.code != 1:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):  # ends by the signal, as an interpreter does
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    _exit(status)


def _exit(status: int) -> NoReturn:
    """As an interpreter exits, but for its last part, in which it frees all that was imported: half a second of CPU."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


def _enter_namespaces(pid: int) -> None:
    """Of a process at a site of the emulated WAN: its network, and the mounts that show it."""
    flags = 0
    for name, flag in (("user", 0x10000000), ("net", 0x40000000), ("mnt", 0x00020000)):  # CLONE_NEW* of <sched.h>
        if not os.path.samefile(f"/proc/{pid}/ns/{name}", f"/proc/self/ns/{name}"):
            flags |= flag
    if flags:
        libc = ctypes.CDLL(None, use_errno=True)
        root = os.open("/", os.O_PATH)
        if libc.setns(os.pidfd_open(pid), flags) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {pid}")
        if not os.path.samestat(os.fstat(root), os.stat("/")):  # it leaves a chroot
            os.chroot(f"/proc/{pid}/root")


class _Server:
    """Forks for each request. What was forked for a connection is killed once that is closed."""

    def __init__(self, listener: socket.socket, failure: str) -> None:
        """failure: why there is nothing to fork, which then is the answer to each request; empty: there is."""
        self._listener = listener
        self._failure = failure
        self._running: dict[int, tuple[int, int, socket.socket]] = {}
        """By descriptor of the process: its id, where its status goes, for whom it was started."""
        self._asking: set[socket.socket] = set()

    def serve(self) -> None:
        """Until the last connection is closed."""
        while True:
            for each in select.select([self._listener, *self._asking, *self._running], [], [])[0]:
                if each is self._listener:
                    self._asking.add(self._listener.accept()[0])
                elif isinstance(each, int):
                    self._ended(each)
                else:
                    self._asked(each)
            if not self._asking and self._retired():
                return

    def _retired(self) -> bool:
        """Unless somebody has connected meanwhile, nobody can any more."""
        address = Path(self._listener.getsockname())
        with _locked(address):
            if select.select([self._listener], [], [], 0)[0]:
                return False
            address.unlink()
        if all(left.suffix != _SERVER for left in address.parent.iterdir()):  # no other server is there
            shutil.rmtree(address.parent)
        return True

    def _forked_for(self, pid: int) -> Path:
        """The file that says for which command a process was forked, while it runs (`warm_executable.forked_for`)."""
        return Path(self._listener.getsockname()).with_name(f"{pid}{FORKED}")

    def _ended(self, process: int) -> None:
        pid, status, _ = self._running.pop(process)
        self._forked_for(pid).unlink(missing_ok=True)
        with contextlib.suppress(BrokenPipeError):
            os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os.close(status)
        os.close(process)

    def _asked(self, by: socket.socket) -> None:
        request, descriptors = b"", list[int]()
        with contextlib.suppress(ConnectionResetError):
            request, descriptors, _, _ = socket.recv_fds(by, _LONGEST_REQUEST_BYTES, 4)
        if not request:
            for pid, _, for_whom in self._running.values():
                if for_whom is by:
                    os.kill(pid, signal.SIGKILL)
            self._asking.remove(by)
            by.close()
            return
        answer = self._failure or "0"
        if descriptors and not self._failure:
            *files, status = descriptors
            wanted = json.loads(request)
            signal.pthread_sigmask(signal.SIG_SETMASK, wanted["held_back"])  # from its first moment on
            pid = os.fork()
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, [])
            else:
                for ours in (self._listener, *self._asking):
                    ours.detach()
                _become(wanted, files)
            if wanted["beside"] is not None:
                self._forked_for(pid).write_text(str(wanted["beside"]))
            self._running[os.pidfd_open(pid)] = (pid, status, by)
            answer, descriptors = str(pid), files
        for descriptor in descriptors:
            os.close(descriptor)
        with contextlib.suppress(BrokenPipeError):  # who asked has ended meanwhile
            by.send(answer.encode()[-MOST_ANSWER_BYTES:])


def _import(modules: Sequence[str]) -> None:
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # what is imported outlives every collection: else each one copies its pages
    gc.enable()
    until = time.monotonic() + 10  # what an import has started for a moment ends by itself
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/task")) == 1, f"{modules} have started threads, which a fork would lose"


def main(listener: int, modules: Sequence[str]) -> None:
    """The process to fork from."""
    failure = ""
    try:
        _import(modules)
    except BaseException:  # a module may skip tests, or end the interpreter
        failure = f"{', '.join(modules)} cannot be imported in the process to fork from:\n{traceback.format_exc()}"
    _Server(socket.socket(fileno=listener), failure).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
