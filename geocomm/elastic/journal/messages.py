"""What an agent and the leader say to each other, and the ranks of a site to their agent. `message_lines` writes them.

`Up` goes from a rank to its agent, and from there to the leader; `Down` goes the other way. The site of an `Up` is
that of the certificate of its connection, and never a field.

A site may say anything: what a field's type refuses ends the connection. What it lets pass, and the leader cannot
believe, the `Sequencer` drops the site for, or cuts down.

A round is (fragment, version): it takes the fragment from that version to the next. The leader counts the `attempt`s
at it: after each, sites make a new frame.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from geocomm.core.records import MOST_FRAGMENTS, Hash, Record, Text, Whole
from geocomm.data.deal_records import LineBegun, SiteDeal, StoreId
from geocomm.elastic.journal.entries import (
    Added,
    AnyRound,
    CodedFrame,
    Digest,
    Entry,
    FrameBytes,
    Listed,
    SiteName,
    SumFrame,
)

PROTOCOL_VERSION = 10
MAX_STATE_CHARS = 64 << 20
PART_CHARS = 100_000
"""A part of a state: less than a line in any alphabet."""
MOST_OWNERS = 256
"""Ranks of a site that own fragments."""
MOST_SETTINGS = 64
SETTING_NAME_CHARS = 64

Hosts = Annotated[str, Field(pattern=r"^[0-9A-Za-z._:%,-]{1,255}$")]
"""Names and addresses with commas, in the order to be dialled."""
HostAndPort = Annotated[str, Field(pattern=r"^[0-9A-Za-z._:%\[\]-]{0,263}$")]
"""host:port; empty: none."""
Amount = Annotated[int, Field(ge=0, le=2**53)]
"""What is counted while training: doubles are exact up to there, and a step that is added is still a number."""
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class Owner(Record):
    """A rank that owns fragments: where its mail arrives. Of n owners the i-th has the fragments f with f % n == i."""

    id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """The rank's process."""
    host: Hosts
    port: Annotated[int, Field(ge=0, le=65535)]


