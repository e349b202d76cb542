"""Who has not come to which operation: read from the reports of all ranks, while the job hangs or after it.

Ranks number the collectives of a group alike, so that those of equal group and sequence belong together.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.observe.telemetry.overview import overview
from geocomm.observe.telemetry.overview_rounds import Phase, RoundState
from geocomm.observe.telemetry.report import Row
from geocomm.observe.telemetry.run_store import Received, RunStore

SILENT_SECONDS = 5.0
"""A rank whose last report is older is called silent: it says one a second, also while the program hangs."""
_FAILED_WINDOW_S = 60.0
_MESSAGE = "send_recv"


def named(site: str, rank: int) -> str:
    """A rank in words."""
    return f"rank {rank} (site {site})"


@dataclass(frozen=True)
class OperationCall:
    """An operation as a rank called it."""

    group: int
    sequence: int
    kind: str
    dtype: str
    elements: int
    """0: ranks have different ones."""

    def __str__(self) -> str:
        """In words."""
        what = f"{self.dtype}, {self.elements} elements" if self.elements else self.dtype
        return f"{self.kind} {self.sequence} ({what})"


class CallState(enum.StrEnum):
    """How far a rank is in an operation."""

    ABSENT = "absent"
    """It has not called it, as far as it has said."""
    WAITS_INSIDE = "waits inside its site"
    WAITS = "waits for other sites"
    FAILED = "failed"
    OVER = "over"


@dataclass(frozen=True)
class Sender:
    """A rank whose bytes another waits for."""

    peer: str
    """Who it is, in words."""
    has_begun: bool
    """Some of its bytes are there."""


@dataclass(frozen=True)
class GroupRank:
    """A rank of the group of an operation."""

    site: str
    rank: int
    standing: CallState
    called: OperationCall | None
    """None: absent, or too long ago to be kept."""
    seconds: float | None
    """Since it called it."""
    waits_for: tuple[Sender, ...]
    report_age_seconds: float
    has_ended: bool
    """It has said that it says no more: its process group, or its program, is over."""
    last: OperationCall | None
    """The last operation of an absent rank between sites; None: it has had none, or not for an hour."""
    last_seconds: float | None
    """Since that one ended, or since it called it if that one is under way."""
    last_runs: bool
    """The last one is under way."""

    @property
    def is_silent(self) -> bool:
        """Whether it is stopped, dead, or cut off."""
        return not self.has_ended and self.report_age_seconds > SILENT_SECONDS

    def __str__(self) -> str:
        """Who it is."""
        return named(self.site, self.rank)


@dataclass(frozen=True)
class StuckOperation:
    """An operation that some rank has waited for too long, or that failed."""

    operation: OperationCall
    """As most ranks called it."""
    seconds: float
    """Since the first rank called it."""
    members: tuple[GroupRank, ...]
    """By rank."""
    later: int
    """Operations of the same group behind it that are under way too."""

    @property
    def absent(self) -> tuple[GroupRank, ...]:
        """The ranks that have not called the operation."""
        return tuple(member for member in self.members if member.standing is CallState.ABSENT)

    @property
    def calls(self) -> dict[OperationCall, list[GroupRank]]:
        """Who called what; more than one where ranks called different operations."""
        found: dict[OperationCall, list[GroupRank]] = {}
        for member in self.members:
            if member.called is not None:
                found.setdefault(member.called, []).append(member)
        return found

    @property
    def silent(self) -> tuple[GroupRank, ...]:
        """The ranks that had called it and are silent since."""
        waiting = (CallState.WAITS, CallState.WAITS_INSIDE)
        return tuple(member for member in self.members if member.standing in waiting and member.is_silent)


@dataclass(frozen=True)
class Hang:
    """What hangs."""

    at: float
    """Unix seconds of the collector's clock: now, or the last report of a run that says no more."""
    after_seconds: float
    operations: tuple[StuckOperation, ...]
    """The first of each group; the oldest first."""
    rounds: tuple[RoundState, ...]
    """The rounds of local steps that hang."""
    silent: tuple[tuple[str, int, float], ...]
    """Site, rank and seconds of all ranks that are silent."""
    ranks: int
    """How many have reported, less those that have ended."""

    @property
    def found(self) -> bool:
        """Whether anything hangs."""
        return bool(self.operations or self.rounds)


def find_hang(store: RunStore, at: float, after_seconds: float) -> Hang:
    """What has been under way for longer than `after_seconds` at `at`."""
    last = store.latest(until=at, details=True)
    alive = [received for received in last if not received.report.final]
    running = (Phase.DUE, Phase.OPEN)
    return Hang(
        at=at,
        after_seconds=after_seconds,
        operations=tuple(_operations(store, last, at, after_seconds)),
        rounds=tuple(
            state
            for state in overview(store, at).rounds
            if state.phase in running and state.age_seconds is not None and state.age_seconds > after_seconds
        ),
        silent=tuple(
            (received.report.site, received.report.rank, at - received.at)
            for received in alive
            if at - received.at > SILENT_SECONDS
        ),
        ranks=len(alive),
    )


