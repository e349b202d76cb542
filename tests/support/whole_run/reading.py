"""What a simulated rank reads of the data that the run deals: real `SiteDeals`, of which it waits for nothing."""

from __future__ import annotations

from collections import deque
from typing import Any

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.data.deal_records import SiteDeal
from geocomm.data.site_deals import SiteDeals
from geocomm.elastic.journal.messages import RankWelcome
from support.whole_run.data import SET, Sequence

_BATCH = 2
"""Sequences that a step reads."""


class Reading:
    """The only rank of a site, as `SiteDeals` asks for it (`FirstRank`), and where it is."""

    def __init__(self, site: str) -> None:
        self._site = site
        self.has_left = False
        self.leader = ""
        """Who deals."""
        self.dealt: deque[SiteDeal] = deque()
        """That the agent has said, and nobody has taken."""
        self._deals: SiteDeals | None = None
        self._position = 0
        self._starving: Waiting | None = None

    def begin(self, welcome: RankWelcome) -> None:
        """The rank is told where the site is in its data."""
        store: Any = RanksStore()
        self._deals = SiteDeals.open(store, welcome, self, lambda: None)
        self._position = 0 if self._deals is None else self._deals.position

    @property
    def taken(self) -> int:
        """Tokens that were read."""
        return self._position * SET.sequence_length

    def check(self) -> None:
        """See FirstRank."""

    def take_dealt(self) -> list[SiteDeal]:
        """See FirstRank."""
        return [self.dealt.popleft() for _ in range(len(self.dealt))]

    def next_batch(self) -> tuple[Sequence, ...] | None:
        """What the next step reads, nothing where the run deals no data; None: it is not dealt yet."""
        deals = self._deals
        if deals is None:
            return ()
        end = self._position + _BATCH
        if deals.look() < end:  # `reach` would wait
            self._starving = self._starving or Waiting(log)
            self._starving.tell(lambda: f"{self.leader} to deal more data to site {self._site}")
            return None
        deals.reach(end)
        self._starving = None
        read = tuple(
            (deal.deal, deal.start + place - deal.at)
            for place in range(self._position, end)
            for deal in deals.line
            if deal.at <= place < deal.at + deal.sequences
        )
        self._position = end
        return read


class RanksStore:
    """What the ranks of a site share, who are one here."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        """See torch.distributed.Store."""
        self._held[key] = value.encode()

    def get(self, key: str) -> bytes:
        """See torch.distributed.Store."""
        return self._held[key]

    def check(self, keys: list[str]) -> bool:
        """See torch.distributed.Store."""
        return all(key in self._held for key in keys)
