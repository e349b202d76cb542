"""Faults in what regions do: a part of the `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geocomm.elastic.journal import member
from geocomm.elastic.journal.frame_ways import FrameWays
from geocomm.elastic.journal.messages import Peer
from geocomm.elastic.journal.round_charges import RoundCharges
from geocomm.elastic.site.run_view import RunView
from support.whole_run.mutant import MUTANTS, Mutant, mutant

_mailed = member.mailed


@mutant(member, "mailed", regions=True)
def _makers_mail_to_other_heads(peers: Sequence[Peer], maker: str, fragment: int) -> Sequence[Peer]:
    """Who makes a frame takes others for heads than those who are to pass it on."""
    return _mailed(peers, maker, fragment + 1)


@mutant(FrameWays, "_is_mailed", regions=True)
def _all_are_to_have_mail(self: FrameWays, *_: Any) -> bool:
    """Who gets no mail, since a head does, is taken for one whose mail does not come."""
    return True


@mutant(RoundCharges, "_regions_but", regions=True)
def _frames_cross_to_the_aggregator(self: RoundCharges, aggregator: str) -> list[tuple[str, ...]]:
    """The aggregator takes the frame of each site of another region, and not their average."""
    return []


MUTANTS["all sources are equal"] = Mutant(
    "The others of a region fetch from whomever has a frame.",
    RunView,
    "near",
    frozenset[str](),
    regions=True,
)
