"""Who listens on a TCP port of this machine, as far as this user may know."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_LISTENS = "0A"
"""State of a socket in /proc/net/tcp (tcp_states.h)."""


def port_holder(port: int) -> str:
    """Such as "pid 4711 (python3)"; "another process" where it is not known, as that of another user."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # processes come and go, and those of others cannot be looked into
            if process.name.isdigit() and any(
                os.readlink(descriptor) in sockets for descriptor in (process / "fd").iterdir()
            ):
                return f"pid {process.name} ({(process / 'comm').read_text().strip()})"
    return "another process"


def _listening(port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on `port` of any address."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]
