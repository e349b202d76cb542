"""Where a job's hub is: "host:port", and whether that is this machine."""

from __future__ import annotations

import errno
import ipaddress
import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

_BACKLOG = 512


class HubAddressError(ValueError):
    """An address that cannot be a hub's; the message says what one looks like."""


@dataclass(frozen=True)
class HubAddress:
    """Host (a name, IPv4 or IPv6) and port of a hub."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "host:port", "[::1]:port" or "geocomm://host:port"."""
        try:
            parts = urlsplit(text if "//" in text else f"//{text}")
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")  # what looks names up fails with another error, of a part of 64 characters
        except ValueError:
            host, port = None, None
        if not host or not port:
            raise HubAddressError(f"{text!r} is not an address of the kind host:port")
        if is_any(host):
            raise HubAddressError(f"{host} means every address; name the one that the other sites dial")
        return cls(host, port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def listen(self) -> socket.socket | None:
        """A listening socket; None where the host is another machine, or somebody here listens there already.

        OSError where it cannot be known or may not be done: an unknown name, a port below 1024.
        """
        family, kind, protocol, _, target = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                return None
            raise
        listener.setblocking(False)
        return listener


def listen_on(text: str) -> socket.socket:
    """A listening socket on "address:port", also every address (0.0.0.0:port). OSError, HubAddressError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise HubAddressError(f"{text!r} is not an address of the kind host:port")
    found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    listener = socket.socket(*found[:3])
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def loopback_listener() -> socket.socket:
    """A listening socket on 127.0.0.1, with a port of the kernel's choice."""
    return listen_on("127.0.0.1:0")


def free_port() -> int:
    """A TCP port that is free on loopback now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_any(host: str) -> bool:
    """Whether who listens there listens at every address."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
