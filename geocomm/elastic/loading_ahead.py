"""What ranks load is brought here while their processes start, which takes seconds: a state, and the frames since.

An agent whose site has no ranks does that once it knows the journal, and goes on with the rounds that come meanwhile.
It brings no more frames of a fragment than its state has bytes: after that a newer state is less, which ranks get.
"""

from __future__ import annotations

import asyncio

from geocomm.core.message_log import log
from geocomm.elastic.fetch import Outcome
from geocomm.elastic.join_states import AGAIN_S, StatesOfOthers
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.run_view import RunView


class LoadingAhead:
    """Used in one event loop."""

    def __init__(self, view: RunView, states: StatesOfOthers) -> None:
        self._view, self._states = view, states
        self._loading: asyncio.Task[None] | None = None
        self._ending = False
        self._news = asyncio.Event()

    def begin(self) -> None:
        """The site has no ranks."""
        if self._loading is None and self._view.state.genesis is not None and self._view.site in self._view.state.sites:
            self._ending = False
            self._loading = self._view.life.start(self._load())

    def came(self) -> None:
        """A round is decided."""
        self._news.set()

    async def end(self) -> None:
        """The ranks are there. Returns once states that are under way are here; frames may still come."""
        self._ending = True
        self._news.set()
        if self._loading is not None:
            await asyncio.shield(self._loading)
            self._loading = None

    async def _load(self) -> None:
        versions = list(self._view.state.versions)
        # Others write a state once a site has joined: an older one would need more frames.
        joining = self._view.state.sites[self._view.site].standing is Standing.JOINING
        begun = [fragment for fragment, version in enumerate(versions) if version > 0]
        try:
            await asyncio.gather(*(self._bring(p, versions[p] if joining else 0) for p in begun))
        except OSError as error:  # the ranks ask for it again
            log(f"nothing was loaded ahead of the ranks: {error}")

    async def _bring(self, fragment: int, least: int) -> None:
        """One fragment: a state of version `least` at least, or what this disk has, and the frames since."""
        base = await self._states.own(fragment)
        if base is None or self._states.outweighs(fragment, base):
            base = await self._state_of_others(fragment, least if base is None else base + 1) or base
        if base is None:
            return
        left = self._states.state_bytes(fragment, base)
        asked, lost = set[Wanted](), list[Wanted]()
        while not self._ending and not lost and not self._states.outweighs(fragment, base):
            new = [wanted for wanted in self._states.lacking(fragment, base) if wanted not in asked]
            left -= sum(wanted.bytes for wanted in new)
            if left < 0:
                return
            asked.update(new)
            for wanted in new:
                self._view.life.start(self._get(wanted, lost))
            self._news.clear()  # nothing has come since `lacking` was asked: there was no await
            await self._news.wait()

    async def _get(self, wanted: Wanted, lost: list[Wanted]) -> None:
        """A frame; one that does not come is lost: the ranks ask for it, for as long as it takes."""
        try:
            outcome = await self._view.fetcher.frame(wanted, self._view.last_known(), self._view.proxy)
        except OSError as error:
            log(f"a frame was not loaded ahead of the ranks: {error}")
            outcome = Outcome.FAILED
        if outcome is not Outcome.HERE:
            lost.append(wanted)

    async def _state_of_others(self, fragment: int, least: int) -> int | None:
        holders = self._view.holders()
        while not self._ending:
            version = await self._states.newest(fragment, least - 1, await holders())
            if version is not None or least == 0:
                return version
            await asyncio.sleep(AGAIN_S)
        return None
