"""What the leader of an elastic run deals to a site, as all ranks of the site hear of it.

The first rank hears of deals from the site's agent, and writes them down in the store of the site's process group; all
ranks, the first one too, take what is written there in its order. So they agree without a collective, also on what they
do while they wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from geocomm.core.message_log import logger
from geocomm.core.patience import Patience
from geocomm.core.records import canonical, line_of
from geocomm.data.deal_records import DealtData, LineBegun, SiteDeal

if TYPE_CHECKING:
    from torch.distributed import Store

_LOOK_S = 0.05
_MEET_S = 1.0
"""How often a site that waits takes part in rounds."""
_BEGIN, _MEET, _LEFT = "begin", "meet", "left"


class SiteLeft(Exception):
    """The site has left the run while it waited for data."""


class FirstRank(Protocol):
    """The rounds of the first rank of a site, which its agent tells of deals."""

    has_left: bool
    """Whether the journal says that this site has left."""
    leader: str
    """Who deals, for messages."""

    def check(self) -> None:
        """Raise what the rounds have failed with."""
        ...

    def take_dealt(self) -> Sequence[SiteDeal]:
        """The deals since the last call."""
        ...


class SiteDeals:
    """The site's line of deals, from where it is in its data on. Used in the training thread, alike at all ranks."""

    @staticmethod
    def open(
        store: Store, begun: LineBegun | None, first: FirstRank | None, meet: Callable[[], None]
    ) -> SiteDeals | None:
        """None: the run deals no data. store: shared by the ranks, for this alone. begun, first: at the first rank.
        meet: takes part in rounds; collective over the ranks."""
        if begun is not None:
            store.set(_BEGIN, canonical(begun.model_dump(mode="json", include=set(LineBegun.model_fields))))
        told = LineBegun.model_validate_json(store.get(_BEGIN))
        if told.data is None:
            return None
        return SiteDeals(store, told.run, told.data, told.taken // told.data.sequence_length, first, meet)

    def __init__(
        self,
        store: Store,
        run: str,
        data: DealtData,
        position: int,
        first: FirstRank | None,
        meet: Callable[[], None],
    ) -> None:
        """position: in sequences, where the line begins."""
        self._store, self._first, self._meet = store, first, meet
        self.run, self.data = run, data
        self.position = position
        """Where the site was in its line, in sequences, when its ranks began."""
        self.line: list[SiteDeal] = []
        self._end = self._written_end = position
        self._taken = self._written = 0
        self._looked_at = 0.0

    def reach(self, end: int) -> None:
        """Return once the line has all sequences before `end`. Alike at all ranks: meanwhile the site takes part in
        rounds. Raises SiteLeft; CorruptDataError for a line with a gap."""
        self._write_heard()
        if self._end >= end and time.monotonic() < self._looked_at + 1:
            return
        self._looked_at = time.monotonic()
        self.look()
        patience, meets_at = Patience(), time.monotonic() + _MEET_S
        while self._end < end:
            self._write_heard()
            if self._first is not None and self._taken == self._written:
                if self._first.has_left:
                    self._write(_LEFT)
                elif time.monotonic() >= meets_at:
                    self._write(_MEET)
                    meets_at = time.monotonic() + _MEET_S
                if patience.left_s <= 0:
                    logger().warning(
                        f"data: this site has read all that was dealt to it, and has waited {patience.waited_s:.0f} s "
                        f"for {self._first.leader} to deal more"
                    )
                    patience.put_off()
            if not self._take(waits=True):
                time.sleep(_LOOK_S)

    def look(self) -> int:
        """Take what is there, without waiting. Where the line ends now, in sequences."""
        self._write_heard()
        while self._take(waits=False):
            pass
        return self._end

    def check(self) -> None:
        """Raise what ends the site's part, as where its deals were taken back; at the first rank."""
        if self._first is not None:
            self._first.check()

    def _write_heard(self) -> None:
        for deal in () if self._first is None else self._first.take_dealt():
            if deal.at + deal.sequences <= self._written_end:
                continue  # said again, by an agent that has started anew
            if deal.at > self._written_end:
                from geocomm.core.errors import CorruptDataError  # brings torch, which simulated ranks do without

                raise CorruptDataError(f"data: deals up to {self._written_end} are here, and the next is at {deal.at}")
            self._written_end = deal.at + deal.sequences
            self._write(line_of(deal))

    def _write(self, text: str) -> None:
        self._store.set(f"deals/{self._written}", text)
        self._written += 1

    def _take(self, *, waits: bool) -> bool:
        """Take the next that is written; whether there was one. What is not a deal is for when the site waits."""
        key = f"deals/{self._taken}"
        if not self._store.check([key]):
            return False
        text = self._store.get(key).decode()
        if text in (_MEET, _LEFT) and not waits:
            return False
        self._taken += 1
        if text == _LEFT:
            raise SiteLeft
        if text == _MEET:
            self._meet()
            return True
        deal = SiteDeal.model_validate_json(text)
        self.line.append(deal)
        self._end = deal.at + deal.sequences
        return True
