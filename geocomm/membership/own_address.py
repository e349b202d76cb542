"""The address that this process has for others, and where its job meets."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from geocomm.core.addresses import HubAddress, is_any
from geocomm.core.environment import hub_address

if TYPE_CHECKING:
    from torch.distributed import Store

_last: HubAddress | None = None


def remember_hub(hub: HubAddress) -> None:
    """This process meets the others at `hub`."""
    global _last
    _last = hub


def remembered_hub() -> HubAddress | None:
    """The hub that this process last went to with init_method; None: it did not."""
    return _last


def own_address(meeting_host: str | None = None) -> str:
    """Source address of the route to where the job meets (None: its hub, else MASTER_ADDR), else loopback."""
    if meeting_host is None:
        hub = remembered_hub() or hub_address()
        meeting_host = hub.host if hub is not None else os.environ.get("MASTER_ADDR")
    if not meeting_host:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(meeting_host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # UDP: chooses the route, sends nothing
            return probe.getsockname()[0]
    except OSError:
        return "127.0.0.1"


def url_for_others(host: str, port: int) -> str:
    """The URL of what listens at `host`: where that is every address, by the one of the way to other networks."""
    if is_any(host):
        # Addresses of documentation, which are nobody's. What listens at :: is reached by IPv4, too.
        found = own_address("2001:db8::1") if ":" in host else ""
        host = found if ":" in found else own_address("192.0.2.1")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def store_host(store: Store) -> str:
    """Where a process group's store is dialled; empty for one that is not TCP's."""
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""
