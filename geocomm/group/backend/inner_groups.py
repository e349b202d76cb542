"""The stock process groups inside a site, which geocomm's stages before and after the exchange run on."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


class GatheredStore(dist.Store):
    """Reads what all ranks have written at once.

    Gloo writes the address of each rank under its number, and then waits for them and reads them one by one: two round
    trips to the store each. The store of the job may be at another site, 300 ms away.
    """

    def __init__(self, store: dist.Store, ranks: int) -> None:
        """store: of one group alone, which has `ranks` ranks."""
        super().__init__()
        self._store: Any = store
        self._ranks = ranks
        self._read: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        """Write."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """What was written; waits for it."""
        if key not in self._read:
            self.wait([key])
        return self._read[key]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Until all keys are written, and with each those of the other ranks."""
        wanted = [key for one in keys for key in self._of_all_ranks(one) if key not in self._read]
        if wanted:
            self._store.wait(wanted, *(() if timeout is None else (timeout,)))
            self._read |= zip(wanted, self._store.multi_get(wanted), strict=True)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are written."""
        return self._store.check(list(keys))

    def add(self, key: str, value: int) -> int:
        """Add to a number; the sum."""
        return self._store.add(key, value)

    def delete_key(self, key: str) -> bool:
        """Whether there was one."""
        return self._store.delete_key(key)

    def _of_all_ranks(self, key: str) -> list[str]:
        """The keys like this one of all ranks, if it ends with the number of one."""
        head, _, rank = key.rpartition("/")
        return [f"{head}/{other}" for other in range(self._ranks)] if rank.isdigit() else [key]


# The inner backend's own watchdog must not end an operation that waits for the WAN.
_INNER_TIMEOUT_MARGIN = timedelta(minutes=10)
_devices_of_parent: list[Any] = []
_rendezvous: list[GatheredStore] = []  # Gloo does not keep Python's objects alive


@functools.cache
def _gloo_devices() -> list[Any]:
    """What all inner Gloo groups of this process connect through: a polling thread each, hence shared."""
    of_torch: Any = dist.ProcessGroupGloo  # torch's stub has no types of these two
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    if not interfaces:
        return [of_torch.create_default_device()]
    return [of_torch.create_device(interface=name) for name in interfaces]


def forget_devices() -> None:
    """No group is left: the next one makes devices anew."""
    _gloo_devices.cache_clear()
    _rendezvous.clear()


def leave_devices_to_parent() -> None:
    """Leave the devices to the parent, in a forked child: it must not free them."""
    if _gloo_devices.cache_info().currsize:
        _devices_of_parent.append(_gloo_devices())
        _gloo_devices.cache_clear()


def inner_backends(
    store: dist.Store, rank: int, site_of_rank: list[int], timeout: timedelta
) -> dict[str, tuple[Any, Any]]:
    """The stock backends over the ranks of this rank's site: one for each stage inside the site, or one for all where
    there is one site. Connections are made here (Gloo) or on first use (NCCL).

    It returns once all ranks of the site have connected: one that is done may leave at once, and Gloo takes its closed
    connections for a crash where another still connects.
    """
    site = site_of_rank[rank]
    members = [r for r, s in enumerate(site_of_rank) if s == site]
    spans_sites = len(members) < len(site_of_rank)
    if spans_sites and len(members) == 1:
        return {}
    local_rank = members.index(rank)

    def gloo(stage: str) -> Any:
        prefix = GatheredStore(dist.PrefixStore(f"geocomm/inner/{site}/gloo-{stage}/", store), len(members))
        _rendezvous.append(prefix)
        of_torch: Any = dist.ProcessGroupGloo  # torch's stub lacks its options
        options = of_torch._Options()
        options._devices = _gloo_devices()
        options._threads = 1 if spans_sites else 2 * len(options._devices)  # a stage has one operation at a time
        options._timeout = timeout
        return dist.ProcessGroupGloo(prefix, local_rank, len(members), options)

    def nccl(stage: str) -> Any:
        prefix = dist.PrefixStore(f"geocomm/inner/{site}/nccl-{stage}/", store)
        options = dist.ProcessGroupNCCL.Options()
        options.is_high_priority_stream = False
        options._timeout = timeout + _INNER_TIMEOUT_MARGIN * spans_sites
        return dist.ProcessGroupNCCL(prefix, local_rank, len(members), options)

    makers = {"cpu": gloo}
    if torch.cuda.is_available() and torch.cuda.device_count() > 0 and dist.is_nccl_available():
        makers["cuda"] = nccl
    inner: dict[str, tuple[Any, Any]] = {}
    for device, make in makers.items():
        first = make("pre")
        inner[device] = (first, make("post") if spans_sites else first)
    last_connected = inner["cpu"][1]
    last_connected.barrier().wait()
    return inner
