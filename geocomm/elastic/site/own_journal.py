"""The journal of an agent's site: it takes the entries of the leader, and gives up those that are not the run's.

Where this agent leads too, both use the journal's one file, in which it finds what the leader wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files.known_agents import is_forced
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.entries import AnyRound, BadLineError, Deal, Entry, Skip, Snapshot, TakenBack
from geocomm.elastic.journal.messages import MAX_STATE_CHARS, StatePart
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks, begins_with, own_deals

_STORED_AT_ONCE = 500
"""Entries, while the journal here lacks those that the leader had at the welcome."""


class OwnJournal:
    """Used in one event loop."""

    def __init__(
        self,
        view: RunView,
        ranks: SiteRanks,
        snapshots: Snapshots,
        applied: Callable[[Entry, SiteDeal | None], None],
        grown: Callable[[], None],
    ) -> None:
        """applied: is called with each entry once it is in the journal and in the state, and with what it deals to this
        site: the state may have later ones too. grown: once some are."""
        self._view, self._ranks, self._snapshots = view, ranks, snapshots
        self._applied, self._grown = applied, grown
        self._arrived: list[Entry] = []
        """They wait for others, to be stored at once."""
        self._state_text = ""
        """What has come of a state that arrives in parts."""

    def forget_arrived(self) -> None:
        """The connection to the leader has ended, so it will say again what has come and is not stored."""
        self._arrived.clear()
        self._state_text = ""

    def take(self, entry: Entry) -> None:
        """The next entry, as the leader says."""
        self._arrived.append(entry)
        goal = 0 if self._view.welcome is None else self._view.welcome.head
        if entry.index >= goal or len(self._arrived) >= _STORED_AT_ONCE:
            self.store_arrived()

    def take_now(self, entries: Sequence[Entry]) -> None:
        """The next entries, which no others follow."""
        self._arrived += entries
        self.store_arrived()

    def store_arrived(self) -> None:
        """Take the entries that have arrived, which is one write to the disk."""
        arrived, self._arrived = self._arrived, []
        head, new = self._view.journal.head, list[Entry]()
        for entry in arrived:
            if entry.index <= head.index:
                if self._view.journal.hash_at(entry.index) != entry.hash:
                    self._go_back(entry.index)
                    return
            elif (
                not new
                and entry.prev != head.hash
                and self._view.welcome is not None
                and self._view.welcome.term > self._view.state.term
            ):
                self._go_back(self._view.state.terms.get(self._view.state.term, 0))
                return
            else:
                new.append(entry)
        self._follow()
        taken: list[tuple[Entry, SiteDeal | None]] = []
        try:
            for entry in new:
                deal = self._take_entry(entry)
                taken.append((entry, deal))
        finally:
            if taken:
                self._view.journal.append_all([entry for entry, _ in taken], head)
            for entry, deal in taken:
                self._applied(entry, deal)
        if arrived:
            self._view.journal.keep(self._view.state)
            self._follow()
            self._grown()

    def take_part(self, part: StatePart) -> None:
        """The leader has not all entries that this journal lacks, or they are too many: it says what they come to."""
        self._state_text += part.text
        if len(self._state_text) > MAX_STATE_CHARS:
            raise BadLineError(f"a state of the run of more than {MAX_STATE_CHARS} characters")
        if not part.last:
            return
        state, welcome = RunState.read(self._state_text), self._view.welcome
        self._state_text = ""
        known = self._view.state
        if (
            welcome is None
            or state.genesis is None
            or state.genesis.run != welcome.run
            or (known.genesis is not None and known.genesis.run != state.genesis.run)
            or not state.head.index <= welcome.head
            or not known.term <= state.term <= welcome.term
            # A leader that led alone may have more entries: where a later one took over, they are no part of the run.
            or not (known.head.index < state.head.index or known.term < state.term)
        ):
            raise BadLineError(f"a state after entry {state.head.index}, which does not follow {known.head.index}")
        self._view.leave_leader()
        self._view.life.start(self._begin_at(state))

    async def _begin_at(self, state: RunState) -> None:
        known = self._view.state
        why = (
            f"the leader at {self._view.leader_at} has given the state of the run after entry {state.head.index} in "
            f"place of the entries that this site, which had {known.head.index + 1}, lacked"
        )
        if (first := _parts_from(state, known)) is not None:
            await self._void(first, dict.fromkeys(range(len(known.versions)), -1), why)
        elif not begins_with(state, known, self._view.site):
            await self._ranks.end_those_with(0, f"what was dealt to site {self._view.site} was taken back. {why}")
        self._view.journal.begin_at(state)
        self._view.life.start_again(why)

    def _follow(self) -> None:
        """Take what is in the journal and not yet in the state: what the leader of this process wrote."""
        if self._view.state.head != self._view.journal.head:
            for entry in self._view.journal.read(self._view.state.head.index + 1):
                self._applied(entry, self._take_entry(entry))

    def _take_entry(self, entry: Entry) -> SiteDeal | None:
        """Returns what it deals to this site."""
        state, site = self._view.state, self._view.site
        if isinstance(entry, Snapshot):
            self._view.journal.keep(state, always=True)
        state.apply(entry)
        if isinstance(entry, Skip):
            self._view.store.remove_states_after(entry.fragment, entry.version)
        if isinstance(entry, Deal) and entry.site == site:
            return next(own_deals(state, site, state.line_ends(site) - entry.sequences))
        return None

    def _go_back(self, first: int) -> None:
        """This journal ends outside the run's: what the site did from entry `first` on is not a part of it."""
        self._view.leave_leader()  # nothing is heard or said any more
        self._view.life.start(self._rejoin(first))

    async def _rejoin(self, first: int) -> None:
        view, void, has_deals = self._view, dict[int, int](), False
        if first <= view.journal.base.index:
            void = dict.fromkeys(range(len(view.state.versions)), -1)
        for entry in view.journal.read(first):
            if isinstance(entry, AnyRound | Skip):
                void[entry.fragment] = min(entry.version, void.get(entry.fragment, entry.version))
            has_deals |= isinstance(entry, Deal | TakenBack) and entry.site == view.site
        why = (
            f"the entries of site {view.site} from {first} on are those of a leader before, and not a part of the run: "
            f"it goes on from where the leader at {view.leader_at} took over"
        )
        if has_deals:
            await self._ranks.end_those_with(first, why)
        await self._void(first, void, why)
        aside = view.journal.cut(first)
        view.life.start_again(f"{why}. The entries are kept in {aside.name}")

    async def _void(self, first: int, versions: dict[int, int], why: str) -> None:
        """What came of the entries from `first` on is no part of the run. versions: by fragment, from where on that
        is."""
        if versions:
            await self._ranks.end_those_with(first, why)
        for fragment, version in versions.items():
            self._view.store.remove_states_after(fragment, version)
        self._snapshots.remove_from(first)


def _parts_from(state: RunState, known: RunState) -> int | None:
    """The first entry of a journal that says `known` which is no part of the run, whose state is `state`, by who led:
    another one began a term that one of them lacks, or the last one known. None: all are a part, as far as is known."""
    both = known.terms.keys() | state.terms.keys()
    others = {term for term in both if known.terms.get(term) != state.terms.get(term)}
    is_same = state.term == known.term and state.taken_over == known.taken_over
    if is_forced(known.term) and not is_same:  # two sites may have begun it
        others |= {known.term} & both
    begins = (terms[term] for terms in (known.terms, state.terms) for term in others if term in terms)
    return min((index for index in begins if index <= known.head.index), default=None)