def _operations(store: RunStore, last: list[Received], at: float, after_s: float) -> Iterator[StuckOperation]:
    stuck: dict[int, set[int]] = {}  # by group, the sequences of collectives
    found: list[StuckOperation] = []
    for received in last:
        for row in received.report.operations:
            if row["ended_ns"] is not None or _seconds(received, row["issued_ns"]) <= after_s:
                continue
            if row["kind"] == _MESSAGE:
                found.append(_message(store, last, at, received, row))
            else:
                stuck.setdefault(row["group"], set()).add(row["sequence"])
    known = {received.rank for received in last}
    for _, rank, row in store.told("operations", at - _FAILED_WINDOW_S, at):
        if row["failed"] and row["kind"] != _MESSAGE and rank in known:
            stuck.setdefault(row["group"], set()).add(row["sequence"])
    found += [_collective(store, last, at, group, min(sequences)) for group, sequences in stuck.items()]
    yield from sorted(found, key=lambda one: -one.seconds)


def _collective(store: RunStore, last: list[Received], at: float, group: int, sequence: int) -> StuckOperation:
    histories = [_History(store, received, at, group, sequence) for received in last]
    awaited = {who for history in histories for who in _awaited(history.row)}
    members = [_member(history, at) for history in histories if history.in_group or _who(history.received) in awaited]
    calls = [member.called for member in members if member.called is not None]
    later = {
        row["sequence"]
        for received in last
        for row in received.report.operations
        if row["group"] == group and row["ended_ns"] is None and row["kind"] != _MESSAGE and row["sequence"] > sequence
    }
    return _stuck(max(calls, key=calls.count), members, len(later))


def _message(store: RunStore, last: list[Received], at: float, receiver: Received, row: Row) -> StuckOperation:
    """Messages have numbers that mean nothing to other ranks, so that a sender which reports may be anywhere."""
    awaited = _awaited(row)
    histories = [_History(store, one, at) for one in last if _who(one) in awaited and _is_gone(one, at)]
    members = [_member(history, at) for history in (_History(store, receiver, at, row=row), *histories)]
    return _stuck(_called(row), members, 0)


def _stuck(operation: OperationCall, members: list[GroupRank], later: int) -> StuckOperation:
    seconds = max(member.seconds or 0.0 for member in members)
    return StuckOperation(operation, seconds, tuple(sorted(members, key=lambda one: (one.rank, one.site))), later)


def _who(received: Received) -> tuple[str, int]:
    return received.report.site, received.report.rank


def _awaited(row: Row | None) -> set[tuple[str, int]]:
    return set() if row is None else {(peer["site"], peer["rank"]) for peer in row["peers"]}


def _is_gone(received: Received, at: float) -> bool:
    return received.report.final or at - received.at > SILENT_SECONDS


class _History:
    """What a rank has said of a collective and of its group, the newest first."""

    def __init__(
        self,
        store: RunStore,
        received: Received,
        at: float,
        group: int | None = None,
        sequence: int = 0,
        row: Row | None = None,
    ) -> None:
        self.received = received
        self.row = row
        """The operation here."""
        self.last: Row | None = None
        """The last one that it called, of any group."""
        self.passed = False
        """It has called later ones of the group."""
        self.in_group = False
        for known in store.newest("operations", received.rank, at):
            if self.last is None:
                self.last = known
            if group is None:
                return
            if known["group"] != group or known["kind"] == _MESSAGE:
                continue
            self.in_group = True
            if known["sequence"] == sequence:
                self.row = known
            if known["sequence"] <= sequence:
                return
            self.passed = True


def _member(history: _History, at: float) -> GroupRank:
    received, row, last = history.received, history.row, history.last
    absent = row is None and not history.passed
    age = max(0.0, at - received.at)
    return GroupRank(
        site=received.report.site,
        rank=received.report.rank,
        standing=CallState.ABSENT if absent else CallState.OVER if row is None else _standing(row),
        called=None if row is None else _called(row),
        seconds=None if row is None else _seconds(received, row["issued_ns"]) + age,
        waits_for=() if row is None or row["ended_ns"] is not None else tuple(_senders(row["peers"])),
        report_age_seconds=age,
        has_ended=received.report.final,
        last=None if last is None or not absent else _called(last),
        last_seconds=None
        if last is None or not absent
        else _seconds(received, last["ended_ns"] or last["issued_ns"]) + age,
        last_runs=absent and last is not None and last["ended_ns"] is None,
    )


def _standing(row: Row) -> CallState:
    if row["failed"]:
        return CallState.FAILED
    if row["ended_ns"] is not None:
        return CallState.OVER
    return CallState.WAITS_INSIDE if row["began_ns"] is None else CallState.WAITS


def _senders(peers: Iterable[Row]) -> Iterator[Sender]:
    for peer in peers:
        if peer["last_in_ns"] is None:
            known = peer["rank"] is not None  # not after the end of the group
            name = named(peer["site"], peer["rank"]) if known else peer["peer"]
            yield Sender(name, peer["first_in_ns"] is not None)


def _called(row: Row) -> OperationCall:
    return OperationCall(row["group"], row["sequence"], row["kind"], row["dtype"], row["elements"])


def _seconds(received: Received, then_ns: int) -> float:
    return (received.report.now_ns - then_ns) / 1e9