class Peer(Record):
    """A member as others reach it."""

    site: SiteName
    owners: Annotated[tuple[Owner, ...], Field(max_length=MOST_OWNERS)]
    """None: it has no ranks now."""
    fetch: HostAndPort
    """host:port of its agent, which gives out files; empty: it cannot be dialed."""
    region: SiteName | None = None
    """The first site of its region, as the leader's links file says; None: it is a region of its own."""

    @model_serializer(mode="wrap")
    def _without_none(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Where there are no regions, nothing is said of them."""
        said: dict[str, Any] = fields(self)
        if self.region is None:
            del said["region"]
        return said


class Model(Record):
    """What the ranks of a site train, and with which settings: equal at all sites, or refused."""

    settings: Annotated[
        dict[Annotated[str, Field(max_length=SETTING_NAME_CHARS)], Text], Field(max_length=MOST_SETTINGS)
    ]
    layout: Digest
    fragments: Annotated[int, Field(ge=1, le=MOST_FRAGMENTS)]
    every: Annotated[int, Field(ge=1, lt=2**31)]
    step: Amount = 0
    """Optimizer steps that the weights have behind them; those of the site that begins the run count."""


class OfRound(Record):
    """A message about a round; or about a fragment at a version, which is where its round begins."""

    fragment: Whole
    version: Whole


class OfAttempt(OfRound):
    """A message about an attempt at a round."""

    attempt: Whole

    @property
    def named(self) -> dict[str, Any]:
        """The fields that name the attempt, for another message of it."""
        return {"fragment": self.fragment, "version": self.version, "attempt": self.attempt}


class OfFrame(OfRound):
    """A message about a frame that a site has made for a round."""

    site: SiteName
    frame: Hash

    @property
    def named(self) -> dict[str, Any]:
        """The fields that name the frame, for another message of it."""
        return {"fragment": self.fragment, "version": self.version, "site": self.site, "frame": self.frame}


class Wanted(OfFrame):
    """A frame that is to be on a disk."""

    bytes: Whole

    @staticmethod
    def of(asked: Wanted) -> Wanted:
        """The frame that a message asks for: equal to that of any other message."""
        return Wanted(**asked.named, bytes=asked.bytes)

    @classmethod
    def listed(cls, entry: AnyRound, one: Listed | SumFrame) -> Self:
        """A frame that a round lists."""
        return cls(fragment=entry.fragment, version=entry.version, site=one.site, frame=one.frame, bytes=one.size)


# ---- up: what a site says


class RankHello(Record):
    """The first line of a rank to its agent, which does not pass it on."""

    kind: Literal["rank_hello"] = "rank_hello"
    place: Whole
    """The place of the rank among the owners of its site."""
    owners: Annotated[int, Field(ge=1, le=MOST_OWNERS)]
    owner: Owner
    model: Model
    digests: dict[int, Digest]
    """The digests of the own fragments as they are, by fragment."""
    versions: dict[int, Whole]
    """The version that the rank has applied, by own fragment."""
    trains: bool = False
    """It took part before, and an agent that has started anew meets it: it goes on from these versions."""
    head: Annotated[int, Field(ge=-1, lt=2**63)] = -1
    """The index of the last entry that it has heard of; -1: none."""
    head_hash: Hash | None = None
    """The hash of that entry."""


class Hello(Record):
    """The first line of an agent to the leader."""

    kind: Literal["hello"] = "hello"
    protocol: Annotated[int, Field(ge=0, lt=2**31)]
    geocomm: Annotated[str, Field(max_length=64)]
    """Versions, for messages: what must fit is `protocol` and the model."""
    store: StoreId
    """The id of the site's run folder."""
    run: StoreId | None
    """The run whose journal is there; None: there is none yet."""
    head: Annotated[int, Field(ge=-1, lt=2**63)]
    """The index of its last entry; -1: none."""
    head_hash: Hash | None
    """The hash of its last entry."""
    term: Whole
    """The term of its last entry."""
    process: StoreId = "0" * 32
    """A random name of the agent's process: two machines may have copies of one disk."""
    fetch: HostAndPort
    """See `Peer`."""
    ranks: bool = True
    """False: it follows the journal to lead once nobody does, and is no member of the run."""


class RanksUp(Record):
    """The ranks of the site are there: all owners have said hello to the agent."""

    kind: Literal["ranks_up"] = "ranks_up"
    owners: Annotated[tuple[Owner, ...], Field(min_length=1, max_length=MOST_OWNERS)]
    model: Model
    digests: Annotated[tuple[Digest, ...], Field(max_length=MOST_FRAGMENTS)]
    """The digests of all fragments as the ranks have them: at version 0 where the run has no journal yet."""


class RanksGone(Record):
    """The ranks of the site have ended, or their processes died."""

    kind: Literal["ranks_gone"] = "ranks_gone"
    why: Text


class ReadySaid(Record):
    """The ranks have applied every entry that was there when they came up: the site may be counted."""

    kind: Literal["ready"] = "ready"


class Beat(Record):
    """Every BEAT_S: the site lives, and how it does."""

    kind: Literal["beat"] = "beat"
    step: Amount
    tokens: Amount
    step_s: Seconds
    line_s: Seconds
    free_bytes: Whole
    """On the disk of the run folder."""
    head: Annotated[int, Field(ge=-1, lt=2**63)] = -1
    """The index of the last entry that the site's journal has, of this leader's; -1: the agent does not know yet."""


class Due(OfRound):
    """The schedule of the site says that it is time for a round of the fragment, which it has at this version."""

    kind: Literal["due"] = "due"


class Offer(OfAttempt, CodedFrame):
    """The site has made its frame, sent it to all peers of the OPEN, and has it on its own disk."""

    kind: Literal["offer"] = "offer"
    step: Amount
    taken: Amount = 0
    every: Annotated[int, Field(ge=0, lt=2**31)]
    """Steps between two rounds that the site wants from now on; 0: as now."""


class Pass(OfAttempt):
    """The site has nothing to offer in this round: it took no step, or its weights are not finite."""

    kind: Literal["pass"] = "pass"


class Summed(OfAttempt, FrameBytes):
    """The site has the average that it was asked for on its own disk, and sends it to who is to have it."""

    kind: Literal["summed"] = "summed"
    counts: tuple[SiteName, ...]
    """Those of the members whose frames are deltas of the fragment; none: there is no average."""


class SumChecked(OfAttempt):
    """The site has averaged the frames of a Check too: the hash of what it has made."""

    kind: Literal["sum_checked"] = "sum_checked"
    frame: Hash


class Hold(OfFrame):
    """The site has a frame on disk, after fsync; or it does not, whatever it has said before."""

    kind: Literal["hold"] = "hold"
    by_mail: bool
    """It came from rank to rank."""
    held: bool = True
    """False: the disk has lost the frame, or changed it. Said of an offered frame then, and at each Sum that has it."""


class Applied(OfRound):
    """A fragment is at `version` now, and this is its digest."""

    kind: Literal["applied"] = "applied"
    digest: Digest


class Need(Wanted):
    """A rank lacks a listed frame: its agent fetches it (to the leader it is only told when nobody has it: Lost)."""

    kind: Literal["need"] = "need"


class Lost(OfFrame):
    """No agent that answers has a listed frame."""

    kind: Literal["lost"] = "lost"
    missed_s: Seconds = 0.0
    """How long the site has looked for it in vain, under all leaders."""


class SnapshotHeld(Record):
    """The site has the snapshot of an entry on disk, all of it."""

    kind: Literal["snapshot_held"] = "snapshot_held"
    snapshot: Whole
    """The index of its entry."""
    digest: Digest
    """The digest of its manifest."""


class Leave(Record):
    """The site ends in good order: what it offered before is its last."""

    kind: Literal["leave"] = "leave"
    finished: bool = False
    """It has trained to its end: the run ends where nobody else takes part. False: it may come back."""


Up = Annotated[
    RankHello
    | Hello
    | RanksUp
    | RanksGone
    | ReadySaid
    | Beat
    | Due
    | Offer
    | Pass
    | Summed
    | SumChecked
    | Hold
    | Applied
    | Need
    | Lost
    | SnapshotHeld
    | Leave,
    Field(discriminator="kind"),
]

# ---- down: what the leader says, and the agent to its ranks


class Aggregator(Record):
    """Who averages frames of a round: those of all, or of its region."""

    site: SiteName
    attempt: Whole
    """The number of this charge, of the attempts of the fragment: another one in each, also for the same site."""


class Open(OfAttempt):
    """A round is open: make a frame at the next optimizer step, send it to all or to who averages it, and offer it."""

    kind: Literal["open"] = "open"
    peers: tuple[Peer, ...]
    """The live members, the site itself included."""
    aggregator: Aggregator | None = None
    """None: all average. Another one may follow in the same attempt: it gets the same frames."""
    adders: tuple[Aggregator, ...] = ()
    """Heads of other regions: each averages the frames of its region, and sends the average to the aggregator."""


class Sum(OfAttempt):
    """To who averages: average these frames, which it has, and say Summed. `attempt`: of the charge."""

    kind: Literal["sum"] = "sum"
    members: Annotated[tuple[Added, ...], Field(min_length=1)]


class Check(OfAttempt):
    """These frames were averaged for a round: average them too, and say SumChecked. `attempt`: see Sum."""

    kind: Literal["check"] = "check"
    members: Annotated[tuple[Added, ...], Field(min_length=1)]


class Peers(Record):
    """Who takes part, or is about to: ranks connect to theirs, so that the first frame of a site that comes does not
    wait for that."""

    kind: Literal["peers"] = "peers"
    peers: tuple[Peer, ...]
    """The site itself included."""


class Welcome(Record):
    """The leader takes the site in. Entries behind its head follow, one EntrySaid each, and then Opens: what is not
    among these is not open, whatever the site believed."""

    kind: Literal["welcome"] = "welcome"
    term: Whole
    run: StoreId | None
    """None: no site has begun yet; RanksUp of the first makes the genesis."""
    head: int
    """The index of the last entry of the leader's journal."""
    open: tuple[tuple[int, int, int], ...]
    """(fragment, version, attempt) of all that is open."""


class Refused(Record):
    """The leader will not have this site; why, with both values. Nothing follows."""

    kind: Literal["refused"] = "refused"
    why: Text
    blames: Literal["site", "leader", "run"] = "site"
    """Who may be wrong. `leader`: it lacks what the site has, so the site goes on, and looks for another one. `run`:
    the two are of different runs, and one of them began with the wrong folder."""


class EntrySaid(Record):
    """The next entry of the journal."""

    kind: Literal["entry"] = "entry"
    entry: Entry


class StatePart(Record):
    """What the journal says up to some entry, in pieces, before the entries that follow it: the site lacks too many."""

    kind: Literal["state_part"] = "state_part"
    text: Annotated[str, Field(max_length=PART_CHARS)]
    """A part of `RunState.text`."""
    last: bool


class Fetch(Wanted):
    """Get a frame that was offered, and say Hold: it did not come by mail."""

    kind: Literal["fetch"] = "fetch"
    sources: tuple[HostAndPort, ...]
    """host:port of agents that have it, or can get it."""


class Fetched(OfFrame):
    """From the agent to a rank: a frame lies on disk, checked. The rank counts it as arrived."""

    kind: Literal["fetched"] = "fetched"


class TakeState(OfRound):
    """From the agent to a rank: nobody has the frames of the rounds before this version any more. A state of it lies on
    the disk, checked, and the rank takes it in place of those rounds."""

    kind: Literal["take_state"] = "take_state"


class RankWelcome(LineBegun):
    """From the agent to a rank, once the leader has taken the site in and all its entries are there."""

    kind: Literal["rank_welcome"] = "rank_welcome"
    site: SiteName
    versions: dict[int, Whole]
    """By own fragment: the version at the journal's head. Where the rank has an older one, entries follow."""
    head: Annotated[int, Field(ge=-1, lt=2**63)]
    """The index of the journal's last entry."""
    head_hash: Hash
    states: dict[int, Whole]
    """By own fragment: the version of the state file in the run folder that the rank loads first; absent: none."""
    every: Annotated[int, Field(ge=1)]
    step: Whole
    """The step of the run: the most that a listed frame says."""
    leader: Text = ""
    """Who deals."""


class Leaving(Record):
    """From the agent to its ranks: the site is to end in good order. They offer what has not counted yet, and say Leave
    once it has."""

    kind: Literal["leaving"] = "leaving"


class Repair(Record):
    """The site's state of the fragment is not what the others have: recompute it from the disk."""

    kind: Literal["repair"] = "repair"
    fragment: Whole


class Stop(Record):
    """The run cannot go on at this site, or with these ranks; why."""

    kind: Literal["stop"] = "stop"
    why: Text
    again: bool = False
    """From the agent: what these ranks have is void, and others in their place go on."""


Down = Annotated[
    Open
    | Sum
    | Check
    | Peers
    | Welcome
    | Refused
    | EntrySaid
    | StatePart
    | Fetch
    | Fetched
    | TakeState
    | RankWelcome
    | SiteDeal
    | Leaving
    | Repair
    | Stop,
    Field(discriminator="kind"),
]
