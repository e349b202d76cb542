"""What a journal says about the run: the fold of its entries. Equal journals give equal states."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Annotated

from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from geocomm.core.records import Hash, Whole, canonical
from geocomm.core.units import count_text
from geocomm.data.deal_records import DealtCounts, DealtShards, Line, Piece, count, cut, length
from geocomm.elastic.journal.entries import (
    EMPTY,
    FRAME_BYTES,
    MAX_FRAME_BYTES,
    MOST_STEPS,
    AnyRound,
    Away,
    BadLineError,
    Counted,
    Data,
    Deal,
    Digest,
    End,
    Entry,
    Genesis,
    Head,
    Join,
    Kept,
    Left,
    Listed,
    Ready,
    Removed,
    Round,
    Skip,
    Snapshot,
    SummedRound,
    TakenBack,
    TermBegun,
)

KEPT_SNAPSHOTS = 16
"""The number of newest ones of which a state says that they are kept."""
GONE_BACK_TO = 2
"""Newest kept snapshots that sites have on disk, and so the journal goes back to."""


class Standing(StrEnum):
    """What a site is in the run."""

    JOINING = "joining"
    """It fetches and replays."""
    READY = "ready"
    """Its frames may count, and others wait for it: it is *live*."""
    AWAY = "away"
    LEFT = "left"
    REMOVED = "removed"


Marks = tuple[tuple[int, int], ...]
"""(version of a round, tokens that the site had read by its frame there), the oldest first."""


@dataclass(frozen=True)
class SiteRecord:
    """A site as the journal knows it."""

    name: str
    standing: Standing
    store: str
    """The id of the site's run folder."""
    since: int
    """Index of the entry that gave it this standing."""
    why: str = ""
    """Why it is away or removed."""
    rounds: int = 0
    """That listed a frame of it."""
    weight: int = 0
    """What these frames count for: steps, or tokens. Those of all fragments are added up."""
    read: tuple[Marks, ...] = ()
    """By fragment: how far the site had read in its data by its frames that count there."""
    line: Line = ()
    """What was dealt to it, and was not taken back: it reads that in this order. Its beginning that counts for good is
    forgotten."""
    for_good: int = 0
    """Tokens of that beginning, in whole sequences."""
    anew: bool = False
    """Deals were taken back from it, and it has not joined since."""

    @property
    def taken(self) -> int:
        """Tokens that the site has read and that count in every fragment: from there it reads on when it comes back."""
        return max(self.for_good, min((marks[-1][1] if marks else 0 for marks in self.read), default=0))

    def listed(self, fragment: int, version: int, one: Listed | Counted) -> SiteRecord:
        """The record after a round that lists a frame of the site."""
        marks = self.read[fragment]
        most = max(marks[-1][1], one.taken) if marks else one.taken
        return replace(
            self,
            read=self._with_marks(fragment, _thinned((*marks, (version, most)))),
            rounds=self.rounds + 1,
            weight=self.weight + one.weight,
        )

    def voided(self, fragment: int, version: int) -> SiteRecord:
        """The record where this round of the fragment, and with it all later ones, is void."""
        marks = self.read[fragment]
        return replace(self, read=self._with_marks(fragment, tuple(mark for mark in marks if mark[0] < version)))

    def taken_back(self, line: Line, tokens: int) -> SiteRecord:
        """The record where this is left of its line, of which these tokens count: other fragments have more."""
        read = tuple(tuple((version, min(most, tokens)) for version, most in marks) for marks in self.read)
        return replace(self, read=read, line=line, anew=True)

    def forgotten(self, tokens: int, length: int) -> SiteRecord:
        """The record without the pieces of its line, in sequences of this length, that end within these tokens."""
        gone, line = self.for_good, self.line
        while line and (end := gone + line[0].sequences * length) <= tokens:
            gone, line = end, line[1:]
        return replace(self, line=line, for_good=gone)

    def _with_marks(self, fragment: int, marks: Marks) -> tuple[Marks, ...]:
        return (*self.read[:fragment], marks, *self.read[fragment + 1 :])


