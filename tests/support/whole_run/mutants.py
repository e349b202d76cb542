"""Faults that geocomm had, put back: the simulator has to find them, or it is too coarse.

Each is a function in the place of one of the product, as it was before the mend.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.core.patience import Waiting
from geocomm.core.records import Hash
from geocomm.core.run_dir import RunDir
from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files import snapshots
from geocomm.elastic.files.fetch import Fetcher, Outcome
from geocomm.elastic.files.fragment_store import FragmentStore, file_digest
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.admission import LedSite
from geocomm.elastic.journal.entries import AnyRound, BadLineError, Entry, Head
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.leader_deals import LeaderDeals
from geocomm.elastic.journal.leader_rounds import LeaderRounds
from geocomm.elastic.journal.leader_snapshots import LeaderSnapshots
from geocomm.elastic.journal.lost_frames import LostFrames
from geocomm.elastic.journal.member import Member
from geocomm.elastic.journal.messages import Beat, Down, Hello, Lost, Offer, StatePart, Stop, Wanted
from geocomm.elastic.journal.open_round import Charge, OpenRound
from geocomm.elastic.journal.round_charges import RoundCharges
from geocomm.elastic.journal.run_state import RunState, SiteRecord, Standing
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.leading import agent_link
from geocomm.elastic.leading.etcd import Election, EtcdJournal, Leading
from geocomm.elastic.leading.leader import Leader
from geocomm.elastic.leading.questions import (
    AgentStanding,
    LeaderAnswer,
    MembersAsked,
    PromotionAnswer,
    PromotionAsked,
    RemovalAsked,
)
from geocomm.elastic.site import following, frame_fetches, journal_of_others
from geocomm.elastic.site.following import Following
from geocomm.elastic.site.frame_fetches import FrameFetches
from geocomm.elastic.site.own_journal import OwnJournal
from geocomm.elastic.site.promotion import Candidate
from geocomm.elastic.site.run_disk import RunDisk
from geocomm.elastic.site.run_view import RunView
from geocomm.elastic.site.site_ranks import SiteRanks, own_deals
from support.whole_run import mutants_of_regions  # noqa: F401  # they are MUTANTS too
from support.whole_run.mutant import MUTANTS, Mutant, mutant

# ---- frames


@mutant(FrameFetches, "until_here", "mail", "uplink")
def _a_need_is_lost(self: FrameFetches, wanted: Wanted) -> None:
    """What ranks need is forgotten where a fetch of it is under way."""
    if wanted not in self._under_way:
        self._fetch(wanted, []).needed = True


MUTANTS["mail is waited for for ever"] = Mutant(
    "A listed frame that does not come by mail is not fetched.",
    frame_fetches,
    "MAIL_S",
    1e9,
    ("mail", "uplink"),
)


@mutant(FrameFetches, "for_others", "strange frame")
async def _folders_for_strangers(self: FrameFetches, wanted: Wanted) -> bool:
    """A leader that is asked for a frame makes a folder for it, whatever it is."""
    return await self._view.fetcher.frame(wanted, await self._view.sources(wanted)) is Outcome.HERE


@mutant(Fetcher, "_close_idle", "ranks", "line", lasting="headless")
def _idle_connections_stay(self: Fetcher, connection: Any) -> None:
    """A connection for files that nobody takes again is kept."""


_keep = Fetcher._keep


@mutant(Fetcher, "_keep", "one way", "line", "agent", data=True)
def _an_unused_connection_is_kept_anew(self: Fetcher, connection: Any) -> None:
    """A connection that was taken, and over which nothing was asked, is idle from then on only."""
    connection.used_at = asyncio.get_running_loop().time()
    _keep(self, connection)


@mutant(Member, "lost", "files", "ranks")
def _a_damaged_frame_is_not_asked_for_again(self: Member, fragment: int, version: int, site: str, frame: str) -> Any:
    """The round of a frame that a disk has changed waits for ever."""
    self._own[fragment].on_disk.discard((version, site, frame))
    return []


@mutant(OpenRound, "let_go", "files")
def _what_a_disk_has_lost_is_counted_on(self: OpenRound, name: str, frame: Hash) -> None:
    """Aggregators are asked in turn for the average of frames that their disks have lost."""


_say_of_round = RunView.say_of_round


@mutant(RunView, "say_of_round", "frames")
def _a_lost_frame_is_not_told(self: RunView, said: Any) -> None:
    """Nobody tells the leader that a listed frame is nowhere: the round is never made void."""
    if not isinstance(said, Lost):
        _say_of_round(self, said)


@mutant(LostFrames, "_is_earlier", "frames", lasting="restless")
def _each_leader_looks_anew(self: LostFrames, fragment: int, version: int) -> bool:
    """A leader knows nothing of how long a frame was missed under those before: one after another ends before a lost
    frame is given up."""
    return False


@mutant(FrameFetches, "keep_second_copies", lasting="last")
async def _a_second_copy_is_asked_for_once(self: FrameFetches) -> None:
    """What ranks that are away will need is fetched when its entry comes, and by the agent that hears of it alone."""
    known = self._view.state.head.index
    while True:
        await asyncio.sleep(0.1)
        for entry in self._view.journal.read(known + 1) if self._are_second_copies else ():
            if isinstance(entry, AnyRound):
                for listed in entry.frames:
                    self.once(Wanted.listed(entry, listed), [])
        known = self._view.state.head.index


# ---- rounds


@mutant(RunState, "to_skip", "files")
def _the_oldest_round_is_void_first(self: RunState, fragment: int, version: int) -> list[int]:
    """Who hears of the first of several void rounds applies the next one, whose deltas are to another state."""
    return [v for v in range(version, self.versions[fragment]) if (fragment, v) not in self.skipped]


_without_outliers = LeaderRounds._without_outliers


@mutant(LeaderRounds, "_without_outliers")
def _another_rate_is_left_out(
    self: LeaderRounds, fragment: int, found: OpenRound, eligible: Mapping[str, Offer]
) -> dict[str, Offer]:
    """The referee of learning rates: who has another one than the site that is furthest does not count, and is stopped
    the third time, though that one may only be past a step of the schedule."""
    first = max(eligible.values(), key=lambda offer: offer.step).lr
    fits = {name: offer for name, offer in eligible.items() if abs(offer.lr - first) <= 0.05 * first}
    for name in sorted(eligible.keys() - fits.keys()):
        faults = self._ways.unmailed[name, ""] = self._ways.unmailed.get((name, ""), 0) + 1
        if faults >= 3:
            self._run.send(name, Stop(why="its learning rate differs from that of the others (the 3rd time)"))
    return _without_outliers(self, fragment, found, fits)


_name = RoundCharges.name


@mutant(RoundCharges, "name", "leave", "machine")
def _an_aggregator_is_named_once(self: RoundCharges, fragment: int, found: OpenRound) -> Charge | None:
    """Who averages a round stays the one who does, also where it has left."""
    return found.charge if found.charges else _name(self, fragment, found)


@mutant(OpenRound, "is_safe", "line", "mail", "disk")
def _one_disk_is_safe(self: OpenRound, frame: Hash, live: Sequence[str]) -> bool:
    """A round lists what lies on the disk of one live site, where others are live too."""
    return any(self.holds(name, frame) for name in live)


@mutant(Member, "_forget_opens", lasting="restless")
def _a_round_is_open_for_ever(self: Member, still_open: Sequence[tuple[int, int, int]]) -> None:
    """A rank believes in rounds that the leader, a later one, does not name any more."""


_counted = Member._counted


@mutant(Member, "_counted", "line", "agent", "mail")
def _the_last_own_frame_alone_counts(self: Member, own: Any, entry: AnyRound) -> Offer | None:
    """A rank forgets what it has offered before in the same round: the steps in it count again."""
    found = _counted(self, own, entry)
    return found if found in own.own[-1:] else None


_member = Member.__init__


@mutant(Member, "__init__", "frames", "files", "disk", data=True)
def _ranks_read_on_behind_void_rounds(self: Member, site: str, versions: Mapping[int, int], head: int = -1) -> None:
    """Ranks do not look whether they were told of rounds, before they read on, that become void."""
    _member(self, site, versions)


# ---- who takes part


_hello = Sequencer._hello


@mutant(Sequencer, "_hello", lasting="phantom")
def _a_hello_is_life_enough(self: Sequencer, name: str, site: LedSite, hello: Hello) -> None:
    """A site whose line breaks after each Hello is live for ever."""
    _hello(self, name, site, hello)
    site.heard = self._run.now


@mutant(Sequencer, "_hello", "disk", "line", "agent")
def _a_lost_disk_is_believed(self: Sequencer, name: str, site: LedSite, hello: Hello) -> None:
    """A leader does not look whether a site comes back with another run folder."""
    known = self.state.sites.get(name)
    _hello(self, name, site, hello if known is None else hello.model_copy(update={"store": known.store}))


MUTANTS["silence is not noticed"] = Mutant(
    "A connection to a machine that has ended without a word is kept for ever.",
    agent_link,
    "SILENCE_S",
    1e9,
    lasting="headless",
)


@mutant(following, "answer_of", "removal")
def _the_leader_can_be_removed(leader: Leader, own_site: str, asked: MembersAsked | RemovalAsked) -> LeaderAnswer:
    """`members remove` of the site that leads ends the leader."""
    problem = leader.remove(asked.site, asked.why) if isinstance(asked, RemovalAsked) else ""
    return LeaderAnswer(problem=problem)


# ---- journals and snapshots


_take_part = OwnJournal.take_part


@mutant(OwnJournal, "take_part", lasting="alone")
def _a_former_leader_is_refused(self: OwnJournal, part: StatePart) -> None:
    """One that led alone does not take the state of a later one, which has fewer entries."""
    if part.last and RunState.read(self._state_text + part.text).head.index <= self._view.state.head.index:
        raise BadLineError("a state that does not follow")
    _take_part(self, part)


@mutant(LeaderSnapshots, "_since_last_s", lasting="restless")
def _snapshots_wait_for_a_leader_that_lasts(self: LeaderSnapshots) -> float:
    """A snapshot is due a whole while after a leader has begun."""
    return 0.0


@mutant(snapshots, "_indices", "litter", "agent")
def _any_folder_is_a_snapshot(files: RunDir) -> list[int]:
    """A folder such as 74.bak beside the snapshots ends the agent."""
    return sorted(int(path.name) for path in files.snapshots.iterdir()) if files.snapshots.is_dir() else []


# ---- who leads


_init = KnownAgents.__init__


@mutant(KnownAgents, "__init__", "hub", "agent", lasting="alone")
def _the_term_is_forgotten(self: KnownAgents, run_dir: Path, log: Callable[[str], None]) -> None:
    """An agent that starts again does not know whom it has promised to follow."""
    _init(self, run_dir, log)
    self.term, self.leader = 0, ""


@mutant(KnownAgents, "claim", "journals", "hub")
def _all_promotions_claim_the_next_term(self: KnownAgents, after: int, address: str, *, force: bool) -> int:
    """A promotion with --force claims a term to which most may have agreed for another site."""
    self.term, self.leader, self._claimed, self.force = after + 1, address, after + 1, force
    self.lost_journal = False
    self._write()
    return self.term


@mutant(KnownAgents, "lose_journal", "journals", "hub", "one way")
def _a_term_is_begun_twice(self: KnownAgents) -> None:
    """Who loses the journal in which it began a term takes it for one that it has not begun."""
    self.lost_journal = True
    self._write()


_promote = Following._promote


@mutant(Following, "_promote", "journals", "hub")
async def _who_leads_cannot_begin_a_later_term(self: Following, asked: PromotionAsked, site: str) -> PromotionAnswer:
    """A site that leads with a term which others take for past cannot be promoted, whatever they have lost since."""
    if self._view.leader is not None and asked.address in ("", self._view.leader_at):
        return PromotionAnswer(problem=f"site {site} leads already")
    return await _promote(self, asked, site)


@mutant(Following, "_end_two_lines", lasting="two lines")
async def _two_lines_of_one_term_last(self: Following, equals: Sequence[AgentStanding]) -> None:
    """Two that lead with one term, after promotions with --force, wait for a person who empties run folders."""


@mutant(Candidate, "_most_of_members", "minority")
def _a_minority_promotes(self: Candidate, found: dict[str, AgentStanding], asked: PromotionAsked) -> list[str]:
    """A site is promoted without --force though most of the members are away."""
    return []


_append_all = EtcdJournal.append_all


@mutant(Election, "stand_again", "etcd backup", "agent", "leader", with_etcd=True)
def _a_restored_etcd_counts_terms_anew(self: Election, leading: Leading, term: int) -> None:
    """Who leads after etcd was restored has a lower term than entries that all have: nobody takes its entries."""


@mutant(EtcdJournal, "append_all", "etcd backup", "machine", "leader", lasting="restless", with_etcd=True)
def _etcd_is_given_one_entry_after_the_other(self: EtcdJournal, entries: Sequence[Entry], expected: Head) -> None:
    """Where the site that gives etcd its end ends in between, another one leads on from a part."""
    for entry in entries:
        _append_all(self, [entry], expected)
        expected = self.head


@mutant(Leader, "_most_have", "journal", "uplink", "machine", with_etcd=True)
def _etcd_forgets_what_few_have(self: Leader, index: int) -> bool:
    """Entries before a snapshot go from etcd though with --copies 1 one site alone has them, whose disk is lost."""
    return True


# ---- who leaves


@mutant(Leader, "others_connected", lasting="leave")
def _a_leader_waits_for_those_that_have_left(self: Leader, site: str) -> list[str]:
    """The site that leads does not end where others have left before it."""
    return [name for name in sorted(self.sequencer.sites) if name != site]


# ---- damaged files


_damage = journal_of_others._damage


@mutant(journal_of_others, "_damage", "journal")
def _a_lost_journal_is_begun_anew(path: Path, *, has_run: bool) -> str:
    """A site whose journal is gone begins with none: where it leads, with another run."""
    return _damage(path, has_run=has_run) if path.exists() else ""


@mutant(journal_of_others, "_damage", "journal")
def _a_damaged_first_page_is_no_journal(path: Path, *, has_run: bool) -> str:
    """A journal that SQLite does not know for one of its files ends the site's part in the run."""
    return _damage(path, has_run=False) if path.exists() else _damage(path, has_run=has_run)


