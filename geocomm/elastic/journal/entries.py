"""The entries of the journal: what the sites of a run share, and the only thing that they share.

An entry is a line of canonical JSON (sorted keys, no spaces, UTF-8). `prev` is the SHA-256 of the line before, so a
journal is a chain: who has the hash of its last line has all of it. What is received is hostile until `entry_of` has
read it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from geocomm.core.bad_input import EXIT_BAD_INPUT, UserError
from geocomm.core.message_log import printable
from geocomm.core.records import MAX_TEXT, Hash, Record, Text, Whole, line_of
from geocomm.data.deal_records import DealtData, shards_of

FIRST_PREV = "0" * 64
"""`prev` of the first entry."""

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""XXH3 of a fragment's state, as hexadecimal digits: version, anchor and momentum."""
SiteName = Annotated[str, Field(min_length=1, max_length=64)]
MOST_STEPS = 2**50
"""The most steps of a run: an entry that says more lies, and counts for nobody. Ranks have room for more."""
MAX_FRAME_BYTES = 1 << 40
FRAME_BYTES = "tensors (most bytes of a frame)"
"""Name of the setting that says how large a frame of the largest fragment may be: nobody makes room for more."""


class BadLineError(UserError, ValueError):
    """A line that is no entry, no message, or does not fit where it stands. Not one of `core.errors`: those import
    torch, which the processes of an agent and of a leader do without."""

    exit_status = EXIT_BAD_INPUT


class FrameBytes(Record):
    """A frame as it lies on a disk."""

    frame: Hash
    """The hash of the frame's bytes: the coded part, then the exact part."""
    coded_bytes: Whole
    exact_bytes: Whole

    @property
    def size(self) -> int:
        """Bytes of the frame."""
        return self.coded_bytes + self.exact_bytes


class CodedFrame(FrameBytes):
    """A frame, as the site that has made it says."""

    weight: Annotated[int, Field(ge=1, lt=2**63)]
    """Steps, or tokens, that the delta stands for."""
    step: Whole
    """Optimizer steps of the run, as the site counts them, when the frame was made."""
    squared_norm: Annotated[float, Field(ge=0)]
    """The squared L2 norm of the delta before it was coded."""
    lr: Annotated[float, Field(ge=0)]
    """The site's learning rate when the frame was made; 0: not known."""
    taken: Whole = 0
    """Tokens that the site has read, over all its starts, up to where this frame ends; 0: it does not say."""


class Listed(CodedFrame):
    """A frame that counts in a round."""

    site: SiteName
    """Whose it is."""


class Added(FrameBytes):
    """A frame that a site is to average with others: the delta of one site, or the average of a region."""

    site: SiteName
    """Who has made it."""
    weight: Annotated[int, Field(ge=1)]
    """That of the delta, or of all that the average is of."""

    @classmethod
    def of(cls, frame: FrameBytes, site: str, weight: int) -> Self:
        """A frame of a site, with its weight."""
        return cls(**frame.model_dump(include={*FrameBytes.model_fields}), site=site, weight=weight)


class Counted(Record):
    """A frame that counts in a round with an aggregator: nobody needs it any more, so little is said of it."""

    frame: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
    """The first digits of its hash, by which its site knows it."""
    weight: Annotated[int, Field(ge=1, lt=2**63)]
    step: Whole
    taken: Whole = 0
    site: SiteName
    """Whose it is. For all fields see `Listed`."""


class SumFrame(FrameBytes):
    """The frame of an average, as the aggregator of a round has made it."""

    site: SiteName
    """The aggregator."""


class EntryBase(Record):
    """What every entry has."""

    index: Whole
    """Its place in the journal, from 0 on."""
    prev: Hash
    """The hash of the entry before."""
    term: Whole
    """Counts leaders that took over for good: it never falls."""

    @cached_property
    def line(self) -> str:
        """As canonical JSON, without a line feed: made once, since every journal and receiver takes it."""
        return line_of(self)

    @cached_property
    def hash(self) -> Hash:
        """What `prev` of the next entry says."""
        return hashlib.sha256(self.line.encode()).hexdigest()

    def __copy__(self) -> Self:
        """Without the line, since `model_copy` gives the copy other values."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return self.model_construct(self.model_fields_set, **fields)


class Genesis(EntryBase):
    """The first entry: what must be the same at every site."""

    kind: Literal["genesis"] = "genesis"
    run: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Random: names the run."""
    settings: dict[str, Text]
    """The terms of local steps, by name."""
    layout: Digest
    """The digest of the fragments' layout."""
    digests: Annotated[tuple[Digest, ...], Field(min_length=1)]
    """The digest of each fragment's state at version 0."""
    every: Annotated[int, Field(ge=1)]
    """Optimizer steps between two rounds of a fragment, at first."""
    step: Whole = 0
    """Optimizer steps that the first weights have behind them."""

    @property
    def fragments(self) -> int:
        """How many fragments the model has."""
        return len(self.digests)


class Join(EntryBase):
    """A site begins, or comes back with another run folder; it may fetch and replay now."""

    kind: Literal["join"] = "join"
    site: SiteName
    store: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The id of the site's run folder: what a site holds belongs to that."""


class Ready(EntryBase):
    """A site has replayed the journal: from now on its frames may count, and others wait for them."""

    kind: Literal["ready"] = "ready"
    site: SiteName


class Away(EntryBase):
    """A site is gone for now: nobody waits for it."""

    kind: Literal["away"] = "away"
    site: SiteName
    why: Text


class Left(EntryBase):
    """A site has ended its part in good order."""

    kind: Literal["left"] = "left"
    site: SiteName


