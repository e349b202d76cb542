"""Making process groups: site discovery, the inner groups of the site, and the native backend over both."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from geocomm.codecs.codec_spec import AUTO, collective_codec
from geocomm.core.addresses import is_loopback
from geocomm.core.environment import collector_socket, gpu_batches, telemetry_folder
from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.installation import build_facts
from geocomm.core.message_log import announce
from geocomm.core.native import native
from geocomm.core.options import Options, codec_threads, transport_keys
from geocomm.core.place import local_rank
from geocomm.core.site import site_name
from geocomm.core.transport_choice import TransportChoice
from geocomm.core.units import count_text
from geocomm.group.backend import group_admission, other_backends
from geocomm.group.backend.inner_groups import inner_backends
from geocomm.group.backend.policy import Policy, first_policy, links_of_group
from geocomm.group.backend.policy_epochs import note
from geocomm.group.backend.runtime import Group, runtime
from geocomm.group.membership.group_agreement import check, exchange, publish
from geocomm.group.membership.one_site import Scope, own_presence
from geocomm.group.membership.own_address import advertised, store_host
from geocomm.group.membership.rank_record import (
    RankInfo,
    new_group_identity,
    own_process,
    own_versions,
    path_channels,
    sites_of,
)
from geocomm.group.planning import codec_choice
from geocomm.group.planning.coding_place import choose_places
from geocomm.group.rendezvous.to_collector import collect_here
from geocomm.metrics.events import events
from geocomm.metrics.exporters import check_reporting, reporting
from geocomm.security.key_exchange import key_exchange
from geocomm.security.key_folder import Keys, KeysError

if TYPE_CHECKING:
    from geocomm._C import Endpoint, ProcessGroupGeocomm


def create_backend(backend_options: Any, group_options: object) -> ProcessGroupGeocomm:
    """The creator that torch calls for every process group with the backend "geocomm" (`_autoload` registers it).

    backend_options: torch's `_DistributedBackendOptions`. group_options: `geocomm.Options`, or None (then those of the
    default process group, else of the environment). Raises geocomm's errors. What is wrong on one rank, or between the
    ranks, ends the creation on all of them.
    """
    is_world = not backend_options.global_ranks_in_group
    if runtime.world is not None and runtime.world.is_reconfigurable and not is_world:
        raise UnsupportedError(
            "a process group whose ranks change (enable_reconfigure) has no parts: new_group, and device meshes of "
            "several groups, are not there. Use the default process group itself"
        )
    inherited = None if is_world or runtime.world is None else runtime.world.options

    def options_of_group() -> Options:
        return own_options(group_options) or inherited or Options()

    global_ranks = list(backend_options.global_ranks_in_group) or list(range(backend_options.group_size))
    if is_world:
        scope = Scope.JOB
    elif runtime.world is not None and not runtime.world.backend.closed:
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
        inherits=group_options is None,
    )
    if is_world:
        become_world(made)
    return made.backend


def own_options(group_options: object) -> Options | None:
    """The pg_options of a group, which must be geocomm's; None: it was given none."""
    if group_options is not None and not isinstance(group_options, Options):
        raise TypeError(
            f"pg_options of the geocomm backend must be geocomm.Options(...), not {type(group_options).__name__}"
        )
    return group_options


