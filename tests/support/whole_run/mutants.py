"""Faults that geocomm had, put back: the simulator has to find them, or it is too coarse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from geocomm.elastic.frame_fetches import FrameFetches
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.leader_rounds import LeaderRounds
from geocomm.elastic.journal.leader_snapshots import LeaderSnapshots
from geocomm.elastic.journal.messages import StatePart, Wanted
from geocomm.elastic.own_journal import OwnJournal


def _loses_needs(self: FrameFetches, wanted: Wanted) -> None:
    """What ranks need is forgotten where a fetch of it is under way."""
    if wanted not in self._under_way:
        self._fetch(wanted, []).needed = True


def _forgets_rounds(self: LeaderSnapshots) -> float:
    """A snapshot is due a whole while after a leader has begun."""
    return 0.0


_take_part = OwnJournal.take_part


def _refuses_shorter(self: OwnJournal, part: StatePart) -> None:
    """A former leader that led alone does not take the state of a later one, which has fewer entries."""
    head = self._view.state.head.index
    if part.last and self._view.welcome is not None and self._view.welcome.head <= head:
        raise BadLineError("a state that does not follow")
    _take_part(self, part)


_look_at = LeaderRounds._look_at


def _waits_for_all(self: LeaderRounds, fragment: int) -> None:
    """A round has no end before all live sites have offered: there is no grace."""
    found = self._open.get(fragment)
    if found is not None and not all(found.has_tried(name) for name in self._state.live):
        return
    _look_at(self, fragment)


def _put(where: Any, name: str, what: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(where, name, what)


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "none": contextlib.nullcontext,
    "a need is lost": _put(FrameFetches, "until_here", _loses_needs),
    "a former leader is refused": _put(OwnJournal, "take_part", _refuses_shorter),
    "snapshots wait for a leader that lasts": _put(LeaderSnapshots, "_since_last_s", _forgets_rounds),
    "a round waits for all": _put(LeaderRounds, "_look_at", _waits_for_all),
}
