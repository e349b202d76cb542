"""The addresses that this process has for others, and where its job meets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from geocomm.core.addresses import (
    Address,
    addresses_of,
    is_any,
    is_loopback,
    is_numeric,
    machine_addresses,
    source_addresses,
)
from geocomm.core.environment import hub_address

if TYPE_CHECKING:
    from torch.distributed import Store

_LOOPBACK = "127.0.0.1"
_ANY_PORT = 9
_MOST_ADDRESSES = 6

_last: Address | None = None


def remember_hub(hub: Address) -> None:
    """This process meets the others at `hub`."""
    global _last
    _last = hub


def remembered_hub() -> Address | None:
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
    sources = source_addresses(met)
    beyond = [source for source in sources if not is_loopback(source)]
    if beyond:
        return beyond
    if meeting_host == "localhost" or is_numeric(meeting_host):
        return sources[:1] or [_LOOPBACK]
    return [*machine_addresses()[:_MOST_ADDRESSES], _LOOPBACK]


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


def url_for_others(host: str, port: int) -> str:
    """The URL of what listens at `host`: where that is every address, by the one of the way to other networks."""
    if is_any(host):
        # Addresses of documentation, which are nobody's. What listens at :: is reached by IPv4, too.
        found = own_address("2001:db8::1") if ":" in host else ""
        host = found if ":" in found else own_address("192.0.2.1")
    return f"http://{Address(host, port)}"


def store_host(store: Store) -> str:
    """Where a process group's store is dialled; empty for one that is not TCP's."""
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""
