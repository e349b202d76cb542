"""What the sequencer takes and gives: events of the sites, actions of the leader, and the terms between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from geocomm.data.deal_records import DealtSet
from geocomm.elastic.journal.entries import Entry
from geocomm.elastic.journal.messages import Down, Up

if TYPE_CHECKING:
    from geocomm.elastic.journal.run_data import RunData  # brings numpy, which most agents do without

# ---- events


@dataclass(frozen=True)
class Came:
    """A connection of a site stands. Where the site had one, that one has ended by this."""

    site: str


@dataclass(frozen=True)
class Ended:
    """The present connection of a site has ended: not one that a later `Came` has replaced."""

    site: str


@dataclass(frozen=True)
class Said:
    """A site has said something."""

    site: str
    message: Up


@dataclass(frozen=True)
class Unbelieved:
    """What a site said last cannot be taken. Its connection ends, and nothing of it counts that is open."""

    site: str
    why: str


@dataclass(frozen=True)
class Remove:
    """A person removes a site from the run."""

    site: str
    why: str


@dataclass(frozen=True)
class DataRead:
    """The catalog of the run's data set was read."""

    data: RunData


@dataclass(frozen=True)
class Tick:
    """Time has passed: to be told every half second or so."""


Event = Came | Ended | Said | Unbelieved | Remove | DataRead | Tick

# ---- actions


@dataclass(frozen=True)
class Append:
    """Write this entry to the journal: durable before any later action."""

    entry: Entry


@dataclass(frozen=True)
class Send:
    """Send a message to a site. Where its connection has ended, nothing happens."""

    site: str
    message: Down


@dataclass(frozen=True)
class SendEntries:
    """Send these entries of the journal, the last one included, one EntrySaid each, before later messages."""

    site: str
    first: int
    last: int


@dataclass(frozen=True)
class Close:
    """End the connection of a site, once what was sent before is on its way. An `Ended` may follow."""

    site: str
    why: str


@dataclass(frozen=True)
class Log:
    """What a person should read."""

    text: str


Action = Append | Send | SendEntries | Close | Log


@dataclass(frozen=True)
class LeaderSettings:
    """How long the leader waits for what, and for whom. All in seconds on the leader's own clock."""

    min_sites: int = 1
    """The fewest frames that a round has."""
    wait_for: frozenset[str] = frozenset()
    """The first round opens once all of these have been ready."""
    disconnected_s: float = 3.0
    """A site without a connection for this time is away."""
    silent_s: float = 9.0
    """A site without a Beat for this time is away."""
    least_grace_s: float = 2.0
    """Half a cycle, and this at least, is what a round waits for its last frames."""
    fetch_again_s: float = 5.0
    attempt_s: float = 60.0
    """A round without an eligible frame for this time has a new attempt."""
    lost_s: float = 600.0
    """A listed frame that nobody has for this time is given up."""
    lost_said_s: float = 60.0
    """A site says again that a frame is lost, at least so often."""
    leave_s: float = 30.0
    """How long a site that leaves waits for its last frames to count."""
    repair_s: float = 60.0
    """How long sites with different digests have to compute the state again."""
    snapshot_s: float = 1800.0
    """From one snapshot to the next; 0: there are none."""
    copies: int = 2
    """A snapshot is kept once this many sites have it."""
    data: DealtSet | None = None
    """That a new run deals; None: sites bring their own data."""
    ahead_s: float = 3600.0
    """How long the deals of a site last."""
    doubt_s: float = 3600.0
    """The deals of a site that is gone for this time are dealt to others; 0: never."""
    regions: tuple[tuple[str, ...], ...] = ()
    """Sites between which and others a frame goes once; who is in none is a region of its own."""
