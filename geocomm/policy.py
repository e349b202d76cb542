"""What the ranks of a group that spans sites have agreed on for one epoch: its links, and the codec of each size.

An epoch begins with the group, and with every `refresh_links()`. Rank 0 decides from what all ranks published, and
publishes the decision; the others follow it, so that all ranks carry out an operation alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from geocomm import auto_codec
from geocomm.codec import AUTO, collective_codec
from geocomm.errors import CommTimeoutError, GeocommError, InvalidArgumentError
from geocomm.links import Links, table_of
from geocomm.native import native
from geocomm.options import LOG_LEVELS
from geocomm.topology import RankInfo, path_channels, sites_of

if TYPE_CHECKING:
    import torch.distributed as dist

    from geocomm.backend import Group
    from geocomm.options import Options

_LEAST_BYTES = 1 << 20
_LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class Policy:
    """Of one epoch."""

    epoch: int
    links: Links
    codecs: tuple[tuple[int, str], ...]
    """(from this many bytes on, codec), ascending."""

    @classmethod
    def decide(cls, epoch: int, links: Links, infos: Sequence[RankInfo], options: Options) -> Policy:
        """From what all ranks know of each other."""
        if options.codec != AUTO:
            return cls(epoch, links, ((options.min_compress_bytes, options.codec),))
        site_of_rank, names = sites_of(list(infos))
        fewest = min(site_of_rank.count(site) for site in range(len(names)))
        speeds = auto_codec.slowest([info.codec_speeds for info in infos])
        model = auto_codec.ReduceTime(links, fewest)
        return cls(epoch, links, auto_codec.choose(model, speeds, options.min_compress_bytes))

    def to_json(self) -> str:
        """For the store."""
        return json.dumps({"epoch": self.epoch, "links": self.links.to_dict(), "codecs": self.codecs})

    @classmethod
    def from_json(cls, text: str) -> Policy:
        """What rank 0 decided; raises what it raised."""
        document = json.loads(text)
        if "error" in document:
            raise InvalidArgumentError(f"rank 0 could not decide: {document['error']}")
        codecs = tuple((int(size), str(codec)) for size, codec in document["codecs"])
        links = Links.from_dict(document["links"], "rank 0", document["links"]["source"])
        return cls(int(document["epoch"]), links, codecs)

    def native_codecs(self) -> list[tuple[int, str]]:
        """As the native module takes them."""
        return [(size, collective_codec(codec)) for size, codec in self.codecs]

    def describe(self) -> dict[str, Any]:
        """For `geocomm.stats()`."""
        return {
            "epoch": self.epoch,
            "codecs": [list(one) for one in self.codecs],
            "links": asdict(self.links),
            "relays": [list(one) for one in self.links.relays()],
        }


def links_of_group(options: Options) -> Links | None:
    """The table that this rank was given."""
    return Links.from_file(options.links) if options.links else None


def first_policy(store: dist.Store, rank: int, infos: list[RankInfo], options: Options) -> Policy:
    """That of a new group. Collective; without a table and with a fixed codec there is nothing to talk about."""
    given = links_of_group(options)
    names = sites_of(infos)[1]
    links = Links.uniform(names) if given is None else given.select(names)
    if given is None and options.codec != AUTO:
        return Policy.decide(0, links, infos, options)
    return agree(store, rank, 0, lambda: Policy.decide(0, links, infos, options))


def agree(store: dist.Store, rank: int, epoch: int, decide: Callable[[], Policy]) -> Policy:
    """Rank 0 decides, all follow. Raises what went wrong at rank 0 on all ranks."""
    key = f"geocomm/policy/{epoch}"
    if rank == 0:
        try:
            store.set(key, decide().to_json())
        except Exception as error:
            store.set(key, json.dumps({"error": f"{type(error).__name__}: {error}"}))
            raise
    return Policy.from_json(store.get(key).decode())


def apply(group: Group, policy: Policy) -> None:
    """From the next operation on. Logs a codec that changed."""
    from geocomm.backend import process

    group.backend.set_policy(policy.links.for_native(), policy.native_codecs())
    process.expect_rates(channel_rates(policy.links, group.infos, group.backend.rank()))
    before = group.policy.codecs if group.policy else None
    if group.options.codec == AUTO and policy.codecs != before:
        sizes = ", ".join(f"{codec} from {size} bytes" for size, codec in policy.codecs) or "none"
        native().log(LOG_LEVELS["info"], f"codec auto, epoch {policy.epoch}: {sizes}")
    group.policy = policy


def channel_rates(links: Links, infos: Sequence[RankInfo], rank: int) -> Mapping[str, float]:
    """Bytes per second that the connections of `rank` to each peer at another site should carry, by the peer's
    description: the link's rate, in the better direction, shared by the lanes between the two sites. Empty where the
    rates are only assumed."""
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
    """`before`, with what the ranks saw in its place: rates of site pairs are sums over their ranks, round trips the
    least of them. Pairs that moved little keep their numbers."""
    site_of_rank, names = sites_of(list(infos))
    rates: dict[tuple[int, int], float] = {}
    rtts: dict[tuple[int, int], float] = {}
    for own, record in enumerate(seen):
        for peer, moved, seconds in record["rates"]:
            pair = site_of_rank[peer], site_of_rank[own]  # it came from the peer
            if pair[0] != pair[1] and moved >= _LEAST_BYTES and seconds >= _LEAST_SECONDS:
                rates[pair] = rates.get(pair, 0.0) + 8 * moved / seconds
        for peer, rtt_s in record["rtts"]:
            a, b = site_of_rank[own], site_of_rank[peer]
            for pair in ((a, b), (b, a)):
                rtts[pair] = min(rtts.get(pair, rtt_s), rtt_s)

    def rate(src: int, dst: int) -> float:
        return rates.get((src, dst), before.rate_bps[src][dst])

    def rtt(src: int, dst: int) -> float:
        return rtts.get((src, dst), before.rtt_s[src][dst])

    count = len(names)
    limits = (before.loss, before.up_bps, before.down_bps)
    return Links(before.sites, table_of(count, rate), table_of(count, rtt), *limits, source="measured")


def refresh_links(group: dist.ProcessGroup | None = None) -> Links | None:
    """Begin a new epoch of `group` (default: the default group): links as its operations have seen them.

    Collective: all ranks call it between the same two operations. Rates come from the operations since the last epoch,
    round trips from heartbeats; what did not show keeps its number. With codec="auto" the codecs are chosen anew.
    Returns the new table; None for a group inside one site. Raises CommTimeoutError where a rank does not call it.
    """
    from geocomm.backend import process

    own = process.group_of(group)
    if own.policy is None:
        return None
    epoch = own.policy.epoch + 1
    rank = own.backend.rank()
    store = own.store
    store.set(f"geocomm/seen/{epoch}/{rank}", json.dumps(observe(own, process.channel_stats())))

    def decide() -> Policy:
        keys = [f"geocomm/seen/{epoch}/{r}" for r in range(len(own.infos))]
        store.wait(keys, own.backend.options._timeout)
        seen = [json.loads(record) for record in store.multi_get(keys)]
        assert own.policy is not None
        return Policy.decide(epoch, observed_links(own.policy.links, own.infos, seen), own.infos, own.options)

    try:
        policy = agree(store, rank, epoch, decide)
    except GeocommError:
        raise
    except RuntimeError as error:  # of the store
        raise CommTimeoutError(
            f"refresh_links (epoch {epoch}): not all ranks of the group called it in time, or the store is gone: "
            f"{error}"
        ) from error
    apply(own, policy)
    return policy.links
