"""The addresses of this machine's interfaces."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geocomm.core.addresses import AddressInfo

_ANY_PORT = 9
_OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, 3849): the way to them is the default route."""
_SIOCGIFADDR = 0x8915  # of linux/sockios.h
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")


def source_addresses(targets: Iterable[AddressInfo]) -> list[str]:
    """The address that this machine has for each of these, where it has a route. Sends nothing."""
    found: list[str] = []
    for family, _, _, _, target in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


def machine_addresses() -> list[str]:
    """Addresses of the interfaces that are up, ways to the outside first; neither loopback nor link-local ones."""
    outside = [info for host in _OUTSIDE for info in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)]
    found = source_addresses(outside)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found.append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in _IPV6_ADDRESSES.read_text().splitlines():
            number, _, _, scope, *_ = line.split()
            if scope == "00":  # of global scope
                found.append(str(ipaddress.IPv6Address(int(number, 16))))
    return [host for host in dict.fromkeys(found) if not ipaddress.ip_address(host).is_loopback]


def not_here(host: str) -> str:
    """What to say of a host that has none of this machine's addresses: which there are."""
    own = [*machine_addresses(), "127.0.0.1"]
    return f"no interface of this machine has {host}: it has {', '.join(own[:-1])}{' and ' * (len(own) > 1)}{own[-1]}"