_add = journal_of_others._add


@mutant(journal_of_others, "_add", "journals", "hub")
def _what_a_damaged_journal_still_has_counts(journal: SqliteJournal, entries: Sequence[Entry]) -> None:
    """No journal is taken that has other entries than can be read in the damaged one, though fewer than most had
    those."""
    damaged = journal.path.with_name(journal.path.name[1:].removesuffix(".part"))
    file = f"file:{damaged}?mode=ro"
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file, uri=True)) as db:
        known = dict(db.execute("SELECT idx, hash FROM entries"))
        if any(known.get(entry.index, entry.hash) != entry.hash for entry in entries):
            raise BadLineError("it has other entries")
    _add(journal, entries)


@mutant(journal_of_others, "said_digests", "journals", "hub", "line")
def _states_outlive_a_lost_journal(
    journal: SqliteJournal, state: RunState, fragment: int, versions: Collection[int]
) -> dict[int, str]:
    """A site that has its journal from others begins with states that its own had led to."""
    return dict.fromkeys(versions, "")


@mutant(SqliteJournal, "check", "journal")
def _only_entries_are_looked_at(self: SqliteJournal) -> None:
    """What SQLite keeps beside the entries may be damaged: each agent ends when it writes."""
    with self._one_view():
        for _ in self._rows(0):
            pass


