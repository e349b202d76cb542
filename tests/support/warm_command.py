"""`python warm_command.py ADDRESS MODULE ARGUMENT...`: `python -m MODULE ARGUMENT...`, forked from a WarmPython.

With the variables, folder, input, output and namespaces of this process. Signals that ask to end are passed on, the
exit status comes back; the other process is killed with this one. Imports little: a program may start many.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

MOST_ANSWER_BYTES = 1 << 16


class WarmPythonError(Exception):
    """There is nothing to fork from; the message says why, with the traceback of what could not be imported."""


def connected(address: str) -> socket.socket:
    """A connection to the process to fork from. What it forks for this connection is killed once that is closed."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(address)
    except (ConnectionRefusedError, FileNotFoundError) as error:
        server.close()
        raise WarmPythonError("the process to fork from has ended; it may have said on stderr why") from error
    return server


def fork(
    server: socket.socket,
    module: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    most_file_bytes: int | None = None,
    beside: int | None = None,
    held_back: Sequence[int] = (),
) -> int:
    """Have `python -m module arguments…` forked, with the working directory of this process; its id.

    descriptors: its stdin, stdout and stderr, and where its exit status goes. beside: the process whose namespaces it
    enters. held_back: signals that wait until it wants them.
    """
    request = {
        "module": module,
        "arguments": list(arguments),
        "variables": dict(variables),
        "folder": os.getcwd(),
        "most_file_bytes": most_file_bytes,
        "beside": beside,
        "held_back": [int(number) for number in held_back],
    }
    return ask(server, json.dumps(request).encode(), descriptors)


def ask(server: socket.socket, request: bytes, descriptors: Sequence[int] = ()) -> int:
    """The number with which the server answers; WarmPythonError: it has none, or has ended."""
    answer = ""
    with contextlib.suppress(ConnectionError):
        socket.send_fds(server, [request], descriptors)
        answer = server.recv(MOST_ANSWER_BYTES).decode(errors="replace")
    if not answer.isdigit():
        raise WarmPythonError(answer or "the process to fork from has ended; it may have said on stderr why")
    return int(answer)


def exit_status(descriptor: int) -> int:
    """What the server says of a forked process once that has ended, as subprocess.Popen has it."""
    said = os.read(descriptor, 20)
    if not said:
        raise WarmPythonError("the process that it was forked from has ended before it")
    return int(said)


def main(address: str, module: str, *arguments: str) -> int:
    """Have it forked, and wait for its end; its exit status."""
    told_by = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    # Held back until there is a process to pass them on to; there those are that were held back here.
    held_back = signal.pthread_sigmask(signal.SIG_BLOCK, told_by)
    try:
        with connected(address) as server:
            status, its_status = os.pipe()
            files = [0, 1, 2, its_status]
            pid = fork(server, module, arguments, os.environ, files, beside=os.getpid(), held_back=[*held_back])
            os.close(its_status)

            def pass_on(number: int, _: object) -> None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

            for number in told_by:
                signal.signal(number, pass_on)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, told_by)
            code = exit_status(status)
    except WarmPythonError as error:
        print(f"{module} was started by {__file__}: {error}", file=sys.stderr)
        return 1
    if code < 0:  # end by the same signal
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
