"""Site discovery: who is where, found through the process group's store, and the same verdict on every rank."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from geocomm.errors import CommTimeoutError, InvalidArgumentError, VersionMismatchError
from geocomm.hub_address import remembered_hub
from geocomm.options import hub_address
from geocomm.records import from_record, layout_of

if TYPE_CHECKING:
    from torch.distributed import Store
    from torch.distributed.device_mesh import DeviceMesh

PROTOCOL_VERSION = 1
"""Of the rendezvous and the wire. Ranks with different ones do not understand each other."""


@dataclass(frozen=True)
class Presence:
    """Where a rank is, and what it was told of that (one_site.py)."""

    rank: int
    site: str | None
    machine: str = ""
    """Equal for ranks whose traffic never leaves one kernel and its network namespace."""
    machine_name: str = ""
    """For messages."""
    given: list[str] = field(default_factory=list)
    """What is set there that counts between sites only."""
    one_site: bool = False


@dataclass(frozen=True)
class RankInfo:
    """What one rank tells the others of its group; `error` alone if it cannot take part."""

    rank: int
    global_rank: int
    site: str | None = None
    host: str = ""
    port: int = 0
    process_id: str = ""
    outbound_only: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    codecs: list[str] = field(default_factory=list)
    agreed: dict[str, Any] = field(default_factory=dict)
    group: int = 0
    token: str = ""
    codec_speeds: dict[str, list[float]] = field(default_factory=dict)  # codec=auto: seconds per byte (auto_codec.py)
    detail_debugging: bool = False
    presence: dict[str, Any] = field(default_factory=dict)  # the fields of a Presence
    store_host: str = ""  # where torch's store is dialled, which carries plaintext; empty: not over TCP
    error: str = ""

    @property
    def description(self) -> str:
        """For messages: "rank 3 (site b, 10.0.0.2:4000)"."""
        return f"rank {self.global_rank} (site {self.site}, {self.host}:{self.port})"


def own_versions() -> dict[str, str]:
    """What must be equal on all ranks: geocomm's own version, the protocol's, the fields that ranks tell each other
    (which may differ between builds of one version), torch's minor version."""
    import torch

    from geocomm import __version__

    return {
        "geocomm": __version__,
        "protocol": str(PROTOCOL_VERSION),
        "rank records": layout_of(RankInfo, Presence),
        "torch": ".".join(torch.__version__.split(".")[:2]),
    }


def new_group_identity() -> tuple[int, str]:
    """Random number of a group and the token that lets its ranks in. Only rank 0's count."""
    return secrets.randbits(63) | 1, base64.b64encode(secrets.token_bytes(16)).decode()


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


def store_host(store: Store) -> str:
    """Where a process group's store is dialled; empty for one that is not TCP's."""
    from torch.distributed import PrefixStore, TCPStore

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, TCPStore) else ""


def publish(store: Store, own: RankInfo) -> None:
    """Tell the other ranks of the group."""
    store.set(f"geocomm/rank/{own.rank}", json.dumps(asdict(own)))


def exchange(store: Store, global_ranks: list[int], own: RankInfo, timeout: timedelta) -> list[RankInfo]:
    """Publish `own` and read the records of all ranks of the group, in rank order.

    The store may hold records of processes that are gone: torchrun keeps it when it restarts the ranks. So each rank
    also says which records it has read, until all have read the same, its own new one among them.
    Raises CommTimeoutError naming the ranks that did not come within `timeout`.
    """
    until = time.monotonic() + timeout.total_seconds()
    publish(store, own)
    keys = [f"geocomm/rank/{rank}" for rank in range(len(global_ranks))]
    views = [f"geocomm/view/{rank}" for rank in range(len(global_ranks))]
    said, pause_s = "", 0.01
    while True:
        try:
            store.wait(keys, timedelta(seconds=max(until - time.monotonic(), 0.001)))
        except Exception as error:  # each kind of store has its own
            missing = [global_ranks[rank] for rank, key in enumerate(keys) if not _present(store, key)]
            if not missing:
                raise
            raise _late(own, missing, len(keys), timeout) from error
        records = store.multi_get(keys)
        infos = [from_record(RankInfo, json.loads(record)) for record in records]
        if any(info.error for info in infos):
            return infos
        view = hashlib.sha256(b"\n".join(records)).hexdigest()
        if view != said:
            store.set(views[own.rank], view)
            said = view
        if store.check(views) and all(other.decode() == view for other in store.multi_get(views)):
            return infos
        if time.monotonic() > until:
            others = [
                rank for rank, key in enumerate(views) if not _present(store, key) or store.get(key) != view.encode()
            ]
            raise _late(own, [global_ranks[rank] for rank in others], len(keys), timeout)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.2)


