"""To which sites a frame is mailed: to all of its maker's region, and to one of each other region, its *head*.

Both ends and the leader compute it of the same `Open`. The others of a head's region fetch the frame there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from geocomm.elastic.journal.messages import Open, Peer


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


def mailed_to(opened: Open, site: str) -> list[tuple[Peer, int]]:
    """Whose frames of a round come to a member of it by mail, and of which attempt: those of all who mail to it. With
    an aggregator, it gets the frames of all, and the others its average."""
    if all(peer.site != site for peer in opened.peers):
        return []
    by, others = opened.aggregator, [peer for peer in opened.peers if peer.site != site]
    if by is not None and by.site == site:
        return [(peer, opened.attempt) for peer in others]
    makers = [peer for peer in others if by is None or peer.site == by.site]
    attempt = opened.attempt if by is None else by.attempt
    return [
        (peer, attempt)
        for peer in makers
        if any(one.site == site for one in mailed(opened.peers, peer.site, opened.fragment))
    ]
