"""The frames that an agent brings here: for its ranks, since the leader says so, and for others that cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.elastic.fetch import Outcome
from geocomm.elastic.join_states import StatesOfOthers
from geocomm.elastic.journal.messages import Fetched, Hold, Lost, TakeState, Wanted
from geocomm.elastic.run_view import RunView
from geocomm.elastic.site_ranks import SiteRanks

NEED_PAUSE_S = 5.0
"""Between two attempts to find a listed frame."""
PATIENT_ATTEMPTS = 3
"""After these a newer state is taken where there is one, also if nobody says that the frame is gone."""


class FrameFetches:
    """Used in one event loop."""

    def __init__(self, view: RunView, states: StatesOfOthers, ranks: SiteRanks) -> None:
        self._view, self._states, self._ranks = view, states, ranks
        self._wanted: set[Wanted] = set()

    def once(self, wanted: Wanted, sources: Iterable[str]) -> None:
        """Get an offered frame from these sources, if they have it."""
        self._want(wanted, self._fetch_once(wanted, sources))

    def until_here(self, wanted: Wanted) -> None:
        """Get a listed frame, which the ranks need."""
        self._want(wanted, self._fetch_until_here(wanted))

    async def for_others(self, wanted: Wanted) -> bool:
        """Get a frame that another agent cannot; whether it is here."""
        return await self._view.fetcher.frame(wanted, await self._view.sources(first=wanted.site)) is Outcome.HERE

    def _want(self, wanted: Wanted, work: Coroutine[Any, Any, None]) -> None:
        """Get a frame, unless that is under way."""
        if wanted in self._wanted:
            work.close()
            return
        self._wanted.add(wanted)
        self._view.life.start(work).add_done_callback(lambda _: self._wanted.discard(wanted))

    async def _fetch_once(self, wanted: Wanted, sources: Iterable[str]) -> None:
        if await self._view.fetcher.frame(wanted, list(sources), self._view.proxy) is Outcome.HERE:
            self._arrived(wanted)

    async def _fetch_until_here(self, wanted: Wanted) -> None:
        """A listed frame: from any site that has it, until it is here, or the rank no longer needs it."""
        waiting = Waiting(log)
        # To ask the leader who is there takes a second across the world.
        if await self._view.fetcher.frame(wanted, self._view.last_known(first=wanted.site)) is Outcome.HERE:
            self._arrived(wanted)
            return
        attempts = 0
        while self._is_needed(wanted):
            attempts += 1
            sources = await self._view.sources(first=wanted.site)
            outcome = await self._view.fetcher.frame(wanted, sources, self._view.proxy)
            if outcome is Outcome.HERE:
                self._arrived(wanted)
                return
            is_absent = outcome is Outcome.ABSENT
            tries_state = is_absent or attempts >= PATIENT_ATTEMPTS
            if not (tries_state and await self._take_state(wanted, sources)) and is_absent:
                self._view.say_of_round(Lost(**wanted.named))
            waiting.tell(lambda: f"the frame of site {wanted.site} (fragment {wanted.fragment}, {wanted.version})")
            await asyncio.sleep(NEED_PAUSE_S)

    async def _take_state(self, wanted: Wanted, sources: list[str]) -> bool:
        """Others let go of frames once they have written a state. Whether there is one, which the ranks take then."""
        version = await self._states.newest(wanted.fragment, wanted.version, sources)
        if version is None:
            return False
        self._ranks.tell_owner(wanted.fragment, TakeState(fragment=wanted.fragment, version=version))
        return True

    def _is_needed(self, wanted: Wanted) -> bool:
        void = (wanted.fragment, wanted.version) in self._view.state.skipped
        return not void and self._ranks.lacks(wanted.fragment, wanted.version)

    def _arrived(self, wanted: Wanted) -> None:
        """A frame lies on the disk: the leader may count on it, and the owner of the fragment use it."""
        self._view.say_of_round(Hold(**wanted.named, by_mail=False))
        self._ranks.tell_owner(wanted.fragment, Fetched(**wanted.named))