@mutant(FragmentStore, "has_changed", "files")
def _a_changed_state_is_begun_with(self: FragmentStore, fragment: int, version: int, digest: str) -> bool:
    """A state is what its file says, where the journal says nothing of it."""
    return False


@mutant(journal_of_others, "are_most", "journals")
def _any_journal_is_the_whole_one(some: Collection[str], members: Collection[str]) -> bool:
    """A site whose journal is damaged takes the longest of those that answer, though most members do not."""
    return False


MUTANTS["a full disk holds up all"] = Mutant(
    "A site whose disk takes no frames is live: of two, no round counts.",
    RunDisk,
    "failed",
    lambda self, size: None,
    lasting="full",
)


@mutant(Snapshots, "_unchanged", "files")
def _a_changed_state_is_kept(self: Snapshots, path: Path, fragment: int, version: int) -> str:
    """A site says that it has a snapshot of which its disk has changed a state since it was written."""
    return file_digest(path, version)


# ---- data that the run deals


@mutant(LeaderDeals, "beat", data=True)
def _deals_wait_for_what_counts(self: LeaderDeals, name: str, beat: Beat) -> None:
    """The leader does not hear how far a site has read: one that has read all, and counts too little, gets no more."""


@mutant(LeaderDeals, "_is_gone", "hub", data=True)
def _nothing_is_taken_back(self: LeaderDeals, name: str, site: SiteRecord) -> bool:
    """What was dealt to a site that is gone is never read."""
    return False


