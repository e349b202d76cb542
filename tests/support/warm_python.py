"""Starts `python -m MODULE` from a process that has imported what the module imports, which takes many seconds of CPU.

    with WarmPython(["torch", "deepspeed"]) as warm:
        process = warm.start("geocomm.train", ["--set", ...], os.environ | {...})
        out, err = process.communicate(timeout=60)

The new process is forked from that one and has everything else to itself: arguments, variables, output, exit status; it
ends as every interpreter does. What stays: variables that libraries read when they are loaded (OMP_NUM_THREADS is 1).

A program that starts processes by their command lines, as torchrun does, gets `warm.command("geocomm.train")`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

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
        self.returncode = int(os.read(self._status, 20))
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
    """The process to fork from; `modules` are imported there, in this order. Leaving the context ends it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
        self._folder = tempfile.TemporaryDirectory(prefix="geocomm-warm-")
        self._address = str(Path(self._folder.name) / "socket")
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen(16)
            descriptors = [theirs.fileno(), listener.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, descriptors), *modules],
                env=kept | {"OMP_NUM_THREADS": "1"},
                pass_fds=descriptors,
            )

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait()
        self._folder.cleanup()

    def command(self, module: str) -> list[str]:
        """A command line in place of `python -m module`, to which arguments are added."""
        return [sys.executable, str(Path(__file__).with_name("warm_command.py")), self._address, module]

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        most_file_bytes: int | None = None,
        log: IO[str] | None = None,
    ) -> WarmProcess:
        """`python -m module arguments…` with these variables and with this process's working directory.

        `most_file_bytes`: no file that it writes can become larger (RLIMIT_FSIZE), what it prints included.
        `log`: of both stdout and stderr; else `communicate` returns them.
        """
        out = log or tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the WarmProcess has them
        err = log or tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        status, its_status = os.pipe()
        request = {
            "module": module,
            "arguments": list(arguments),
            "variables": dict(environment),
            "folder": os.getcwd(),
            "most_file_bytes": most_file_bytes,
        }
        socket.send_fds(self._control, [json.dumps(request).encode()], [out.fileno(), err.fileno(), its_status])
        os.close(its_status)
        return WarmProcess(int(self._control.recv(20)), status, out, err)


def _become(request: dict[str, Any], out: int, err: int) -> None:
    """The forked process: run the module."""
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 1024)
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    sys.path[:1] = [request["folder"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.argv = [request["module"], *request["arguments"]]
    if (most := request["most_file_bytes"]) is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _serve(control: socket.socket, listener: socket.socket, modules: Sequence[str]) -> None:
    """Fork for each request, until the other end is closed. A forked process returns as well, once it is done.

    `listener`: there a warm_command.py asks for one process, which is killed when that one ends before it.
    """
    gc.disable()
    for name in modules:
        importlib.import_module(name)
    gc.freeze()  # what is imported outlives every collection: else each one copies its pages, above all the one at exit
    gc.enable()
    until = time.monotonic() + 10  # what an import has started for a moment ends by itself
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/task")) == 1, f"{modules} have started threads, which a fork would lose"
    running: dict[int, tuple[int, int]] = {}  # by descriptor of the process: its id, and where its status goes
    asking: dict[socket.socket, int | None] = {}  # for which process; None: not yet
    while True:
        for each in select.select([control, listener, *asking, *running], [], [])[0]:
            if each in running:
                pid, status = running.pop(each)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
                os.close(status)
                os.close(each)
                continue
            if each is listener:
                asking[listener.accept()[0]] = None
                continue
            request, descriptors = b"", list[int]()
            with contextlib.suppress(ConnectionResetError):
                request, descriptors, _, _ = socket.recv_fds(each, _LONGEST_REQUEST_BYTES, 3)
            if not request and each is control:
                for pid, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                return
            if not request:
                if (pid := asking.pop(each)) in [running_pid for running_pid, _ in running.values()]:
                    os.kill(pid, signal.SIGKILL)
                each.close()
                continue
            out, err, status = descriptors
            if (pid := os.fork()) == 0:
                for ours in (control, listener, *asking):
                    ours.detach()
                _become(json.loads(request), out, err)
                return
            running[os.pidfd_open(pid)] = (pid, status)
            if each is not control:
                asking[each] = pid
            os.close(out)
            os.close(err)
            with contextlib.suppress(BrokenPipeError):  # who asked has ended meanwhile
                each.send(str(pid).encode())


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
