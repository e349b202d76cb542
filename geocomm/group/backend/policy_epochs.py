"""Epochs of a group's policy: carrying one out, and beginning the next from what operations have seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from geocomm.codecs.codec_spec import AUTO
from geocomm.core.errors import GeocommError, OperationTimeoutError
from geocomm.core.link_table import Links, table_of
from geocomm.core.message_log import logger
from geocomm.group.backend.policy import Policy, agree
from geocomm.group.backend.runtime import Group, runtime
from geocomm.group.membership.rank_record import RankInfo, path_channels, ranks_text, sites_of
from geocomm.group.membership.roll_call import Absent, exchange
from geocomm.metrics.events import events

if TYPE_CHECKING:
    import torch.distributed as dist

_LEAST_BYTES = 1 << 20
_LEAST_SECONDS = 0.001


def apply(group: Group, policy: Policy) -> None:
    """Have the group follow `policy` from its next operation on. Logs a codec that changed."""
    group.backend.set_policy(policy.for_native())
    note(group, policy)


def note(group: Group, policy: Policy) -> None:
    """Record that the group follows `policy`, and tell the process's channels what rates to expect."""
    runtime.expect_rates(channel_rates(policy.links, group.infos, group.backend.rank()))
    before = group.policy.codecs if group.policy else None
    if group.options.codec == AUTO and policy.codecs != before:
        sizes = ", ".join(f"{codec} from {size} bytes" for size, codec in policy.codecs) or "none"
        logger().info(f"codec auto, epoch {policy.epoch}: {sizes}")
    group.policy = policy
    events.record(
        "policy_epoch",
        epoch=policy.epoch,
        ranks=len(group.infos),
        sites=list(policy.links.sites),
        links=policy.links.source,
        codecs=[list(pair) for pair in policy.codecs],
    )


def channel_rates(links: Links, infos: Sequence[RankInfo], rank: int) -> Mapping[str, float]:
    """The bytes per second that the connections of `rank` should carry, by the description of each peer elsewhere.

    It is the link's rate, in the better direction, shared by the channels that an operation uses between the two sites.
    Empty if the rates are only assumed.
    """
    if links.source == "assumed":
        return {}
    site_of_rank, _ = sites_of(list(infos))
    own = site_of_rank[rank]

    def rate(other: int) -> float:
        return max(links.rate_bps[own][other], links.rate_bps[other][own]) / 8

    channels = path_channels(site_of_rank, rank)
    peers = zip(infos, site_of_rank, channels, strict=True)
    return {info.description: rate(site) / sharing for info, site, sharing in peers if site != own}


def observe(group: Group, channels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What this rank has seen of its links since the last epoch: by peer rank, bytes, seconds and round trips."""
    rtt_of = {channel["peer"]: channel["rtt_us"] * 1e-6 for channel in channels}
    rtts = {info.rank: rtt_of[info.description] for info in group.infos if rtt_of.get(info.description)}
    return {"rates": group.backend.take_rates(), "rtts": list(rtts.items())}


def observed_links(before: Links, infos: Sequence[RankInfo], seen: Sequence[dict[str, Any]]) -> Links:
    """The table `before` with the numbers that the ranks saw.

    Rates of site pairs are sums over their ranks, round trips the least of them. Pairs that moved little keep their
    numbers.
    """
    site_of_rank, names = sites_of(list(infos))
    rates: dict[tuple[int, int], float] = {}
    rtts: dict[tuple[int, int], float] = {}
    for own, record in enumerate(seen):
        moves: list[tuple[int, int, float]] = record["rates"]
        trips: list[tuple[int, float]] = record["rtts"]
        for peer, moved, seconds in moves:
            pair = site_of_rank[peer], site_of_rank[own]  # it came from the peer
            if pair[0] != pair[1] and moved >= _LEAST_BYTES and seconds >= _LEAST_SECONDS:
                rates[pair] = rates.get(pair, 0.0) + 8 * moved / seconds
        for peer, rtt_s in trips:
            a, b = site_of_rank[own], site_of_rank[peer]
            for pair in ((a, b), (b, a)):
                rtts[pair] = min(rtts.get(pair, rtt_s), rtt_s)

    def rate(src: int, dst: int) -> float:
        return rates.get((src, dst), before.rate_bps[src][dst])

    def rtt(src: int, dst: int) -> float:
        return rtts.get((src, dst), before.rtt_s[src][dst])

    count = len(names)
    limits = (before.loss, before.up_bps, before.down_bps, before.regions, before.dollars_per_gb)
    return Links(before.sites, table_of(count, rate), table_of(count, rtt), *limits, source="measured")


def refresh_links(group: dist.ProcessGroup | None = None) -> Links | None:
    """Replace the group's table of links by what its operations have measured, and choose relays and codecs by it.

    Collective: all ranks of the group call it between the same two operations. Rates come from the operations since the
    last call (or since the group began), round-trip times from heartbeats. A pair of sites that exchanged less than
    1 MiB since then keeps its rate. With codec="auto" the codecs are chosen anew.

    Args:
        group: A process group of geocomm; None: the default process group.

    Returns:
        The new table, equal on all ranks; None if the group lies inside one site.

    Raises:
        InvalidArgumentError: The group is not geocomm's.
        OperationTimeoutError: A rank did not call it within the group's timeout.

    Example:
        Every 1000 steps:

            if step % 1000 == 0:
                links = geocomm.refresh_links()
    """
    own = runtime.group_of(group)
    before = own.policy
    if before is None:
        return None
    epoch = before.epoch + 1
    rank = own.backend.rank()
    store = own.store
    timeout = own.backend.options._timeout
    try:
        own_view = observe(own, runtime.channel_stats())
        seen = exchange(store, f"geocomm/seen/{epoch}", rank, len(own.infos), own_view, timeout)
        policy = agree(
            store,
            rank,
            epoch,
            lambda: Policy.decide(epoch, observed_links(before.links, own.infos, seen), own.infos, own.options),
        )
    except GeocommError:
        raise
    except Absent as absent:
        late = ranks_text([own.infos[each].global_rank for each in absent.ranks])
        raise OperationTimeoutError(
            f"refresh_links (epoch {epoch}): {late} did not call it within {timeout.total_seconds():g} s; all ranks of "
            "the group call it between the same two operations"
        ) from absent
    except RuntimeError as error:
        raise OperationTimeoutError(f"refresh_links (epoch {epoch}): the group's store is gone: {error}") from error
    apply(own, policy)
    return policy.links
