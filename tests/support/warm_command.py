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


def main(address: str, module: str, *arguments: str) -> int:
    """Have it forked, and wait for its end; its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(address)
        status, its_status = os.pipe()
        request = {
            "module": module,
            "arguments": arguments,
            "variables": dict(os.environ),
            "folder": os.getcwd(),
            "most_file_bytes": None,
            "beside": os.getpid(),
        }
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2, its_status])
        os.close(its_status)
        pid = int(server.recv(20))
        # Whom to ask for the descendants of this process (hub_jobs.family).
        with open(f"{os.path.dirname(address)}/{os.getpid()}.forked", "w", encoding="ascii") as known:
            known.write(str(pid))

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, pass_on)
        code = int(os.read(status, 20))
    if code < 0:  # end by the same signal
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
