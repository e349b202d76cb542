"""What a process has of the geocomm backend: its groups, and the one endpoint that they share."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from geocomm.core.environment import rdma_allow_tcp
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native, rdma_plugin
from geocomm.core.options import Options, codec_threads, listen_port, transport_keys
from geocomm.core.transport_choice import TransportChoice
from geocomm.group.backend.inner_groups import forget_devices, leave_devices_to_parent
from geocomm.group.backend.policy import Policy
from geocomm.group.membership.rank_record import RankInfo
from geocomm.metrics import sources
from geocomm.metrics.exporters import reporting

if TYPE_CHECKING:
    from geocomm._C import Endpoint, ProcessGroupGeocomm


@dataclass
class Group:
    """A process group of this process, and what its sub-groups are derived from."""

    backend: ProcessGroupGeocomm
    store: dist.Store
    options: Options
    infos: list[RankInfo]
    policy: Policy | None = None  # None inside one site
    splits: int = 0
    # Of the default group alone.
    inside: dist.ProcessGroup | None = None  # of this site's ranks (`Sites.inside` makes it)
    # Groups inside one site so far, by their ranks.
    parts: Counter[tuple[int, ...]] = field(default_factory=Counter[tuple[int, ...]])
    is_reconfigurable: bool = False  # its ranks change: another group follows, in which they have other numbers
    message_users: int = 0  # how many have taken a range of tags (ReservedTags)

    @property
    def timeout(self) -> timedelta:
        """The time that an operation of the group may take."""
        return self.backend.options._timeout

    @property
    def global_ranks(self) -> list[int]:
        return [info.global_rank for info in self.infos]


class Runtime:
    """What this process has once, whatever its process groups. A forked child begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Without any group."""
        self.world: Group | None = None  # the last default process group
        self.past: dict[str, float] = {}  # counters of groups that are gone
        self._groups: list[Group] = []
        self._endpoint: tuple[dict[str, Any], Endpoint] | None = None
        self._left: tuple[dict[str, Any], weakref.ref[Endpoint]] | None = None  # by the groups; mail may still use it
        self._rank_and_site: dict[str, tuple[int, str | None]] = {}  # of peers, by what the endpoint calls them
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def endpoint(self, options: Options, host: str, believed_refusal: timedelta | None = None) -> Generator[Endpoint]:
        """The listener that all groups share, kept open inside the context; a new one if the last group closed it.

        believed_refusal: a peer whose machine refuses connections for this time counts as lost; None: after 5 s.
        """
        keys = transport_keys(options)
        settings = {
            "bind_address": host if options.security == "required" and keys is None else "",
            "port": listen_port(options),
            "streams": options.streams or 0,
            "insecure": options.security == "insecure",
            "keys": keys or "",
            "site": (options.site or "") if keys else "",
            "link_deadline": options.link_deadline,
            "outbound_only": options.outbound_only,
            "max_pacing_bps": options.max_pacing_bps or 0,
            "threads": codec_threads(options),
            "rdma_plugin": rdma_plugin() if TransportChoice.parse(options.transport).is_for(options.site) else "",
            "rdma_trusted": options.rdma_trusted,
            "rdma_allow_tcp": rdma_allow_tcp(),
            **({} if believed_refusal is None else {"believed_refusal": believed_refusal}),
        }
        with self._lock:
            endpoint = self._acquire(settings)
        try:
            yield endpoint
        finally:
            if endpoint.release():
                with self._lock:
                    if self._endpoint is not None and self._endpoint[1] is endpoint:
                        self._endpoint = None

    def _acquire(self, settings: dict[str, Any]) -> Endpoint:
        if self._endpoint is None and self._left is not None and (endpoint := self._left[1]()) is not None:
            self._endpoint = (self._left[0], endpoint)
        self._left = None
        if self._endpoint is not None and self._endpoint[1].acquire():
            current, endpoint = self._endpoint
            if settings == current:
                return endpoint
            endpoint.release()
            different = [
                f"{name} is {settings.get(name)!r} and was {current.get(name)!r}"
                for name in settings | current
                if settings.get(name) != current.get(name)
            ]
            raise InvalidArgumentError(
                "all process groups of a process share its connections, so these options cannot differ between them: "
                + "; ".join(different)
            )
        endpoint = native().Endpoint(**settings)
        endpoint.acquire()
        self._endpoint = (settings, endpoint)
        self._rank_and_site.clear()
        return endpoint

    def add(self, group: Group) -> None:
        with self._lock:
            self._forget_closed()
            self._groups.append(group)
            self._rank_and_site |= {info.description: (info.global_rank, info.site) for info in group.infos}

    def name_peer(self, description: str, rank: int, site: str) -> None:
        """Name a peer that is in no group, by what the endpoint calls it: its rank at its site."""
        with self._lock:
            self._rank_and_site[description] = (rank, site)

    def find(self, backend: ProcessGroupGeocomm) -> Group:
        """The living group of a backend. Raises InvalidArgumentError where there is none."""
        with self._lock:
            found = next((group for group in self._groups if group.backend is backend), None)
        if found is None:
            raise InvalidArgumentError("not a living process group of the geocomm backend")
        return found

    def group_of(self, group: dist.ProcessGroup | None) -> Group:
        """The group behind torch's process group; None: behind the default one."""
        if group is None and self.world is not None:
            return self.world
        backend: Any = None if group is None else group._get_backend(torch.device("cpu"))
        return self.find(getattr(backend, "current", backend))  # of a group whose ranks change: those that are there

    def group_stats(self) -> list[dict[str, Any]]:
        """Counters of the living groups that span sites, and what they have agreed on."""
        with self._lock:
            self._forget_closed()
            return [
                group.backend.stats() | {"policy": group.policy.describe() if group.policy else None}
                for group in self._groups
                if group.backend.spans_sites
            ]

    def _forget_closed(self) -> None:
        """Lets go of groups that were shut down (their threads end with them), keeping their counters in `past`."""
        for group in [group for group in self._groups if group.backend.closed]:
            for name, value in group.backend.stats().items():
                self.past[name] = self.past.get(name, 0) + value
            self._groups.remove(group)

    def channel_stats(self) -> list[dict[str, Any]]:
        """Counters of the links, with rank and site of the peer (None where neither a group nor mail has it)."""
        with self._lock:
            rows = self._endpoint[1].channel_stats() if self._endpoint else []
            for row in rows:
                row["rank"], row["site"] = self._rank_and_site.get(row["peer"], (None, None))
            return rows

    def op_log(self, after: int) -> list[dict[str, Any]]:
        """The operations with a number above `after`, with rank and site of each peer, as in `channel_stats`."""
        rows = native().op_log(after)
        with self._lock:
            for row in rows:
                for peer in row["peers"]:
                    peer["rank"], peer["site"] = self._rank_and_site.get(peer["peer"], (None, None))
        return rows

    def buffer_usage(self) -> dict[str, int]:
        """Memory of messages; empty where no group has spanned sites."""
        with self._lock:
            return self._endpoint[1].buffer_usage() if self._endpoint else {}

    def expect_rates(self, bytes_per_s: Mapping[str, float]) -> None:
        """What the links to peers carry, by what the endpoint calls them."""
        with self._lock:
            if self._endpoint and bytes_per_s:
                self._endpoint[1].expect_rates(dict(bytes_per_s))

    def on_shutdown(self) -> None:
        """A group was shut down; its links are still there. What is kept for groups goes with the last one."""
        with self._lock:
            last = all(group.backend.closed for group in self._groups)
        if last:
            reporting.stop()
        with self._lock:
            self._forget_closed()
            if self.world is not None and self.world.backend.closed:
                self.world = None
            if not self._groups and self._endpoint is not None:
                settings, endpoint = self._endpoint
                self._left, self._endpoint = (settings, weakref.ref(endpoint)), None
            if not self._groups:
                forget_devices()

    def leave_to_parent(self) -> None:
        """Forget the groups, in a forked child: their native parts leave everything to the parent when they are freed.
        Gloo's do not, so its devices are kept."""
        leave_devices_to_parent()
        self.begin()

    def close(self) -> None:
        """Close the groups that users never destroyed, at exit: queued data still reaches the peers."""
        reporting.stop()
        with self._lock:
            groups, self._groups = self._groups, []
        for group in reversed(groups):
            with contextlib.suppress(Exception):
                group.backend.shutdown()


