"""To which sites a frame is mailed: to the site that averages it; or to all of its maker's region, and to one of each
other region, its *head*.

Both ends and the leader compute it of the same `Open`. The others of a head's region fetch the frame there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from geocomm.elastic.journal.messages import Aggregator, Open, Peer


def region_of(peer: Peer) -> str:
    """The region of a site: one that is in none is its own."""
    return peer.region or peer.site


def mailed(peers: Sequence[Peer], maker: str, fragment: int) -> Sequence[Peer]:
    """Those of the live sites to which a frame of `maker` goes by mail, itself included. The sites of a region take
    turns over the fragments; makers begin at different ones."""
    if not any(peer.region for peer in peers):
        return peers
    own = next((region_of(peer) for peer in peers if peer.site == maker), maker)
    regions: dict[str, list[Peer]] = {}
    for peer in peers:
        regions.setdefault(region_of(peer), []).append(peer)
    turn, heads = fragment + zlib.crc32(maker.encode()), set[str]()
    for there in regions.values():
        able = sorted(peer.site for peer in there if peer.owners) or sorted(peer.site for peer in there)
        heads.add(able[turn % len(able)])
    return [peer for peer in peers if region_of(peer) == own or peer.site in heads]


def averager(opened: Open, maker: str) -> Aggregator | None:
    """Who averages the frame of a site: a head of its region, or the aggregator; None: all do."""
    return _heads(opened).get(maker, opened.aggregator)


def made_for(opened: Open, site: str) -> list[tuple[Peer, int]]:
    """Whose frames of a round a member of it is to get, and of which attempt: those of all; with an aggregator, those
    that it averages, or else the average."""
    if all(peer.site != site for peer in opened.peers):
        return []
    by, others = opened.aggregator, [peer for peer in opened.peers if peer.site != site]
    if by is None:
        return [(peer, opened.attempt) for peer in others]
    heads = _heads(opened)
    found = [(peer, opened.attempt) for peer in others if heads.get(peer.site, by).site == site]
    averages = opened.adders if by.site == site else (by,)
    return found + [(peer, one.attempt) for peer in others for one in averages if one.site == peer.site]


def _heads(opened: Open) -> dict[str, Aggregator]:
    """By site: the head of its region that averages its frame for the aggregator."""
    region = {peer.site: region_of(peer) for peer in opened.peers} if opened.adders else {}
    of_region = {region[one.site]: one for one in opened.adders if one.site in region}
    return {site: of_region[there] for site, there in region.items() if there in of_region}


def mailed_to(opened: Open, site: str) -> list[tuple[Peer, int]]:
    """Those of `made_for` that come by mail: what a site averages does, and of other frames what is mailed to it."""
    by = opened.aggregator
    return [
        (peer, attempt)
        for peer, attempt in made_for(opened, site)
        if (by is not None and peer.site != by.site)
        or any(one.site == site for one in mailed(opened.peers, peer.site, opened.fragment))
    ]
