"""Rounds of an elastic site that a test opens and decides, and what such a site is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from geocomm.core.link_table import Links
from geocomm.data.deal_records import DealtData, SiteDeal
from geocomm.elastic.journal.messages import Beat, Open, RankWelcome
from geocomm.sync.local_steps.elastic.member_frames import Decided, Delta
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.anchor import AnchoredFragment
from geocomm.sync.local_steps.outer.schedule import LineClock

EVERY = 4


@dataclass
class Facts:
    """A site of one rank."""

    site: str = "a"
    site_count: int | None = None
    ranks: SiteGroup = field(default_factory=SiteGroup)
    links: Links | None = None

    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return (self.site,)


class GivenRounds:
    """Rounds that the test opens and decides."""

    def __init__(self, begin_step: int = 0) -> None:
        self.line = LineClock()
        self.opened: dict[int, Open] = {}
        self.next: dict[int, Decided] = {}
        self.offered: list[Delta] = []
        self.passed: list[Open] = []
        self.asked: list[int] = []
        self.written: list[int] = []
        """Versions of states that go to the run folder."""
        self._begin_step = begin_step
        self.data: DealtData | None = None
        self.leader = "the leader"
        self.heard = 0
        """How often it was looked whether anything was dealt."""

    def take_dealt(self) -> list[SiteDeal]:
        self.heard += 1
        self.has_left = self.heard > 5
        return []

    def begin(self, digests: dict[int, str]) -> RankWelcome:
        return RankWelcome(
            site="a", run="0" * 32, versions={0: 0}, head=0, head_hash="0" * 64, states={}, every=EVERY,
            step=self._begin_step, data=self.data,
        )  # fmt: skip

    def go(self, held: dict[int, AnchoredFragment], head: int) -> None:
        """Nothing is replayed."""

    def decided(self) -> dict[int, Decided]:
        return dict(self.next)

    def to_begin(self) -> dict[int, Open]:
        return dict(self.opened)

    def due(self, fragment: int) -> None:
        self.asked.append(fragment)

    def offer(self, opened: Open, delta: Delta) -> None:
        self.opened.clear()
        self.offered.append(delta)

    def give_nothing(self, opened: Open) -> None:
        self.opened.clear()
        self.passed.append(opened)

    def applied(self, decided: Decided, held: AnchoredFragment) -> None:
        self.next.clear()

    def write_layout(self, layout: object) -> None:
        """Nobody takes a snapshot."""

    is_leaving = False
    has_left = False

    def say_leave(self) -> None:
        self.has_left = True

    def write_state(self, held: AnchoredFragment) -> None:
        self.written.append(held.version)

    def wants_state(self, fragment: int, version: int) -> bool:
        return False

    def tell(self, beat: Beat) -> None:
        """Nobody listens."""

    def kept_weights(self) -> list[tuple[int, torch.Tensor | None]]:
        return []
