"""Making process groups: site discovery, the inner groups of the site, and the native backend over both."""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import ipaddress
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from geocomm import auto_codec, policy
from geocomm.codec import AUTO, collective_codec
from geocomm.errors import AuthFailedError, InvalidArgumentError, UnsupportedError
from geocomm.native import native, rdma_plugin
from geocomm.one_site import Scope, check_one_site, own_presence
from geocomm.options import Options, codec_threads, listen_port, rdma_allow_tcp, transport_keys
from geocomm.records import from_record
from geocomm.reporting import check_reporting, reporting
from geocomm.topology import (
    Presence,
    RankInfo,
    check,
    exchange,
    new_group_identity,
    own_address,
    own_versions,
    path_channels,
    publish,
    ranks_text,
    sites_of,
    store_host,
)
from geocomm.transport_choice import TransportChoice

if TYPE_CHECKING:
    from geocomm._C import Endpoint, ProcessGroupGeocomm

# The inner backend's own watchdog must not end an operation that waits for the WAN.
_INNER_TIMEOUT_MARGIN = timedelta(minutes=10)


@dataclass
class Group:
    """A process group of this process, and what its sub-groups are derived from."""

    backend: ProcessGroupGeocomm
    store: dist.Store
    options: Options
    infos: list[RankInfo]
    policy: policy.Policy | None = None  # None inside one site
    splits: int = 0

    @property
    def global_ranks(self) -> list[int]:
        return [info.global_rank for info in self.infos]