def create_elastic_backend(
    store: dist.Store, rank: int, size: int, timeout: timedelta, options: Options
) -> ProcessGroupGeocomm:
    """A group of the `size` ranks that are there now, outside of torch's registry: the caller ends it.

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
    *,
    inherits: bool = False,
) -> Group:
    """inherits: whether the options are those of the default process group, if there is one."""
    with contextlib.ExitStack() as held:
        world = runtime.world if inherits and scope is Scope.PART else None
        infos = [] if world is None else _known_inside_a_site(world, global_ranks)
        if world is not None and infos:
            own, options, endpoint, store = infos[rank], world.options, None, world.store
        else:
            try:
                own, options, endpoint = introduce(rank, global_ranks[rank], store, options_of_group, held)
            except Exception as error:
                # The others would wait for this rank: tell them, then raise here what it was.
                told = f"{type(error).__name__}: {error}"
                publish(store, RankInfo(rank=rank, global_rank=global_ranks[rank], site=site_name(), error=told))
                raise
            infos = exchange(store, global_ranks, own, timeout)
            check(infos)
            group_admission.check_one_site(infos, rank, scope)
        # The store may be older than these processes (`exchange`): what is left in it must not be taken for theirs.
        store = dist.PrefixStore(f"geocomm/group/{infos[0].group}/", store)
        site_names = sites_of(infos)[1]
        spans_sites = len(site_names) > 1
        if spans_sites:
            group_admission.check_security(infos, options, own.global_rank)
            if scope is Scope.JOB:  # others may have fewer sites than the options name
                group_admission.check_transport(site_names, options)
        policy = first_policy(store, rank, infos, options) if spans_sites else None
        made = build_group(store, rank, infos, timeout, options, endpoint, policy, split=_split)
    begin_reports(made)
    return made


def build_group(
    store: dist.Store,
    rank: int,
    infos: list[RankInfo],
    timeout: timedelta,
    options: Options,
    endpoint: Endpoint | None,
    policy: Policy | None,
    *,
    split: Callable[[ProcessGroupGeocomm, list[int], Any], ProcessGroupGeocomm | None] | None,
) -> Group:
    """The group of ranks that have agreed: its inner groups are connected, its links to other sites begin to be.

    store: of this group alone; the ranks of a site meet in it. endpoint, policy: where it spans sites.
    """
    site_of_rank, site_names = sites_of(infos)
    spans_sites = len(site_names) > 1
    backend = native().ProcessGroupGeocomm(
        rank=rank,
        size=len(infos),
        timeout=timeout,
        inner=inner_backends(store, rank, site_of_rank, timeout),
        site_of_rank=site_of_rank,
        site_names=site_names,
        endpoint=endpoint if spans_sites else None,
        group=infos[0].group,
        token=base64.b64decode(infos[0].token),
        peers=_peers(infos, rank, options) if spans_sites else [],
        policy=policy.for_native() if policy else None,
        min_compress_bytes=options.min_compress_bytes,
        preserve_inputs=options.preserve_inputs,
        split=split,
        on_shutdown=runtime.on_shutdown,
    )
    made = Group(backend, store, options, infos)
    events.identify(infos[rank].global_rank, options.site)
    if policy:
        note(made, policy)
    return made


def begin_reports(made: Group) -> None:
    """The group counts from now on, and this rank reports what it does."""
    runtime.add(made)
    reporting.start(made.options, made.global_ranks[made.backend.rank()], _collector)


def become_world(made: Group) -> None:
    """The group is the default one."""
    runtime.world = made
    other_backends.remember(made.infos)
    if made.policy and is_first_of_site(made.infos, made.backend.rank()):
        announce(ready_line(made.infos, made.options))


def _collector() -> str | None:
    """The socket that takes this rank's reports: of `geocomm run`, or of this machine's ranks themselves."""
    if (given := collector_socket()) is not None:
        return given
    folder = telemetry_folder()
    return None if folder is None else collect_here(folder, local_rank())


def _known_inside_a_site(world: Group, global_ranks: list[int]) -> list[RankInfo]:
    """The records of a group of these ranks, where all are at one site: the ranks of the default group `world` have
    agreed on them, and what they would say again takes as many round trips to the store. Empty where they are not.

    Every rank of the group makes the same number of it, and counts groups of equal ranks for that.
    """
    if len({world.infos[rank].site for rank in global_ranks}) > 1:
        return []
    world.parts[tuple(global_ranks)] += 1
    name = f"{world.infos[0].group}/{global_ranks}/{world.parts[tuple(global_ranks)]}"
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 | 1
    return [replace(world.infos[one], rank=rank, group=number) for rank, one in enumerate(global_ranks)]


def introduce(
    rank: int,
    global_rank: int,
    store: dist.Store,
    options_of_group: Callable[[], Options],
    held: contextlib.ExitStack,
    believed_refusal: timedelta | None = None,
) -> tuple[RankInfo, Options, Endpoint | None]:
    """What this rank says of itself, and its endpoint where it may have to cross sites; `held` keeps that open."""
    options = options_of_group()
    options.validate()
    check_reporting(options)
    if options.keys and options.security == "required":
        group_admission.forbid_debug_server()
    core = native()
    form = AUTO if options.codec == AUTO else str(collective_codec(options.codec))
    hosts = advertised(options.address)
    endpoint = None
    # Without keys, a rank outside loopback is refused as soon as there are two sites: nothing to listen for.
    if options.site is not None and (options.security == "insecure" or options.keys or any(map(is_loopback, hosts))):
        endpoint = held.enter_context(runtime.endpoint(options, listening_host(hosts), believed_refusal))
    links = links_of_group(options)
    codes_on_gpu = _codes_on_gpu()
    if codes_on_gpu and gpu_batches():
        choose_places(torch.device("cuda", torch.cuda.current_device()), codec_threads(options))
    measured = codec_choice.worth_measuring(options, links, codes_on_gpu=codes_on_gpu)
    speeds = codec_choice.measure(measured, codec_threads(options))
    group, token = new_group_identity()
    own = RankInfo(
        rank=rank,
        global_rank=global_rank,
        site=options.site,
        hosts=hosts,
        port=endpoint.port if endpoint else 0,
        outbound_only=options.outbound_only,
        process_id=base64.b64encode(endpoint.id).decode() if endpoint else "",
        process=own_process(),
        versions=own_versions(),
        codecs=core.codec_names(),
        agreed=options.agreed() | {"codec": form, "links": links.digest() if links else "not given"},
        written={"codec": options.codec},
        codes_on_gpu=codes_on_gpu,
        codec_speeds={codec: list(speed) for codec, speed in speeds.items()},
        presence=asdict(own_presence(global_rank, options, hosts[0])),
        detail_debugging=dist.get_debug_level() == dist.DebugLevel.DETAIL,
        keys_site=_site_of(options),
        store_host=store_host(store),
        group=group,
        token=token,
    )
    return own, options, endpoint


def _codes_on_gpu() -> bool:
    """Whether lossy reductions of CUDA tensors are coded where they are."""
    facts = build_facts() if torch.cuda.is_available() else None
    return facts is not None and facts.cuda_kernels


def _site_of(options: Options) -> str:
    """Whose the keys are, where nothing else says the site; empty: there are none, or `site` does."""
    folder = transport_keys(options)
    if options.site is not None or folder is None:
        return ""
    try:
        return Keys.load(folder).identity.site
    except KeysError as error:
        raise InvalidArgumentError(str(error)) from error


def listening_host(hosts: list[str]) -> str:
    """The address of this rank to listen at without keys."""
    return next(filter(is_loopback, hosts), hosts[0])


def _ways(own: RankInfo, info: RankInfo) -> list[str]:
    """Where rank `own` dials rank `info`: at loopback inside a machine, where it has that, and nowhere else."""
    loopback = [host for host in info.hosts if is_loopback(host)]
    beyond = [host for host in info.hosts if not is_loopback(host)]
    return (loopback or beyond) if own.machine == info.machine else (beyond or loopback)


def _peers(infos: list[RankInfo], rank: int, options: Options) -> list[tuple[bytes, str, int, str, bool, int]]:
    """(process id, hosts with commas, port, description, over RDMA, channels on the path to it) of each rank."""
    choice = TransportChoice.parse(options.transport)
    own_site = infos[rank].site
    peers: list[tuple[bytes, str, int, str, bool, int]] = []
    for info, channels in zip(infos, path_channels(sites_of(infos)[0], rank), strict=True):
        # Another machine may have that address here: not even to be asked whether it lives.
        no_way = info.outbound_only and info.site != own_site
        host, port = ("", 0) if no_way else (",".join(_ways(infos[rank], info)), info.port)
        over_rdma = choice.between(own_site, info.site)
        peers.append((base64.b64decode(info.process_id), host, port, info.description, over_rdma, channels))
    return peers


def _split(parent: ProcessGroupGeocomm, ranks: list[int], options: Any) -> ProcessGroupGeocomm | None:
    """Sub-group of `ranks` (of the parent). torch calls it on all ranks of the parent.

    The store and the name that torch made for the child may differ between ranks, so the child meets in the parent's
    own store, under the number of the split and its lowest rank.
    """
    group = runtime.find(parent)
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


def is_first_of_site(infos: Sequence[RankInfo], rank: int) -> bool:
    """Whether no other rank of the group would say the line at the site of `rank`."""
    return all(info.site != infos[rank].site for info in infos[:rank])


def ready_line(infos: Sequence[RankInfo], options: Options) -> str:
    """Such as "group ready: 2 sites (frankfurt 2 ranks, virginia 1 rank), TLS 1.3 (X25519), codec none, 8 streams"."""
    ranks = Counter(info.site for info in infos)
    sites = ", ".join(f"{site} {count_text(count, 'rank')}" for site, count in ranks.items())
    parts = [
        f"{count_text(len(ranks), 'site')} ({sites})",
        f"TLS 1.3 ({key_exchange()})" if transport_keys(options) else "plaintext",
        f"codec {options.codec}",
        "streams as the link needs" if options.streams is None else f"{options.streams} streams a peer",
    ]
    if TransportChoice.parse(options.transport).any_rdma:
        parts.append(f"transport {options.transport}")
    return "group ready: " + ", ".join(parts)
