"""The addresses that this process has for others, and where its job meets."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.addresses import AddressInfo, HubAddress, addresses_of, is_any, is_loopback, is_numeric
from geocomm.core.environment import hub_address

if TYPE_CHECKING:
    from torch.distributed import Store

_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9
_OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that nobody has (RFC 5737, 3849): the way to them is the default route."""
_SIOCGIFADDR = 0x8915  # of linux/sockios.h
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_MOST_ADDRESSES = 6

_last: HubAddress | None = None


def remember_hub(hub: HubAddress) -> None:
    """This process meets the others at `hub`."""
    global _last
    _last = hub


def remembered_hub() -> HubAddress | None:
    """The hub that this process last went to with init_method; None: it did not."""
    return _last


def own_addresses(meeting_host: str | None = None) -> list[str]:
    """Where others may dial this process, in the order to be tried, so far as the system knows.

    The source addresses of the routes, of each family, to where the job meets (None: its hub, else MASTER_ADDR). Where
    that is a name of this machine that leads to loopback (127.0.1.1), all addresses of this machine, and loopback for
    ranks that are on it. Loopback alone: the job does not leave this machine, or nothing else is known.
    """
    if meeting_host is None:
        hub = remembered_hub() or hub_address()
        meeting_host = hub.host if hub is not None else os.environ.get("MASTER_ADDR")
    if not meeting_host:
        return [_LOOPBACK]
    try:
        met = addresses_of(meeting_host, _ANY_PORT)
    except OSError:
        return [_LOOPBACK]
    sources = _sources(met)
    beyond = [source for source in sources if not is_loopback(source)]
    if beyond:
        return beyond
    if meeting_host == "localhost" or is_numeric(meeting_host):
        return sources[:1] or [_LOOPBACK]
    return [*_machine_addresses(), _LOOPBACK]


def own_address(meeting_host: str | None = None) -> str:
    """The first of `own_addresses`."""
    return own_addresses(meeting_host)[0]


def advertised(given: str | None, meeting_host: str | None = None) -> list[str]:
    """The addresses that a rank tells the others: what GEOCOMM_ADDRESS says, names and addresses with commas, else
    `own_addresses`."""
    return hosts_of(given) if given else own_addresses(meeting_host)


def hosts_of(text: str) -> list[str]:
    """The hosts of a list with commas, as GEOCOMM_ADDRESS and the transport have it."""
    return [host for part in text.split(",") if (host := part.strip())]


def _sources(targets: Iterable[AddressInfo]) -> list[str]:
    """The address that this machine has for each of these, where it has a route. Sends nothing."""
    found: list[str] = []
    for family, _, _, _, target in targets:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)
            found.append(probe.getsockname()[0])
    return list(dict.fromkeys(found))


def _machine_addresses() -> list[str]:
    """Addresses of the interfaces that are up, ways to the outside first; neither loopback nor link-local ones."""
    outside = [info for host in _OUTSIDE for info in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM)]
    found = _sources(outside)
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
    usable = [host for host in dict.fromkeys(found) if not is_loopback(host)]
    return usable[:_MOST_ADDRESSES]


def url_for_others(host: str, port: int) -> str:
    """The URL of what listens at `host`: where that is every address, by the one of the way to other networks."""
    if is_any(host):
        # Addresses of documentation, which are nobody's. What listens at :: is reached by IPv4, too.
        found = own_address("2001:db8::1") if ":" in host else ""
        host = found if ":" in found else own_address("192.0.2.1")
    return f"http://{HubAddress(host, port)}"


def store_host(store: Store) -> str:
    """Where a process group's store is dialled; empty for one that is not TCP's."""
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""