def _late(own: RankInfo, ranks: list[int], size: int, timeout: timedelta) -> CommTimeoutError:
    return CommTimeoutError(
        f"rank {own.global_rank} waited {timeout.total_seconds():g} s for {ranks_text(ranks)} to join a group of "
        f"{size}; check that they run, and that all ranks create their process groups in the same order"
    )


def _present(store: Store, key: str) -> bool:
    try:
        return store.check([key])
    except Exception:  # a store that is gone has nothing
        return False


def check(infos: list[RankInfo]) -> None:
    """Raise what is wrong with the group as a whole: every rank sees the same records and comes to the same verdict."""
    failed = [info for info in infos if info.error]
    if failed:
        raise InvalidArgumentError(
            f"{ranks_text([info.global_rank for info in failed])} could not join the process group; "
            f"rank {failed[0].global_rank}: {failed[0].error}"
        )
    _check_equal(infos, "version of {}", lambda info: info.versions, VersionMismatchError)
    if any(info.site is None for info in infos) and any(info.site is not None for info in infos):
        without = [info.global_rank for info in infos if info.site is None]
        raise InvalidArgumentError(
            f"GEOCOMM_SITE is set on some ranks but not on {ranks_text(without)}; set it on every rank, or on none for "
            "one site"
        )
    if len({info.site for info in infos}) > 1:
        unreachable = sorted({info.site or "" for info in infos if info.outbound_only})
        if len(unreachable) > 1:
            raise InvalidArgumentError(
                f"sites {', '.join(unreachable)} are outbound-only (GEOCOMM_OUTBOUND_ONLY), and two such sites cannot "
                "connect: one site of a job can be. Let the others be dialled (GEOCOMM_PORT, GEOCOMM_ADDRESS, "
                "forwarded ports)"
            )
        _check_equal(infos, "option {}", lambda info: info.agreed, InvalidArgumentError)
        _check_equal(infos, "{}", lambda info: {"set of codecs": ", ".join(info.codecs)}, VersionMismatchError)


def _check_equal(
    infos: list[RankInfo], what: str, values_of: Callable[[RankInfo], dict[str, Any]], error: type[Exception]
) -> None:
    for name in sorted({name for info in infos for name in values_of(info)}):
        ranks_with: dict[Any, list[int]] = defaultdict(list)
        for info in infos:
            ranks_with[values_of(info).get(name)].append(info.global_rank)
        if len(ranks_with) > 1:
            sides = "; ".join(f"{ranks_text(ranks)}: {value}" for value, ranks in ranks_with.items())
            raise error(f"the ranks differ in {what.format(name)}: {sides}. Make it the same on all ranks")


def ranks_text(ranks: list[int]) -> str:
    """For messages: "rank 3", "ranks 1, 2", and not endless where many are meant."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def sites_of(infos: list[RankInfo]) -> tuple[list[int], list[str]]:
    """Index of each rank's site, and the sites' names in order of their lowest rank."""
    names: list[str] = []
    for info in infos:
        if (info.site or "") not in names:
            names.append(info.site or "")
    return [names.index(info.site or "") for info in infos], names


def path_channels(site_of_rank: Sequence[int], rank: int) -> list[int]:
    """For each peer of `rank`, the lanes of an operation, and so the busy channels, between the two sites."""
    sizes = Counter(site_of_rank)
    return [max(sizes[site_of_rank[rank]], sizes[site]) for site in site_of_rank]


def device_mesh(device_type: str = "cpu") -> DeviceMesh:
    """A DeviceMesh over all ranks with the dimensions "site" and "local"; device_type: "cpu" or "cuda".

    Collective: every rank of the default process group calls it. Raises InvalidArgumentError where the default process
    group is not geocomm's, or its sites have different numbers of ranks (a mesh is rectangular).
    """
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from geocomm.backend import process

    if process.world is None or process.world.backend.closed:
        raise InvalidArgumentError('device_mesh needs the default process group: init_process_group("geocomm") first')
    ranks_of: dict[str, list[int]] = {}
    for info in process.world.infos:
        ranks_of.setdefault(info.site or "", []).append(info.rank)
    if len({len(ranks) for ranks in ranks_of.values()}) > 1:
        sizes = ", ".join(f"{site}: {len(ranks)}" for site, ranks in ranks_of.items())
        raise InvalidArgumentError(f"a mesh needs sites of equal size; ranks per site: {sizes}")
    return DeviceMesh(device_type, torch.tensor(list(ranks_of.values())), mesh_dim_names=("site", "local"))