runtime = Runtime()
atexit.register(runtime.close)
os.register_at_fork(after_in_child=runtime.leave_to_parent)
sources.register("groups", runtime.group_stats)
sources.register("past groups", lambda: runtime.past)
sources.register("peers", runtime.channel_stats)
sources.register("operations", lambda: runtime.op_log)
sources.register("memory", runtime.buffer_usage)
sources.register("last error", lambda: native().last_error())


FIRST_RESERVED_TAG = 0x7F000000
"""Tags from here on are geocomm's own; programs use smaller ones."""
KINDS = 6
"""The number of kinds of messages of one user of tags."""
MOST_SITES = 1 << 10
_USERS = 1 << 11


@dataclass(frozen=True)
class ReservedTags:
    """The tags of one user of messages, apart from those of others and of users before it."""

    number: int

    @classmethod
    def take(cls, world: Group) -> ReservedTags:
        """The next ones of the default group `world`. Every rank of it takes its own, all in the same order."""
        world.message_users += 1
        return cls((world.message_users - 1) % _USERS)

    def tag(self, kind: int, site: int) -> int:
        """The tag of messages of a kind (0 to below KINDS) from the site of this index."""
        return FIRST_RESERVED_TAG + (self.number * KINDS + kind) * MOST_SITES + site