class Removed(EntryBase):
    """A person has removed a site; it may not come back."""

    kind: Literal["removed"] = "removed"
    site: SiteName
    why: Text


class Round(EntryBase):
    """Fragment `fragment` goes from version `version` to the next: by the outer step with the mean of these frames."""

    kind: Literal["round"] = "round"
    fragment: Whole
    version: Whole
    members: Annotated[tuple[Listed, ...], Field(min_length=1)]
    """By name: the order in which all sites add up the deltas."""
    every: Whole
    """Optimizer steps between two rounds from now on; 0: as before."""
    base: Digest | None
    """The digest of the fragment at `version`, as those who applied the entry before said; None: nobody has said."""

    @property
    def frames(self) -> tuple[Listed, ...]:
        """The frames that a site needs to apply the round."""
        return self.members


class SummedRound(EntryBase):
    """As `Round`, with the mean that an aggregator has made of the members' frames."""

    kind: Literal["summed"] = "summed"
    fragment: Whole
    version: Whole
    members: Annotated[tuple[Counted, ...], Field(min_length=1)]
    """By name: the order in which the aggregator has added up the deltas."""
    sum: SumFrame
    squared_norm: Annotated[float, Field(ge=0)]
    """The mean of those of the members' deltas, by their weights."""
    every: Whole
    base: Digest | None

    @property
    def frames(self) -> tuple[SumFrame, ...]:
        """The frame that a site needs to apply the round."""
        return (self.sum,)


AnyRound = Round | SummedRound
"""A fragment goes from a version to the next."""


class Skip(EntryBase):
    """The round entry of (`fragment`, `version`) is void, since no copy of a listed frame is left. The version counts
    on: the state is the same at `version` + 1 as at `version`."""

    kind: Literal["skip"] = "skip"
    fragment: Whole
    version: Whole
    why: Text


class Snapshot(EntryBase):
    """Sites keep the states of all fragments, as they are at this entry, as a snapshot."""

    kind: Literal["snapshot"] = "snapshot"
    versions: tuple[Whole, ...]
    """By fragment."""
    state: Hash
    """The hash of what all entries before this one say (`RunState.digest`): who begins with that, and not with the
    entries, sees by it that it is the run's."""


class Kept(EntryBase):
    """Enough sites have a snapshot on disk, with equal bits."""

    kind: Literal["kept"] = "kept"
    snapshot: Whole
    """The index of its entry."""
    digest: Digest
    """The digest of the snapshot's manifest."""
    sites: Annotated[tuple[SiteName, ...], Field(min_length=1)]
    """Who said so first."""


class Data(EntryBase, DealtData):
    """From now on, deals are of this version of the run's data set."""

    kind: Literal["data"] = "data"


def _checked(shards: str) -> str:
    if shards:
        shards_of(shards)
    return shards


class Deal(EntryBase):
    """A site reads these sequences next, after all that was dealt to it before.

    They are all of some shards, mixed by an order that the run and this entry's index give; or a part of an earlier
    deal, which was taken back.
    """

    kind: Literal["deal"] = "deal"
    site: SiteName
    shards: Annotated[str, Field(max_length=1024), AfterValidator(_checked)] = ""
    """The shards of the version in force, as in `text_of`; empty: a part of a deal."""
    rest: Whole = 0
    """The index of the entry that dealt the shards; 0: this one does."""
    start: Whole = 0
    """The first sequence, in the order of that deal."""
    sequences: Annotated[int, Field(ge=1, lt=2**63)]
    """How many; those that are held out are not among them."""

    @model_validator(mode="after")
    def _is_one_of_the_two(self) -> Self:
        if bool(self.shards) == bool(self.rest) or (self.shards and self.start):
            raise ValueError("a deal has shards, or is the rest of one")
        return self


class TakenBack(EntryBase):
    """What was dealt to a site, and does not count, is dealt to others: it begins again as one that joins."""

    kind: Literal["taken_back"] = "taken_back"
    site: SiteName
    taken: Whole
    """Tokens of the site that count in every fragment, in whole sequences: these stay its own."""
    why: Text


class TermBegun(EntryBase):
    """Another leader has taken over for good; `term` is its own."""

    kind: Literal["term"] = "term"
    site: SiteName
    address: Text
    """Where it listens: host:port."""


class End(EntryBase):
    """The last member has left: the run is over."""

    kind: Literal["end"] = "end"


Entry = Annotated[
    Genesis
    | Join
    | Ready
    | Away
    | Left
    | Removed
    | Round
    | SummedRound
    | Skip
    | Snapshot
    | Kept
    | Data
    | Deal
    | TakenBack
    | TermBegun
    | End,
    Field(discriminator="kind"),
]
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


@dataclass(frozen=True)
class Head:
    """The end of a chain of entries."""

    index: int
    """The index of the last entry; -1: there is none."""
    hash: str
    """The hash of the last entry: `prev` of the next one."""

    def then(self, entry: Entry) -> Head:
        """The end with one more entry. BadLineError: it does not follow."""
        if entry.index != self.index + 1 or entry.prev != self.hash:
            raise BadLineError(f"entry {entry.index} does not follow entry {self.index}")
        return Head(entry.index, entry.hash)


EMPTY = Head(-1, FIRST_PREV)


def words(text: str) -> Text:
    """What others have said, as a text for a person: of the length that an entry takes, and without control characters,
    which a terminal would obey."""
    return printable(text[:MAX_TEXT])


def entry_of(line: str) -> Entry:
    """The entry that a line has. Raises BadLineError for anything else."""
    try:
        return _ENTRY.validate_json(line)
    except ValidationError as error:
        raise BadLineError(f"not an entry of a journal: {error.errors()[0]['msg']}: {line[:200]}") from None
