"""Who brings a site a frame: the mail between ranks what is made while both sites live; once its time is over, or where
there is none, this site's agent, which fetches it.

An agent fetches for its ranks, since the leader says so, and for others that cannot.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting, comes
from geocomm.elastic.files.fetch import Outcome
from geocomm.elastic.files.needless_files import NeedlessFiles
from geocomm.elastic.journal.messages import Check, Fetched, Hold, Lost, TakeState, Wanted
from geocomm.elastic.site.join_states import StatesOfOthers
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks

MAIL_S = 2.0
"""From the entry on that lists a frame, it may come by mail for this time."""
NEED_PAUSE_S = 5.0
"""Between two attempts to find a listed frame."""
_TOLD_EVERY_S = 1.0
_LOOK_S = 1.0
_STATES_OF_FRAMES = 4
"""Frames that weigh more than so many states are given up for a newer state: it crosses the line besides."""
_NEWER_EVERY_S = 60.0
PATIENT_ATTEMPTS = 3
"""After these a newer state is taken where there is one, also if nobody says that the frame is gone."""


@dataclass
class _Fetch:
    """A frame that is being brought here: the one answer to who brings it."""

    sources: list[str]
    """Who has it, as the leader says; none: those last known."""
    needed: bool = False
    """The ranks lack it, or will: it is fetched until it is here, or they no longer do."""
    mail_is_over: asyncio.Event = field(default_factory=asyncio.Event)
    work: asyncio.Task[None] | None = None


@dataclass
class _FragmentHere:
    """What ranks that start anew have of a fragment. They may be away for thousands of rounds, whose frames and entries
    are not all looked at each second."""

    base: int
    """The version of the newest state here."""
    here_until: int
    """The frames of the rounds from there up to this version were here."""
    newer_at: float = -math.inf
    """When others were asked for a newer state last, since the frames weigh more, by the monotonic clock."""


class FrameFetches:
    """Used in one event loop."""

    def __init__(self, view: RunView, states: StatesOfOthers, ranks: SiteRanks) -> None:
        self._view, self._states, self._ranks = view, states, ranks
        self._under_way: dict[Wanted, _Fetch] = {}
        self._taking: dict[int, asyncio.Task[int | None]] = {}
        """By fragment: the search for a state in place of frames."""
        self._kept: dict[int, _FragmentHere] = {}
        """By fragment, while the ranks are away."""
        self._needless = NeedlessFiles(view.store)

    def once(self, wanted: Wanted, sources: Iterable[str]) -> None:
        """Get an offered frame from these sources, if they have it: the leader waits for its mail no longer."""
        fetch = self._fetch(wanted, list(sources))
        if not fetch.mail_is_over.is_set():
            fetch.sources = list(sources)
            fetch.mail_is_over.set()

    def until_here(self, wanted: Wanted) -> None:
        """Get a listed frame, which the ranks need, or will, unless the mail brings it in its time."""
        by_mail = self._may_come_by_mail(wanted)
        fetch = self._fetch(wanted, [])
        fetch.needed = True
        if not by_mail:
            fetch.mail_is_over.set()

    async def keep_second_copies(self) -> None:
        """Until cancelled: while the ranks here are away and one site at most trains, bring here what they will begin
        with. It lies on that site's disk alone, and the site may leave before they are there to need it."""
        all_here_at = -1
        while True:
            await asyncio.sleep(_LOOK_S)
            state = self._view.state
            if not self._are_second_copies:
                all_here_at = -1
                self._kept.clear()
            elif all_here_at != state.head.index:
                are_here = [self._keep_second_copies(fragment) for fragment in range(len(state.versions))]
                all_here_at = state.head.index if all(are_here) else -1

    @property
    def _are_second_copies(self) -> bool:
        """Whether frames are brought here for ranks that are away."""
        return self._view.is_current and not self._ranks.complete and len(self._view.state.live) <= 1

    def _keep_second_copies(self, fragment: int) -> bool:
        """Whether nothing is missing: else it is looked for again."""
        kept, state = self._kept_state(fragment), self._view.state
        lacking = [*self._states.lacking(fragment, kept.here_until)]
        kept.here_until = lacking[0].version if lacking else state.versions[fragment]
        outweighs = sum(wanted.bytes for wanted in lacking) > self._states.state_bytes(fragment, kept.base)
        needs_state = outweighs or kept.base < self._states.replayed_from(fragment)
        if needs_state or self._wants_newer(fragment, kept):
            listed = state.rounds.get(fragment)
            last = None if listed is None else Wanted.listed(listed, listed.frames[0])
            self._search_state(fragment, kept.base, last)
        if needs_state:
            # A state takes long, and who gives it may end then: what it leaves out comes meanwhile.
            room = itertools.accumulate(wanted.bytes for wanted in reversed(lacking))
            lacking = lacking[len(lacking) - sum(size <= 2 * state.most_frame_bytes for size in room) :]
        for wanted in lacking:
            self.until_here(wanted)
        return not (lacking or needs_state)

    def _wants_newer(self, fragment: int, kept: _FragmentHere) -> bool:
        """Whether to look for a newer state, which others write for each snapshot: else the disk would fill while the
        ranks are away, and they would replay for long."""
        listed, now = self._view.state.rounds.get(fragment), time.monotonic()
        if listed is None or now - kept.newer_at < _NEWER_EVERY_S:
            return False
        frames = (listed.version + 1 - kept.base) * sum(Wanted.listed(listed, one).bytes for one in listed.frames)
        if frames <= _STATES_OF_FRAMES * self._states.state_bytes(fragment, kept.base):
            return False
        kept.newer_at = now
        return True

    def _kept_state(self, fragment: int) -> _FragmentHere:
        """From the state on that ranks which start anew have without asking others."""
        store, kept = self._view.store, self._kept.get(fragment)
        if kept is None or (kept.base and not store.state_path(fragment, kept.base).exists()):
            base = store.latest_state(fragment, self._view.state.versions[fragment]) or 0
            kept = self._kept[fragment] = _FragmentHere(base, base)
        return kept

    def came_by_mail(self, hold: Hold) -> None:
        """The ranks have a frame: nobody has to bring it."""
        for wanted, fetch in [*self._under_way.items()]:
            if wanted.named == hold.named and not fetch.mail_is_over.is_set():
                del self._under_way[wanted]
                if fetch.work is not None:
                    fetch.work.cancel()

    async def for_others(self, wanted: Wanted) -> bool:
        """Get a frame that another agent cannot; whether it is here. Of a round that the run has, or is about to have:
        for others no folder is made."""
        versions = self._view.state.versions
        if wanted.fragment >= len(versions) or wanted.version > versions[wanted.fragment]:
            return False
        return await self._view.fetcher.frame(wanted, await self._view.sources(wanted)) is Outcome.HERE

    async def for_check(self, asked: Check) -> None:
        """Get all frames of a round that others have decided, for the ranks to average them too. Where one cannot be
        had, nobody hears of it."""
        sources = await self._view.sources()
        wanted = [
            Wanted(fragment=asked.fragment, version=asked.version, site=one.site, frame=one.frame, bytes=one.size)
            for one in asked.members
        ]
        came = await asyncio.gather(*(self._view.fetcher.frame(one, sources, self._view.proxy) for one in wanted))
        if all(one is Outcome.HERE for one in came):
            self._ranks.tell_owner(asked.fragment, asked)

    def _fetch(self, wanted: Wanted, sources: list[str]) -> _Fetch:
        """That of a frame: the one under way, or a new one."""
        if (fetch := self._under_way.get(wanted)) is None:
            fetch = self._under_way[wanted] = _Fetch(sources)
            fetch.work = self._view.life.start(self._bring(wanted, fetch))
        return fetch

    def _may_come_by_mail(self, wanted: Wanted) -> bool:
        """Whether it was sent to the ranks here, which may not have it yet: it is of the last round, in which this site
        took part, and the ranks that made it are still there."""
        state, peers = self._view.state, self._view.peers
        if state.versions[wanted.fragment] != wanted.version + 1 or self._view.store.has_frame(**wanted.named):
            return False
        makers = () if peers is None else (peer for peer in peers.peers if peer.site == wanted.site and peer.owners)
        return self._view.site in state.live and wanted.site != self._view.site and any(makers)

    async def _bring(self, wanted: Wanted, fetch: _Fetch) -> None:
        """Once; and again while the ranks need it, from any site that has it."""
        waiting, attempts, said_lost = Waiting(log), 0, False

        def tell() -> None:
            waiting.tell(lambda: f"the frame of site {wanted.site} (fragment {wanted.fragment}, {wanted.version})")

        try:
            await comes(fetch.mail_is_over, MAIL_S)
            fetch.mail_is_over.set()
            if fetch.needed and not self._is_needed(wanted):
                return
            outcome = await self._first(wanted, fetch)
            while outcome is not Outcome.HERE and fetch.needed and self._is_needed(wanted):
                if self._waits_for_earlier(wanted):
                    said_lost = False
                    await asyncio.sleep(NEED_PAUSE_S)
                    continue
                attempts += 1
                sources = await self._view.sources(wanted)
                outcome = await self._view.fetcher.frame(wanted, sources, self._view.proxy)
                if outcome is Outcome.HERE:
                    break
                is_absent = outcome is Outcome.ABSENT or not (sources or self._view.proxy)  # a leader that hears nobody
                tries_state = is_absent or attempts >= PATIENT_ATTEMPTS
                takes_state = tries_state and await self._take_state(wanted, sources, tell)
                said_lost = is_absent and not takes_state and self._say_lost(wanted, again=said_lost)
                tell()
                await asyncio.sleep(NEED_PAUSE_S)
        finally:  # nothing is awaited between the last look at `needed` and this
            if self._under_way.get(wanted) is fetch:
                del self._under_way[wanted]
        self._view.store.keep_missed_s(**wanted.named, seconds=0)
        if outcome is Outcome.HERE:
            self._arrived(wanted)

    def _say_lost(self, wanted: Wanted, *, again: bool) -> bool:
        """Tell the leader that nobody has a frame, and for how long this site has looked for it: leaders may change,
        and this agent begin anew. Whether there is one. again: it was told before the last pause, which counts then."""
        if not self._view.is_current or not self._ranks.lacks(wanted.fragment, wanted.version):
            return False
        missed_s = self._view.store.missed_s(**wanted.named)
        if again:
            missed_s += NEED_PAUSE_S
            self._view.store.keep_missed_s(**wanted.named, seconds=missed_s)
        self._view.say_of_round(Lost(**wanted.named, missed_s=missed_s))
        return True

    async def _first(self, wanted: Wanted, fetch: _Fetch) -> Outcome:
        if fetch.sources:
            return await self._view.fetcher.frame(wanted, fetch.sources, self._view.proxy)
        # To ask the leader who is there takes a second across the world.
        return await self._view.fetcher.frame(wanted, self._view.last_known(wanted))

    async def _take_state(self, wanted: Wanted, sources: Sequence[str], tell: Callable[[], None]) -> bool:
        """Others let go of frames once they have written a state. Whether there is one, which the ranks take then: all
        frames of the fragment that are gone wait for one search. tell: is called meanwhile, for a state takes long."""
        fragment = wanted.fragment
        taking = self._search_state(fragment, wanted.version, wanted, sources)
        while not taking.done():
            await asyncio.wait([taking], timeout=_TOLD_EVERY_S)
            tell()
        version = taking.result()
        if version is None or version <= wanted.version:
            return False
        self._ranks.tell_owner(fragment, TakeState(fragment=fragment, version=version))
        return True

    def _search_state(
        self, fragment: int, above: int, wanted: Wanted | None, sources: Sequence[str] | None = None
    ) -> asyncio.Task[int | None]:
        """The one search for a state of a fragment above this version. wanted: see `RunView.sources`, which are asked
        where none are given."""
        if (taking := self._taking.get(fragment)) is None:

            async def search() -> int | None:
                asked = await self._view.sources(wanted) if sources is None else sources
                return await self._states.newest(fragment, above, asked)

            taking = self._taking[fragment] = self._view.life.start(search())
            taking.add_done_callback(lambda searched: self._state_searched(fragment, searched))
        return taking

    def _state_searched(self, fragment: int, searched: asyncio.Task[int | None]) -> None:
        """There may be a newer one here."""
        del self._taking[fragment]
        version = None if searched.cancelled() or searched.exception() is not None else searched.result()
        if version is not None:
            self._kept.pop(fragment, None)
            if self._ranks.are_away:  # those that are here see to it
                self._view.life.start(asyncio.to_thread(self._needless.state_written, fragment, version))

    def _waits_for_earlier(self, wanted: Wanted) -> bool:
        """Whether the ranks lack a frame of an earlier round too: without it this one is of no use, and hundreds that
        are looked for at once hold up each other."""
        return any(
            other.fragment == wanted.fragment and other.version < wanted.version and fetch.needed
            for other, fetch in self._under_way.items()
        )

    def _is_needed(self, wanted: Wanted) -> bool:
        void = (wanted.fragment, wanted.version) in self._view.state.skipped
        if void or self._ranks.lacks(wanted.fragment, wanted.version):
            return not void
        return self._are_second_copies and wanted.version >= self._kept_state(wanted.fragment).base

    def _arrived(self, wanted: Wanted) -> None:
        """A frame lies on the disk: the leader may count on it, and the owner of the fragment use it."""
        self._view.say_of_round(Hold(**wanted.named, by_mail=False))
        self._ranks.tell_owner(wanted.fragment, Fetched(**wanted.named))
