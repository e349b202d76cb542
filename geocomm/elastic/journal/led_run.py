"""A run as its leader has it, for the parts that decide for it: what is known, and what the leader is to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geocomm.elastic.journal.admission import LedSite
from geocomm.elastic.journal.entries import Entry
from geocomm.elastic.journal.messages import Down, EntrySaid
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer_events import Action, Append, Close, LeaderSettings, Log, Send, SendEntries

_PACED_ROUNDS = 4
"""That a leader has to have decided before it knows how fast rounds are."""


class LedRun:
    """What is known of the run, which all parts read; and the actions that they ask for, in their order."""

    def __init__(self, state: RunState, terms: LeaderSettings) -> None:
        """state: what the journal says. It changes by `append` alone."""
        self.state, self.terms = state, terms
        self.sites: dict[str, LedSite] = {}
        """All that the journal names, or that have come since this leader began."""
        self.now = 0.0
        """When the present event came, in seconds on the leader's clock."""
        self.began_at = 0.0
        """When this leader began."""
        self.began_with = tuple(state.versions)
        """By fragment: rounds that the run had then."""
        self._actions: list[Action] = []

    def begin(self) -> None:
        """The leader begins now."""
        self.began_at = self.now

    def seconds_of(self, rounds: int) -> float:
        """How long so many rounds of any fragments take, by the pace of this leader's own; 0: that is not known yet.
        The journal has no times, and leaders may change more often than something is due."""
        own = sum(self.state.versions) - sum(self.began_with)
        if own < max(_PACED_ROUNDS, len(self.state.versions)):
            return 0.0
        return rounds * (self.now - self.began_at) / own

    def append(self, kind: Callable[..., Entry], **fields: Any) -> None:
        """Write an entry, unless the run has ended. All sites that are welcome here hear of it."""
        if self.state.ended:
            return
        head = self.state.head
        entry = kind(index=head.index + 1, prev=head.hash, term=self.state.term, **fields)
        self.state.apply(entry)
        self._actions.append(Append(entry))
        for name, site in sorted(self.sites.items()):
            if site.connected and site.welcomed:
                self.send(name, EntrySaid(entry=entry))

    def send(self, name: str, message: Down) -> None:
        """Tell a site, if it is connected."""
        site = self.sites.get(name)
        if site is not None and site.connected:
            self._actions.append(Send(name, message))

    def send_entries(self, name: str, first: int, last: int) -> None:
        """Send a site these entries of the journal, the last one included."""
        self._actions.append(SendEntries(name, first, last))

    def drop(self, name: str, why: str) -> None:
        """End the connection of a site, if it has one."""
        site = self.sites.get(name)
        if site is None or not site.connected:
            return
        site.connected = site.welcomed = False
        site.changed = self.now
        if why != site.closed_for:  # who dials again at once hears the same again; the log does not
            site.closed_for = why
            self.log(f"{name}: connection closed: {why}")
        self._actions.append(Close(name, why))

    def log(self, text: str) -> None:
        """Tell a person."""
        self._actions.append(Log(text))

    @property
    def has_actions(self) -> bool:
        """Whether anything was asked for since the last call."""
        return bool(self._actions)

    def take_actions(self) -> list[Action]:
        """All that was asked for since the last call."""
        actions, self._actions = self._actions, []
        return actions
