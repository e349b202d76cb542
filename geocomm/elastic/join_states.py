"""What a rank that comes to a run begins with: its own weights, a state of its own disk, or one that others have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from geocomm.elastic.fetch import Fetcher, HeldState, Outcome, Wanted
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.journal.entries import Digest, Round
from geocomm.journal.journal import SqliteJournal
from geocomm.journal.run_state import RunState
from geocomm.rendezvous.waiting import Waiting
from geocomm.security.keys import KeysError

AGAIN_S = 2.0
"""Between two questions for a state that nobody has."""
STATE_LIMIT_S = 30.0
"""Others write their states once a site has joined: it waits so long for them, to replay less than FEW_ROUNDS."""
FEW_ROUNDS = 4

Sources = Callable[[], Awaitable[list[str]]]
"""Where other agents give out files, now."""


class StatesOfOthers:
    """Finds the version of a fragment from which a rank replays the journal, and brings its state here."""

    def __init__(self, store: FragmentStore, journal: Path, fetcher: Fetcher, log: Callable[[str], None]) -> None:
        self._store, self._journal, self._fetcher, self._log = store, journal, fetcher, log

    async def rounds(self) -> dict[int, list[Round]]:
        """The round entries of the journal, by fragment."""
        return await asyncio.to_thread(self._read_rounds)

    def _read_rounds(self) -> dict[int, list[Round]]:
        journal = SqliteJournal(self._journal, read_only=True)
        with contextlib.closing(journal):
            found: dict[int, list[Round]] = {}
            for entry in journal.read():
                if isinstance(entry, Round):
                    found.setdefault(entry.fragment, []).append(entry)
            return found

    async def newest(self, state: RunState, fragment: int, above: int, sources: Sequence[str]) -> int | None:
        """Bring here the newest state that others have, of a version above `above`. None: nobody has one."""
        digests = _digests(state, fragment, (await self.rounds()).get(fragment, []))
        return await self._fetch_newest(state, fragment, above, digests, sources)

    async def base(
        self,
        state: RunState,
        rounds: dict[int, list[Round]],
        fragment: int,
        version: int,
        digest: Digest,
        sources: Sources,
        *,
        joining: bool,
    ) -> tuple[int, bool]:
        """The version to replay from, and whether the rank loads its state from the run folder. The rank itself is at
        `version`, with this digest.

        Where it is FEW_ROUNDS or more behind, and frames since then are not on this disk, the newest state of others is
        fetched: replay from there takes fewer. joining: others have been told, and write theirs. Waits while neither
        the rank nor anybody else has a state of this run.
        """
        waiting, end = Waiting(self._log), time.monotonic() + STATE_LIMIT_S
        while True:
            entries = rounds.get(fragment, [])
            digests = _digests(state, fragment, entries)
            own = version if version > 0 or digests.get(0) == digest else None
            kept = await self.own(state, fragment, entries)
            if kept is not None and (own is None or kept > own):
                base, loaded = kept, True
            else:
                base, loaded = own, False
            few = base is not None and state.versions[fragment] - base < FEW_ROUNDS
            if base is not None and (few or not self.lacking(state, entries, base)):
                return base, loaded
            above = -1 if base is None else base
            fetched = await self._fetch_newest(state, fragment, above, digests, await sources())
            if fetched is not None:
                return fetched, True
            if base is not None and (not joining or time.monotonic() > end):
                return base, loaded
            waiting.tell(lambda: f"another site to give a state of fragment {fragment}")
            await asyncio.sleep(AGAIN_S)
            rounds = await self.rounds()

    async def own(self, state: RunState, fragment: int, entries: list[Round]) -> int | None:
        """The newest state on this disk; one that has other bits than the journal says is removed. entries: the rounds
        of the fragment."""
        return await asyncio.to_thread(self._own_state, state, fragment, _digests(state, fragment, entries))

    def here_until(self, state: RunState, entries: list[Round], base: int) -> int:
        """The version to which rounds from `base` on can be replayed with the frames on this disk."""
        after = [entry for entry in entries if entry.version >= base]
        here = itertools.takewhile(lambda entry: not self.lacking(state, [entry], base), after)
        return base + sum(1 for _ in here)

    def _own_state(self, state: RunState, fragment: int, digests: dict[int, Digest]) -> int | None:
        while (version := self._store.latest_state(fragment, state.versions[fragment])) is not None:
            if digests.get(version) in (None, self._store.state_digest(fragment, version)):
                return version
            self._log(f"{self._store.state_path(fragment, version)} has other bits than the journal says; removed")
            self._store.state_path(fragment, version).unlink(missing_ok=True)
        return None

    def lacking(self, state: RunState, entries: list[Round], base: int) -> list[Wanted]:
        """The frames of rounds from `base` on that are not on this disk."""
        return [
            Wanted(entry.fragment, entry.version, listed.site, listed.frame, listed.coded_bytes + listed.exact_bytes)
            for entry in entries
            if entry.version >= base and (entry.fragment, entry.version) not in state.skipped
            for listed in entry.members
            if not self._store.has_frame(entry.fragment, entry.version, listed.site, listed.frame)
        ]

    async def _fetch_newest(
        self, state: RunState, fragment: int, above: int, digests: dict[int, Digest], sources: Sequence[str]
    ) -> int | None:
        offered: dict[HeldState, list[str]] = {}
        skipped_at = state.skipped_at.get(fragment, -1)

        async def ask(source: str) -> None:
            with contextlib.suppress(OSError, KeysError):
                for held in await self._fetcher.states(fragment, source, skipped_at, state.term):
                    fits = digests.get(held.version) in (None, held.digest)
                    if fits and above < held.version <= state.versions[fragment]:
                        offered.setdefault(held, []).append(source)

        await asyncio.gather(*map(ask, sources))
        for held in sorted(offered, key=lambda one: (one.version, len(offered[one])), reverse=True):
            if await self._fetcher.state(fragment, held, offered[held]) is Outcome.HERE:
                return held.version
        return None


def _digests(state: RunState, fragment: int, entries: list[Round]) -> dict[int, Digest]:
    """What the journal says of the fragment's states, by version, and no later entry has changed."""
    skipped_at = state.skipped_at.get(fragment, -1)
    first_void = min((version for of, version in state.skipped if of == fragment), default=0)
    known = {} if state.genesis is None else {0: state.genesis.digests[fragment]}
    for entry in entries:
        if entry.base is not None and (entry.index > skipped_at or entry.version <= first_void):
            known[entry.version] = entry.base
    return known