def _thinned(marks: Marks) -> Marks:
    """The newest marks, and of older ones about two for each doubling of their age. So a run of any length has few, and
    a round that becomes void takes back little more than what it counted."""
    newest, kept = marks[-1][0], [marks[-1]]
    for older, mark in zip(marks[-3::-1], marks[-2:0:-1], strict=True):
        if kept[-1][0] - older[0] > newest - kept[-1][0]:
            kept.append(mark)
    return (*marks[:-1][:1], *reversed(kept))


_MAY_BECOME = {
    Standing.READY: {Standing.JOINING, Standing.AWAY},
    Standing.AWAY: {Standing.JOINING, Standing.READY},
    Standing.LEFT: {Standing.READY, Standing.AWAY, Standing.JOINING},
    Standing.REMOVED: {Standing.JOINING, Standing.READY, Standing.AWAY, Standing.LEFT},
}
"""From which standings each is reached; JOINING is reached from any but REMOVED, and by a site that is new."""


@dataclass
class RunState:
    """The run after the entries that `apply` has taken."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    genesis: Genesis | None = None
    """The first entry; None: no site has begun."""
    head: Head = EMPTY
    """The end of the chain."""
    term: Whole = 0
    """The highest so far."""
    terms: dict[int, Whole] = field(default_factory=dict[int, int])
    """By term that a leader began by taking over: the index of its first entry."""
    taken_over: TermBegun | None = None
    """The entry by which the present leader took over; None: the first one leads."""
    sites: dict[str, SiteRecord] = field(default_factory=dict[str, SiteRecord])
    versions: list[Whole] = field(default_factory=list[int])
    """By fragment: how many round entries it has, void ones too."""
    rounds: dict[int, AnyRound] = field(default_factory=dict[int, AnyRound])
    """By fragment: its last round entry."""
    skipped: Annotated[set[tuple[int, int]], PlainSerializer(sorted)] = field(default_factory=set[tuple[int, int]])
    """(fragment, version) of void round entries."""
    skipped_at: dict[int, int] = field(default_factory=dict[int, int])
    """By fragment: the index of the last entry that made one void. What earlier entries say of the digests of later
    versions (`base`) is not so any more."""
    snapshot: Snapshot | None = None
    """The last entry of this kind."""
    kept: dict[int, Kept] = field(default_factory=dict[int, Kept])
    """By the index of a snapshot: the entry that says that enough sites have it; of the newest ones."""
    every: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps between two rounds of a fragment."""
    every_is_said: bool = True
    """Whether the last round entry says so, or those before: not where its sites were removed since."""
    every_by: tuple[str, ...] = ()
    """The members of the round that said `every`."""
    step: Whole = 0
    """Of the run: the most that a listed frame says, or the genesis. Frames of sites that were removed do not count: so
    the run outlives one that has lied, or whose memory is broken."""
    steps: dict[str, Whole] = field(default_factory=dict[str, int])
    """By site: the most that a listed frame of it says."""
    data: dict[int, Data] = field(default_factory=dict[int, Data])
    """By the index of its entry: the versions of the data set that deals are of, the one in force last."""
    deals: dict[int, DealtShards] = field(default_factory=dict[int, DealtShards])
    """By the index of its entry: the shards that were dealt, of which somebody has a piece. Rests of deals are not
    among them."""
    dealt: dict[int, DealtCounts] = field(default_factory=dict[int, DealtCounts])
    """By the index of the entry of their version: how often shards were dealt in deals that are forgotten."""
    taken_at: dict[int, dict[str, Whole]] = field(default_factory=dict[int, dict[str, int]])
    """By the index of a snapshot, and by site: the tokens that counted in every fragment there."""
    rests: Line = ()
    """What was taken back, and is to be dealt to others, the oldest first."""
    ended: bool = False
    """Whether the run is over."""

    @staticmethod
    def of(entries: Iterable[Entry]) -> RunState:
        """The state after these entries, from the first on."""
        state = RunState()
        for entry in entries:
            state.apply(entry)
        return state

    @staticmethod
    def read(text: str) -> RunState:
        """The state that a `text` is of. Raises BadLineError for what is none."""
        try:
            state = _STATE.validate_json(text)
        except ValidationError as error:
            raise BadLineError(f"not the state of a run: {error.errors()[0]['msg']}") from None
        if any(len(site.read) != len(state.versions) for site in state.sites.values()):
            raise BadLineError("not the state of a run: a site's `read` has another number of fragments")
        return state

    @property
    def text(self) -> str:
        """All of it, as canonical JSON: equal states have equal texts."""
        return canonical(_STATE.dump_python(self, mode="json"))

    @property
    def digest(self) -> Hash:
        """SHA-256 of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def needed_from(self) -> int:
        """Entries before this one are of no use any more: sites begin at a state of later snapshots."""
        return sorted(self.kept)[-GONE_BACK_TO] if len(self.kept) >= GONE_BACK_TO else 0

    @cached_property
    def live(self) -> list[str]:
        """The sites that are ready, by name. Asked for after each event: made once for each change."""
        return sorted(name for name, site in self.sites.items() if site.standing is Standing.READY)

    def is_live(self, name: str) -> bool:
        """Whether a site is among `live`."""
        site = self.sites.get(name)
        return site is not None and site.standing is Standing.READY

    @property
    def lacks_snapshot(self) -> bool:
        """Whether there is a last snapshot, and too few sites have it."""
        return self.snapshot is not None and self.snapshot.index not in self.kept

    @property
    def most_frame_bytes(self) -> int:
        """The most bytes of a frame of this model, as all its sites have computed it."""
        said = "" if self.genesis is None else self.genesis.settings.get(FRAME_BYTES, "")
        return min(int(said), MAX_FRAME_BYTES) if said.isdecimal() else MAX_FRAME_BYTES

    @property
    def data_in_force(self) -> Data | None:
        """The version that deals are of; None: the run deals no data."""
        return self.data[max(self.data)] if self.data else None

    def line_begins(self, site: str) -> int:
        """Sequences of a site in front of what is known of its line: they count for good."""
        data, known = self.data_in_force, self.sites.get(site)
        return 0 if data is None or known is None else known.for_good // data.sequence_length

    def line_ends(self, site: str) -> int:
        """Sequences that a site was ever dealt, without those that were taken back."""
        return self.line_begins(site) + (length(self.sites[site].line) if site in self.sites else 0)

    def position(self, site: str) -> int:
        """Sequences of those that count in every fragment."""
        data, known = self.data_in_force, self.sites.get(site)
        return 0 if data is None or known is None else min(known.taken // data.sequence_length, self.line_ends(site))

    def left(self, site: str) -> int:
        """Sequences that were dealt to a site and do not count yet."""
        return self.line_ends(site) - self.position(site)

    def left_tokens(self, site: str) -> int:
        """Tokens that were dealt to a site and do not count yet."""
        data = self.data_in_force
        return 0 if data is None else self.left(site) * data.sequence_length

    def base(self, fragment: int, version: int) -> Digest | None:
        """The digest of the fragment at `version`, where the last round entry says it, and no later one changes it."""
        last = self.rounds.get(fragment)
        if last is None or last.version != version or last.index < self.skipped_at.get(fragment, -1):
            return None
        return last.base

    def to_skip(self, fragment: int, version: int) -> list[int]:
        """The versions whose entries are void where the frames of `version` are lost: later deltas were made on it. The
        newest comes first: whoever has heard of some alone, since the leader has died, goes on without a round whose
        deltas are to a state that is another one by then."""
        return [v for v in reversed(range(version, self.versions[fragment])) if (fragment, v) not in self.skipped]

    def apply(self, entry: Entry) -> None:
        """Take the next entry. Raises BadLineError, and changes nothing, where it does not fit."""
        self._check_place(entry)
        match entry:
            case Genesis():
                self.genesis = entry
                self.versions = [0] * entry.fragments
                self.every = entry.every
                self.step = entry.step
            case Join():
                before = self.sites.get(entry.site)
                if before is not None and before.standing is Standing.REMOVED:
                    raise self._misfit(entry, f"{entry.site} was removed")
                kept = before or SiteRecord(
                    entry.site, Standing.JOINING, entry.store, entry.index, read=((),) * len(self.versions)
                )
                self._place(replace(kept, store=entry.store, anew=False), Standing.JOINING, entry.index)
            case Ready():
                site = self._from(entry, entry.site, Standing.READY)
                if site.anew:
                    raise self._misfit(entry, f"{entry.site} has to join: its deals were taken back")
                self._place(site, Standing.READY, entry.index)
            case Away():
                self._place(self._from(entry, entry.site, Standing.AWAY), Standing.AWAY, entry.index, entry.why)
            case Left():
                self._place(self._from(entry, entry.site, Standing.LEFT), Standing.LEFT, entry.index)
            case Removed():
                self._place(self._from(entry, entry.site, Standing.REMOVED), Standing.REMOVED, entry.index, entry.why)
                self._void(entry.site)
            case Round() | SummedRound():
                self._take_round(entry)
            case Skip():
                if not 0 <= entry.version < self._version(entry, entry.fragment):
                    raise self._misfit(entry, f"fragment {entry.fragment} has no round {entry.version}")
                if (entry.fragment, entry.version) in self.skipped:
                    raise self._misfit(entry, "it is void already")
                self.skipped.add((entry.fragment, entry.version))
                self.skipped_at[entry.fragment] = entry.index
                for name, site in self.sites.items():
                    self.sites[name] = site.voided(entry.fragment, entry.version)
            case Snapshot():
                if entry.versions != tuple(self.versions):
                    raise self._misfit(entry, "a snapshot is of the versions that there are")
                if entry.state != self.digest:
                    raise self._misfit(entry, "the entries before it say another state")
                self.snapshot = entry
                if self.data:
                    self.taken_at[entry.index] = {name: site.taken for name, site in self.sites.items()}
                    self.taken_at = {index: self.taken_at[index] for index in sorted(self.taken_at)[-KEPT_SNAPSHOTS:]}
            case Kept():
                if self.snapshot is None or entry.snapshot > self.snapshot.index:
                    raise self._misfit(entry, f"there is no snapshot {entry.snapshot}")
                self.kept[entry.snapshot] = entry
                self.kept = {index: self.kept[index] for index in sorted(self.kept)[-KEPT_SNAPSHOTS:]}
                self._forget_deals()
            case Data():
                self._take_data(entry)
            case Deal():
                self._take_deal(entry)
            case TakenBack():
                self._take_back(entry)
            case TermBegun():
                self.terms[entry.term] = entry.index
                self.taken_over = entry
            case End():
                self.ended = True
            case _:
                pass
        self.head = Head(entry.index, entry.hash)
        self.term = entry.term

    def _check_place(self, entry: Entry) -> None:
        if entry.index != self.head.index + 1 or entry.prev != self.head.hash:
            raise self._misfit(entry, f"the chain ends with entry {self.head.index}, {self.head.hash[:12]}")
        if entry.term < self.term:
            raise self._misfit(entry, f"term {entry.term} after {self.term}")
        if entry.kind == "term" and entry.term == self.term:
            raise self._misfit(entry, "a leader that takes over has a higher term")
        if isinstance(entry, Genesis) != (entry.index == 0):
            raise self._misfit(entry, "the first entry is the genesis, and no other one is")
        if self.ended:
            raise self._misfit(entry, "the run has ended")

    def _take_round(self, entry: AnyRound) -> None:
        if entry.version != self._version(entry, entry.fragment):
            raise self._misfit(
                entry, f"fragment {entry.fragment} is at {self.versions[entry.fragment]}, not at {entry.version}"
            )
        names = [one.site for one in entry.members]
        if names != sorted(set(names)):
            raise self._misfit(entry, "its members do not stand in the order of their names, once each")
        unknown = [name for name in names if name not in self.sites]
        if unknown:
            raise self._misfit(entry, f"{unknown[0]} never joined")
        for listed in entry.members:
            self.sites[listed.site] = self.sites[listed.site].listed(entry.fragment, entry.version, listed)
        self.versions[entry.fragment] += 1
        self.rounds[entry.fragment] = entry
        if entry.every:
            self.every, self.every_is_said, self.every_by = entry.every, True, tuple(names)
        for listed in entry.members:
            if listed.step <= MOST_STEPS:
                self.steps[listed.site] = max(listed.step, self.steps.get(listed.site, 0))
                self.step = max(self.step, listed.step)

    def _take_data(self, entry: Data) -> None:
        before = self.data_in_force
        if before is None and any(self.versions):
            raise self._misfit(entry, "rounds have counted before there was a data set")
        if before is not None:
            for name in ("set", "sequence_length", "held_out_every"):
                if (here := getattr(entry, name)) != (there := getattr(before, name)):
                    raise self._misfit(entry, f"{name} is {there} in this run, not {here}")
            if entry.number <= before.number:
                raise self._misfit(entry, f"version {entry.number} after {before.number}")
        self.data[entry.index] = entry

    def _take_deal(self, entry: Deal) -> None:
        site = self.sites.get(entry.site)
        if site is None or site.standing is not Standing.READY:
            raise self._misfit(entry, f"{entry.site} is {'unknown' if site is None else site.standing}")
        if not self.data:
            raise self._misfit(entry, "the run has no data set")
        if entry.shards:
            piece = Piece(entry.index, 0, entry.sequences)
            self.deals[entry.index] = DealtShards(max(self.data), entry.shards, entry.sequences)
        else:
            piece = Piece(entry.rest, entry.start, entry.sequences)
            if piece not in self.rests:
                raise self._misfit(entry, f"there is no such rest of deal {entry.rest}")
            self.rests = tuple(one for one in self.rests if one != piece)
        self.sites[entry.site] = replace(site, line=(*site.line, piece))

    def _take_back(self, entry: TakenBack) -> None:
        site, data = self.sites.get(entry.site), self.data_in_force
        if site is None or data is None or site.standing is Standing.READY:
            raise self._misfit(entry, f"{entry.site} is {'unknown' if site is None else site.standing}")
        position = self.position(entry.site)
        kept, rests = cut(site.line, position - self.line_begins(entry.site))
        if not rests or entry.taken != position * data.sequence_length:
            raise self._misfit(
                entry, f"of {self.line_ends(entry.site)} sequences that {entry.site} has, {position} count"
            )
        self.sites[entry.site] = site.taken_back(kept, entry.taken)
        self.rests = (*self.rests, *rests)

    def _forget_deals(self) -> None:
        """Forget the deals of which all counts where the run goes back to at most, but for how often each shard was
        dealt: a run of any length has few deals."""
        data, oldest = self.data_in_force, self.needed_from
        if data is None or oldest not in self.taken_at:
            return
        for name, tokens in self.taken_at[oldest].items():
            site = self.sites[name]
            self.sites[name] = site.forgotten(min(tokens, site.taken), data.sequence_length)
        self.taken_at = {index: taken for index, taken in self.taken_at.items() if index >= oldest}
        held = {piece.deal for line in (self.rests, *(site.line for site in self.sites.values())) for piece in line}
        for index in sorted(self.deals.keys() - held):
            deal = self.deals.pop(index)
            count(self.dealt.setdefault(deal.data, {}), deal.shards)

    def _void(self, site: str) -> None:
        """What a removed site has set for all does not count any more."""
        self.steps.pop(site, None)
        first = self.genesis
        self.step = max([first.step if first is not None else 0, *self.steps.values()])
        if site in self.every_by and first is not None:
            self.every, self.every_is_said, self.every_by = first.every, False, ()

    def _version(self, entry: Entry, fragment: int) -> int:
        if fragment >= len(self.versions):
            raise self._misfit(entry, f"there are {count_text(len(self.versions), 'fragment')}")
        return self.versions[fragment]

    def _from(self, entry: Entry, name: str, to: Standing) -> SiteRecord:
        site = self.sites.get(name)
        if site is None or site.standing not in _MAY_BECOME[to]:
            raise self._misfit(entry, f"{name} is {'unknown' if site is None else site.standing}")
        return site

    def _place(self, site: SiteRecord, standing: Standing, index: int, why: str = "") -> None:
        self.sites[site.name] = replace(site, standing=standing, since=index, why=why)
        self.__dict__.pop("live", None)

    def _misfit(self, entry: Entry, why: str) -> BadLineError:
        return BadLineError(f"entry {entry.index} ({entry.kind}) does not fit the journal: {why}")


_STATE: TypeAdapter[RunState] = TypeAdapter(RunState)
