"""What a rank that comes to a run begins with: its own weights, a state of its own disk, or one that others have."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Collection, Iterator, Sequence

from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.elastic.files.fetch import Outcome
from geocomm.elastic.files.file_server import MOST_TAKERS, HeldState
from geocomm.elastic.journal.entries import Digest
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.run_view import RunView, Sources
from geocomm.security.key_folder import KeysError

AGAIN_S = 1.0
"""Between two questions for a state that nobody has."""
STATE_LIMIT_S = 30.0
"""Others write their states once a site has joined: it waits this long for them, to replay less than FEW_ROUNDS."""
FEW_ROUNDS = 4


class StatesOfOthers:
    """Finds the version of a fragment from which a rank replays the journal, and brings its state here."""

    def __init__(self, view: RunView) -> None:
        self._view = view

    def replayed_from(self, fragment: int) -> int:
        """The lowest version of a fragment from which the journal goes on."""
        first = self._view.journal.first_round(fragment)
        return self._view.state.versions[fragment] if first is None else first

    async def base(
        self,
        fragment: int,
        version: int,
        digest: Digest,
        sources: Sources,
        *,
        joining: bool,
    ) -> tuple[int, bool]:
        """The version to replay from, and whether the rank loads its state from the run folder. The rank itself is at
        `version`, with this digest.

        Where it is FEW_ROUNDS or more behind, and the frames since then that are not on this disk are more bytes than a
        state, the newest state of others is fetched: replay from there takes fewer. joining: others have been told, and
        write theirs. Waits while neither the rank nor anybody else has a state of this run.
        """
        waiting, end = Waiting(log), time.monotonic() + STATE_LIMIT_S
        while True:
            own = version if version > 0 or self._said(fragment, [0]).get(0) == digest else None
            if own is not None and own < self.replayed_from(fragment):
                own = None
            kept = await self.own(fragment)
            if kept is not None and (own is None or kept > own):
                base, loaded = kept, True
            else:
                base, loaded = own, False
            few = base is not None and self._view.state.versions[fragment] - base < FEW_ROUNDS
            if base is not None and (few or not self.outweighs(fragment, base)):
                return base, loaded
            above = -1 if base is None else base
            fetched = await self.newest(fragment, above, await sources())
            if fetched is not None:
                return fetched, True
            if base is not None and (not joining or time.monotonic() > end):
                return base, loaded
            waiting.tell(lambda: f"another site to give a state of fragment {fragment}")
            await asyncio.sleep(AGAIN_S)

    async def own(self, fragment: int) -> int | None:
        """The newest state on this disk from which the journal goes on; one that has other bits than the journal says
        is removed."""
        while (version := self._view.store.latest_state(fragment, self._view.state.versions[fragment])) is not None:
            if version < self.replayed_from(fragment):
                return None
            said = self._said(fragment, [version]).get(version)
            digest = await asyncio.to_thread(self._view.store.state_digest, fragment, version)
            if said == digest or (said is None and not self._view.store.has_changed(fragment, version, digest)):
                return version
            by = "it was written with" if said is None else "the journal says"
            log(f"{self._view.store.state_path(fragment, version)} has other bits than {by}; removed")
            self._view.store.remove_state(fragment, version)
        return None

    def here_until(self, fragment: int, base: int) -> int:
        """The version to which rounds from `base` on can be replayed with the frames on this disk."""
        first = next(self.lacking(fragment, base), None)
        return self._view.state.versions[fragment] if first is None else first.version

    def lacking(self, fragment: int, base: int) -> Iterator[Wanted]:
        """The frames of rounds from version `base` on that are not on this disk."""
        for entry in self._view.journal.rounds(fragment, base):
            if (fragment, entry.version) not in self._view.state.skipped:
                for listed in entry.frames:
                    wanted = Wanted.listed(entry, listed)
                    if not self._view.store.has_frame(**wanted.named):
                        yield wanted

    def outweighs(self, fragment: int, base: int) -> bool:
        """Whether the frames since a state that are not here are more bytes than that state, if it is on this disk; any
        are, where it is not."""
        room = self.state_bytes(fragment, base)
        sizes = itertools.accumulate(wanted.bytes for wanted in self.lacking(fragment, base))
        return any(size > room for size in sizes)

    def state_bytes(self, fragment: int, version: int) -> int:
        """Bytes of the file of a state; 0: it is not on this disk."""
        try:
            return self._view.store.state_path(fragment, version).stat().st_size
        except FileNotFoundError:
            return 0

    async def newest(self, fragment: int, above: int, sources: Sequence[str]) -> int | None:
        """Bring here the newest state that others have, of a version above `above`. None: nobody has one. Waits while
        those that have one give theirs to others: who has got one gives it on."""
        waiting = Waiting(log)
        while True:
            offered, is_busy = await self._offered(fragment, above, sources), False
            for held in sorted(offered, key=lambda one: (one.version, len(offered[one])), reverse=True):
                outcome = await self._view.fetcher.state(fragment, held, offered[held])
                if outcome is Outcome.HERE:
                    return held.version
                is_busy = is_busy or outcome is Outcome.BUSY
            if not is_busy:
                return None
            waiting.tell(
                lambda: f"a site that has a state of fragment {fragment}: each gives its own to {MOST_TAKERS} at a time"
            )
            await asyncio.sleep(AGAIN_S)
            sources = await self._view.sources()

    async def _offered(self, fragment: int, above: int, sources: Sequence[str]) -> dict[HeldState, list[str]]:
        """The states of a fragment above a version that others have, and who."""
        above = max(above, self.replayed_from(fragment) - 1)
        offered: dict[HeldState, list[str]] = {}
        skipped_at = self._view.state.skipped_at.get(fragment, -1)

        async def ask(source: str) -> None:
            with contextlib.suppress(OSError, KeysError):
                states = await self._view.fetcher.states(fragment, source, skipped_at, self._view.state.term)
                digests = self._said(fragment, [held.version for held in states])
                for held in states:
                    fits = digests.get(held.version) in (None, held.digest)
                    if fits and above < held.version <= self._view.state.versions[fragment]:
                        offered.setdefault(held, []).append(source)

        await asyncio.gather(*map(ask, sources))
        return offered

    def _said(self, fragment: int, versions: Collection[int]) -> dict[int, Digest]:
        return said_digests(self._view.journal, self._view.state, fragment, versions)


def said_digests(
    journal: SqliteJournal, state: RunState, fragment: int, versions: Collection[int]
) -> dict[int, Digest]:
    """What the journal, whose state that is, says of the fragment's states at these versions, and no later entry has
    changed."""
    skipped_at = state.skipped_at.get(fragment, -1)
    first_void = min((version for of, version in state.skipped if of == fragment), default=0)
    known = {} if state.genesis is None else {0: state.genesis.digests[fragment]}
    for version in versions:
        entry = next(journal.rounds(fragment, version), None)
        holds = entry is not None and (entry.index > skipped_at or entry.version <= first_void)
        if entry is not None and entry.base is not None and holds:
            known[version] = entry.base
    return known
