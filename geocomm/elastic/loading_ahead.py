"""What ranks load is brought here while their processes start, which takes seconds: a state, and the frames since.

An agent whose site has no ranks does that once it knows the journal, and goes on with the rounds that come meanwhile.
It brings no more frames of a fragment than its state has bytes: after that a newer state is less, which ranks get.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

from geocomm.elastic.agent_life import AgentLife
from geocomm.elastic.fetch import Fetcher, Outcome, Wanted
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.join_states import AGAIN_S, StatesOfOthers
from geocomm.elastic.other_agents import OtherAgents
from geocomm.elastic.run_view import RunView
from geocomm.journal.run_state import Standing
from geocomm.rendezvous.store_process import log


class LoadingAhead:
    """Used in one event loop."""

    def __init__(
        self,
        view: RunView,
        store: FragmentStore,
        states: StatesOfOthers,
        others: OtherAgents,
        fetcher: Fetcher,
        life: AgentLife,
    ) -> None:
        self._view, self._store, self._states = view, store, states
        self._others, self._fetcher, self._life = others, fetcher, life
        self._loading: asyncio.Task[None] | None = None
        self._ending = False
        self._news = asyncio.Event()
        self._rounds_came = 0

    def begin(self) -> None:
        """The site has no ranks."""
        if self._loading is None and self._view.state.genesis is not None and self._view.site in self._view.state.sites:
            self._ending = False
            self._loading = self._life.start(self._load())

    def came(self) -> None:
        """A round is decided."""
        self._rounds_came += 1
        self._news.set()

    async def end(self) -> None:
        """The ranks are there. Returns once what is under way is here."""
        self._ending = True
        self._news.set()
        if self._loading is not None:
            await asyncio.shield(self._loading)
            self._loading = None

    async def _load(self) -> None:
        try:
            await self._bring_all()
        except OSError as error:  # the ranks ask for it again
            log(f"nothing was loaded ahead of the ranks: {error}")

    async def _bring_all(self) -> None:
        versions = list(self._view.state.versions)
        # Others write a state once a site has joined: an older one would need more frames.
        joining = self._view.state.sites[self._view.site].standing is Standing.JOINING
        begun = [fragment for fragment, version in enumerate(versions) if version > 0]
        await asyncio.gather(*(self._bring(p, versions[p] if joining else 0) for p in begun))

    async def _bring(self, fragment: int, least: int) -> None:
        """One fragment: a state of version `least` at least, or what this disk has, and the frames since."""
        base = await self._states.own(self._view.state, fragment)
        if base is None or self._outweighs(fragment, base):
            base = await self._state_of_others(fragment, least if base is None else base + 1) or base
        if base is None:
            return
        left = self._state_bytes(fragment, base)
        while not self._ending and not self._outweighs(fragment, base):
            self._news.clear()
            came = self._rounds_came
            lacking = list(self._lacking(fragment, base))
            left -= sum(wanted.bytes for wanted in lacking)
            if left < 0:
                return
            sources = self._others.known()
            got = await asyncio.gather(
                *(self._fetcher.frame(wanted, sources, self._others.proxy) for wanted in lacking)
            )
            if any(outcome is not Outcome.HERE for outcome in got):
                return  # the ranks ask for it, for as long as it takes
            if not self._ending and came == self._rounds_came:
                await self._news.wait()

    async def _state_of_others(self, fragment: int, least: int) -> int | None:
        while not self._ending:
            sources = await self._others.sources()
            version = await self._states.newest(self._view.state, fragment, least - 1, sources)
            if version is not None or least == 0:
                return version
            await asyncio.sleep(AGAIN_S)
        return None

    def _lacking(self, fragment: int, base: int) -> Iterator[Wanted]:
        return self._states.lacking(self._view.state, self._states.rounds(fragment, base))

    def _outweighs(self, fragment: int, base: int) -> bool:
        """Whether the frames since a state that are not here are more bytes than the state."""
        sizes = itertools.accumulate(wanted.bytes for wanted in self._lacking(fragment, base))
        return any(size > self._state_bytes(fragment, base) for size in sizes)

    def _state_bytes(self, fragment: int, version: int) -> int:
        return self._store.state_path(fragment, version).stat().st_size