class Process:
    """What this process has once, whatever its process groups. A forked child begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Without any group."""
        self.world: Group | None = None  # the last default process group
        self.past: dict[str, float] = {}  # counters of groups that are gone
        self._groups: list[Group] = []
        self._endpoint: tuple[dict[str, Any], Endpoint] | None = None
        self._rank_and_site: dict[str, tuple[int, str | None]] = {}  # of peers, by what the endpoint calls them
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def endpoint(self, options: Options, host: str) -> Iterator[Endpoint]:
        """The listener that all groups share, kept open inside the context; a new one if the last group closed it."""
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
        if self._endpoint is not None and self._endpoint[1].acquire():
            current, endpoint = self._endpoint
            if settings == current:
                return endpoint
            endpoint.release()
            different = [
                f"{name} is {new!r} and was {current[name]!r}" for name, new in settings.items() if new != current[name]
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

    def find(self, backend: ProcessGroupGeocomm) -> Group:
        with self._lock:
            return next(group for group in self._groups if group.backend is backend)

    def group_of(self, group: dist.ProcessGroup | None) -> Group:
        """That of torch's process group; None: of the default one."""
        if group is None and self.world is not None:
            return self.world
        backend = None if group is None else group._get_backend(torch.device("cpu"))
        with self._lock:
            found = [one for one in self._groups if one.backend is backend]
        if not found:
            raise InvalidArgumentError("not a living process group of the geocomm backend")
        return found[0]

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
        """Counters of the links, with rank and site of the peer (None where no group has it)."""
        with self._lock:
            rows = self._endpoint[1].channel_stats() if self._endpoint else []
            for row in rows:
                row["rank"], row["site"] = self._rank_and_site.get(row["peer"], (None, None))
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
            if not self._groups:
                self._endpoint = None
                _gloo_devices.cache_clear()

    def leave_to_parent(self) -> None:
        """In a forked child: forgets the groups, whose native parts leave everything to the parent when they are freed.
        Gloo's do not, so its devices are kept."""
        if _gloo_devices.cache_info().currsize:
            _devices_of_parent.append(_gloo_devices())
            _gloo_devices.cache_clear()
        self.begin()

    def close(self) -> None:
        """At exit, for users who never destroy their groups: what is queued still reaches the peers."""
        reporting.stop()
        with self._lock:
            groups, self._groups = self._groups, []
        for group in reversed(groups):
            with contextlib.suppress(Exception):
                group.backend.shutdown()


process = Process()
atexit.register(process.close)
os.register_at_fork(after_in_child=process.leave_to_parent)
_devices_of_parent: list[Any] = []


def create_backend(backend_options: Any, group_options: object) -> ProcessGroupGeocomm:
    """The creator that torch calls for every process group with the backend "geocomm" (`_autoload` registers it).

    backend_options: torch's `_DistributedBackendOptions`. group_options: `geocomm.Options`, or None (then those of the
    default process group, else of the environment). Raises geocomm's errors. What is wrong on one rank, or between the
    ranks, ends the creation on all of them.
    """
    is_world = not backend_options.global_ranks_in_group
    inherited = None if is_world or process.world is None else process.world.options

    def options_of_group() -> Options:
        if group_options is not None and not isinstance(group_options, Options):
            raise TypeError(
                f"pg_options of the geocomm backend must be geocomm.Options(...), not {type(group_options).__name__}"
            )
        return group_options or inherited or Options()

    global_ranks = list(backend_options.global_ranks_in_group) or list(range(backend_options.group_size))
    if is_world:
        scope = Scope.JOB
    elif process.world is not None and not process.world.backend.closed:
        scope = Scope.PART
    else:  # the default process group is another backend's
        scope = Scope.JOB if len(global_ranks) == dist.get_world_size() else Scope.UNKNOWN
    made = _make_group(
        backend_options.store,
        backend_options.group_rank,
        global_ranks,
        backend_options.timeout,
        options_of_group,
        scope,
    )
    if is_world:
        process.world = made
    return made.backend


def create_elastic_backend(
    store: dist.Store, rank: int, size: int, timeout: timedelta, options: Options
) -> ProcessGroupGeocomm:
    """A group of the `size` ranks that are there now, outside of torch's registry: whoever asks for it ends it.

    store: of this group alone. Errors as in `create_backend`.
    """
    return _make_group(store, rank, list(range(size)), timeout, lambda: options, Scope.UNKNOWN).backend


def _make_group(
    store: dist.Store,
    rank: int,
    global_ranks: list[int],
    timeout: timedelta,
    options_of_group: Callable[[], Options],
    scope: Scope,
) -> Group:
    with contextlib.ExitStack() as held:
        try:
            own, options, endpoint = _introduce(rank, global_ranks[rank], store, options_of_group, held)
        except Exception as error:
            # The others would wait for this rank: tell them, then raise here what it was.
            publish(
                store, RankInfo(rank=rank, global_rank=global_ranks[rank], error=f"{type(error).__name__}: {error}")
            )
            raise
        infos = exchange(store, global_ranks, own, timeout)
        check(infos)
        _check_one_site(infos, rank, scope)
        # The store may be older than these processes (`exchange`): what is left in it must not be taken for theirs.
        store = dist.PrefixStore(f"geocomm/group/{infos[0].group}/", store)
        site_of_rank, site_names = sites_of(infos)
        spans_sites = len(site_names) > 1
        if spans_sites:
            _check_security(infos, options)
            if scope is Scope.JOB:  # others may have fewer sites than the options name
                _check_transport(site_names, options)
        backend = native().ProcessGroupGeocomm(
            rank=rank,
            size=len(infos),
            timeout=timeout,
            inner=_inner_backends(store, rank, site_of_rank, timeout),
            site_of_rank=site_of_rank,
            site_names=site_names,
            endpoint=endpoint if spans_sites else None,
            group=infos[0].group,
            token=base64.b64decode(infos[0].token),
            peers=_peers(infos, rank, options) if spans_sites else [],
            codec="none" if options.codec == AUTO else options.codec,
            min_compress_bytes=options.min_compress_bytes,
            preserve_inputs=options.preserve_inputs,
            split=_split,
            on_shutdown=process.on_shutdown,
        )
        made = Group(backend, store, options, infos)
        if spans_sites:
            policy.apply(made, policy.first_policy(store, rank, infos, options))
    process.add(made)
    reporting.start(options, global_ranks[rank])
    return made


def _introduce(
    rank: int,
    global_rank: int,
    store: dist.Store,
    options_of_group: Callable[[], Options],
    held: contextlib.ExitStack,
) -> tuple[RankInfo, Options, Endpoint | None]:
    """What this rank says of itself, and its endpoint where it may have to cross sites; `held` keeps that open."""
    options = options_of_group()
    options.validate()
    check_reporting(options)
    core = native()
    options = options.replace(codec=collective_codec(options.codec))
    host = options.address or own_address()
    endpoint = None
    # Without keys, a rank outside loopback is refused as soon as there are two sites: nothing to listen for.
    if options.site is not None and (options.security == "insecure" or options.keys or _is_loopback(host)):
        endpoint = held.enter_context(process.endpoint(options, host))
    links = policy.links_of_group(options)
    speeds = auto_codec.measure(auto_codec.candidates(options), codec_threads(options)) if options.codec == AUTO else {}
    group, token = new_group_identity()
    own = RankInfo(
        rank=rank,
        global_rank=global_rank,
        site=options.site,
        host=host,
        port=endpoint.port if endpoint else 0,
        outbound_only=options.outbound_only,
        process_id=base64.b64encode(endpoint.id).decode() if endpoint else "",
        versions=own_versions(),
        codecs=core.codec_names(),
        agreed=options.agreed() | {"links": links.digest() if links else "not given"},
        codec_speeds={codec: list(speed) for codec, speed in speeds.items()},
        presence=asdict(own_presence(global_rank, options, host)),
        detail_debugging=dist.get_debug_level() == dist.DebugLevel.DETAIL,
        store_host=store_host(store),
        group=group,
        token=token,
    )
    return own, options, endpoint


def _peers(infos: list[RankInfo], rank: int, options: Options) -> list[tuple[bytes, str, int, str, bool, int]]:
    """(process id, host, port, description, over RDMA, channels on the path to it) of each rank."""
    choice = TransportChoice.parse(options.transport)
    own_site = infos[rank].site
    peers = []
    for info, channels in zip(infos, path_channels(sites_of(infos)[0], rank), strict=True):
        # Another machine may have that address here: not even to be asked whether it lives.
        no_way = info.outbound_only and info.site != own_site
        host, port = ("", 0) if no_way else (info.host, info.port)
        over_rdma = choice.between(own_site, info.site)
        peers.append((base64.b64decode(info.process_id), host, port, info.description, over_rdma, channels))
    return peers


def _check_one_site(infos: list[RankInfo], rank: int, scope: Scope) -> None:
    warning = check_one_site([from_record(Presence, info.presence) for info in infos], scope)
    if warning and rank == 0:
        print(f"geocomm: WARNING: {warning}", file=sys.stderr)


def _check_transport(site_names: list[str], options: Options) -> None:
    unknown = TransportChoice.parse(options.transport).unknown_sites(site_names)
    if unknown:
        raise InvalidArgumentError(
            f"transport={options.transport} names {', '.join(unknown)}, but the sites of the job are "
            f"{', '.join(site_names)}"
        )


def _check_security(infos: list[RankInfo], options: Options) -> None:
    outside = [info for info in infos if not _is_loopback(info.host)]
    if options.security == "required":
        if outside and not options.keys:
            raise AuthFailedError(
                f"security=required, but there are no keys for TLS, and {outside[0].description} is not on loopback. "
                "Make keys with `geocomm keygen` and set GEOCOMM_KEYS to the folder of each site; or, to send "
                "plaintext over a network that you trust, GEOCOMM_SECURITY=insecure on every rank"
            )
        debugged = [info.global_rank for info in infos if info.detail_debugging]
        if debugged:
            raise UnsupportedError(
                f"TORCH_DISTRIBUTED_DEBUG=DETAIL (on {ranks_text(debugged)}) makes torch connect all ranks over "
                "plaintext Gloo, which security=required forbids across sites; use INFO, or GEOCOMM_SECURITY=insecure"
            )
        exposed = [info for info in infos if info.store_host and not _is_loopback(info.store_host)]
        if exposed:
            raise AuthFailedError(
                f"torch's store at {exposed[0].store_host} carries plaintext, which security=required forbids across "
                "sites; meet at a hub: geocomm run --hub HOST:PORT -- TORCHRUN-ARGUMENTS, or "
                'init_method="geocomm://HOST:PORT"; or trust the network: GEOCOMM_SECURITY=insecure on every rank'
            )
    elif outside and int(os.environ.get("LOCAL_RANK", "0") or "0") == 0:
        print(
            "geocomm: WARNING: security=insecure: everything between the sites travels as PLAINTEXT, and whoever can "
            "reach the port can try to connect",
            file=sys.stderr,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@functools.cache
def _gloo_devices() -> list[Any]:
    """What all inner Gloo groups of this process connect through: a polling thread each, hence shared."""
    interfaces = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    if not interfaces:
        return [dist.ProcessGroupGloo.create_default_device()]
    return [dist.ProcessGroupGloo.create_device(interface=name) for name in interfaces]


def _inner_backends(
    store: dist.Store, rank: int, site_of_rank: list[int], timeout: timedelta
) -> dict[str, tuple[Any, Any]]:
    """The stock backends over the ranks of this rank's site: one for each stage inside the site, or one for all where
    there is one site. Connections are made here (Gloo) or on first use (NCCL)."""
    site = site_of_rank[rank]
    members = [r for r, s in enumerate(site_of_rank) if s == site]
    spans_sites = len(members) < len(site_of_rank)
    if spans_sites and len(members) == 1:
        return {}
    local_rank = members.index(rank)

    def gloo(stage: str) -> Any:
        prefix = dist.PrefixStore(f"geocomm/inner/{site}/gloo-{stage}/", store)
        options = dist.ProcessGroupGloo._Options()
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
    inner = {}
    for device, make in makers.items():
        first = make("pre")
        inner[device] = (first, make("post") if spans_sites else first)
    return inner


def _split(parent: ProcessGroupGeocomm, ranks: list[int], options: Any) -> ProcessGroupGeocomm | None:
    """Sub-group of `ranks` (of the parent). torch calls it on all ranks of the parent.

    The store and the name that torch made for the child may differ between ranks, so the child meets in the parent's
    own store, under the number of the split and its lowest rank.
    """
    group = process.find(parent)
    number = group.splits
    group.splits += 1
    parent_rank = parent.rank()
    if parent_rank not in ranks:
        return None
    store = dist.PrefixStore(f"geocomm/split/{number}/{min(ranks)}/", group.store)
    global_ranks = [group.global_ranks[rank] for rank in ranks]
    made = _make_group(
        store, ranks.index(parent_rank), global_ranks, options._timeout, lambda: group.options, Scope.PART
    )
    return made.backend


__all__ = ["Process", "create_backend", "create_elastic_backend", "process"]