@mutant(LeaderDeals, "_gone_before_s", "hub", lasting="restless", data=True)
def _each_leader_counts_anew_how_long_a_site_is_gone(self: LeaderDeals, site: SiteRecord) -> float:
    """Where leaders change more often than a site is given up, what was dealt to one that is gone is never read."""
    return 0.0


@mutant(LeaderDeals, "_take_back_unreadable", "version", "agent", data=True)
def _a_newer_version_denies_nothing(self: LeaderDeals) -> None:
    """Sites read on what a newer version does not let them read."""


_end_taken_back = SiteRanks.end_taken_back


@mutant(SiteRanks, "end_taken_back", "full", "agent", "version", data=True)
def _ranks_of_a_new_agent_read_on(self: SiteRanks) -> None:
    """Ranks that train, and that an agent which began anew has not welcomed yet, do not hear that deals of theirs are
    taken back."""
    held = {place: rank for place, rank in self._ranks.items() if not rank.welcomed}
    self._ranks = {place: rank for place, rank in self._ranks.items() if rank.welcomed}
    _end_taken_back(self)
    self._ranks |= held


@mutant(SiteRanks, "end_taken_back", "leave", "uplink", data=True)
def _ranks_read_on_that_hear_late_of_a_leave(self: SiteRanks) -> None:
    """Ranks that begin without a leader, and then hear that the site had left before, read on what others read."""
    if self._view.state.sites[self._view.site].standing is not Standing.LEFT:
        _end_taken_back(self)


_tell_owner = SiteRanks.tell_owner


@mutant(SiteRanks, "tell_owner", "one way", "line", "agent", data=True)
def _deals_that_come_together_are_the_last_one(self: SiteRanks, fragment: int, down: Down) -> None:
    """Where several entries come at once, each deal is looked for at the end of the line, where the last one is."""
    state, site = self._view.state, self._view.site
    for one in own_deals(state, site, state.line_ends(site) - down.sequences) if isinstance(down, SiteDeal) else [down]:
        _tell_owner(self, fragment, one)


MUTANTS["sites read from the beginning"] = Mutant(
    "Ranks that start again read what counts for all fragments.",
    SiteRecord,
    "taken",
    property(lambda self: self.for_good),
    ("ranks", "agent"),
    data=True,
)


# ---- words


@mutant(Waiting, "tell", lasting="headless")
def _waits_say_nothing(self: Waiting, what: Callable[[], str]) -> None:
    """Whoever waits does not say for what."""
