"""Rounds of three sites while b and c do not reach each other: what one of these has of the other it fetches."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.messages import Fetch, Hold, Open
from geocomm.elastic.journal.sequencer_events import Send
from support.led_sequencer import Led

SITES = "abc"
MAIL_S = 0.05
PATIENCE_S = 2.0
"""Of a rank that waits for mail before it has its agent fetch a listed frame."""


class CutRun:
    """A leader's decisions, and sites that offer once they have all frames of the round before."""

    def __init__(self, step_s: dict[str, float], fetch_s: float) -> None:
        self.led = Led().take_part(SITES)
        self._step_s, self._fetch_s = step_s, fetch_s
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._has: set[tuple[str, str, int]] = set()
        self._version = dict.fromkeys(SITES, 0)
        self._opened: dict[int, int] = {}
        self._rounds: dict[int, Round] = {}
        self._seen_entries = self._seen_sends = 0

    def run(self, seconds: float) -> tuple[int, Counter[str]]:
        """The rounds, and those that list each site."""
        self._after(0.0, partial(self.led.due, "a"))
        self._beat()
        end = self.led.now + seconds
        while self._queue and self._queue[0][0] < end:
            self.led.now, _, do = heapq.heappop(self._queue)
            do()
            self._look()
        return len(self._rounds), Counter(one.site for entry in self._rounds.values() for one in entry.members)

    def _after(self, delay: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.led.now + delay, next(self._numbers), do))

    def _beat(self) -> None:
        self.led.wait(0.25, SITES)
        self._after(0.25, self._beat)

    def _look(self) -> None:
        for sent in self.led.sent[self._seen_sends :]:
            message = sent.message if isinstance(sent, Send) else None
            if isinstance(message, Open):
                self._opened[message.version] = message.attempt
                self._after(self._step_s[sent.site], partial(self._offer, sent.site, message.version))
            elif isinstance(message, Fetch):
                held = partial(self._hold, sent.site, message.site, message.version, message.frame, by_mail=False)
                self._after(self._fetch_s, held)
        self._seen_sends = len(self.led.sent)
        for entry in self.led.entries[self._seen_entries :]:
            if isinstance(entry, Round):
                self._rounds[entry.version] = entry
                for site, one in itertools.product(SITES, entry.members):
                    held = partial(self._hold, site, one.site, entry.version, one.frame, by_mail=False)
                    self._after(PATIENCE_S + self._fetch_s, held)
        self._seen_entries = len(self.led.entries)
        for site in SITES:
            self._apply(site)

    def _apply(self, site: str) -> None:
        while (entry := self._rounds.get(self._version[site])) is not None:
            if any((site, one.site, entry.version) not in self._has for one in entry.members):
                return
            self._version[site] += 1
            self._after(self._step_s[site], partial(self._offer, site, self._version[site]))
            self._after(2 * self._step_s[site], partial(self._due, site, self._version[site]))

    def _due(self, site: str, version: int) -> None:
        if self.led.sequencer.state.versions[0] == version:
            self.led.due(site)

    def _offer(self, site: str, version: int) -> None:
        decided = self.led.sequencer.state.versions[0] != version
        if decided or self._version[site] != version or version not in self._opened:
            return
        if (site, site, version) not in self._has:
            self._has.add((site, site, version))
            frame = self.led.offer(site, attempt=self._opened[version])
            for other in SITES:
                if other != site and {site, other} != {"b", "c"}:
                    self._after(MAIL_S, partial(self._hold, other, site, version, frame, by_mail=True))

    def _hold(self, site: str, maker: str, version: int, frame: str, *, by_mail: bool) -> None:
        if (site, maker, version) not in self._has:
            self._has.add((site, maker, version))
            self.led.say(site, Hold(fragment=0, version=version, site=maker, frame=frame, by_mail=by_mail))


@pytest.mark.parametrize("fetch_s", [0.3, 0.6, 1.0, 1.5])
@pytest.mark.parametrize("slow_step_s", [0.1, 0.3, 0.5])
def test_no_site_starves_that_has_to_fetch_what_others_get_by_mail(fetch_s: float, slow_step_s: float) -> None:
    rounds, counted = CutRun({"a": 0.1, "b": slow_step_s, "c": 0.1}, fetch_s).run(60)
    assert rounds > 20
    assert min(counted[site] for site in SITES) > rounds / 2
