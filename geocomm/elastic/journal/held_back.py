"""Sites whose ranks are there, and that may not take part yet: no run may begin here, or the member list may not grow.

Pure logic, a part of the `Sequencer`. The list grows by one site at a time: once most members hold the entry by which
the last one came. So a leader that is cut off from most cannot fill the list with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from geocomm.elastic.journal.admission import are_most, holders, members_of
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import RanksUp

_HELD_S = 10.0
"""A site that cannot join yet is told of after this time."""


class HeldBack:
    """shared: an entry is committed where it is durable, in etcd, whoever of the members holds it. may_begin: whether a
    run may begin here."""

    def __init__(self, run: LedRun, may_begin: Callable[[], bool], *, shared: bool) -> None:
        self._run, self._may_begin, self._shared = run, may_begin, shared
        self._held: dict[str, tuple[RanksUp, float]] = {}
        """By site, since when."""
        self._told: set[str] = set()
        self._listed_at = run.state.head.index
        """The last entry by which a site may have become a member."""

    def may_come(self, name: str) -> bool:
        """Whether ranks of a site may take part: it is a member, or may become one, or begin the run."""
        if self._run.state.genesis is None:
            return self._may_begin()
        members = members_of(self._run.state)
        return self._shared or not members or name in members or are_most(self._holders, members)

    def add(self, name: str, ranks: RanksUp) -> None:
        """The ranks of a site wait."""
        _, since = self._held.get(name, (ranks, self._run.now))
        self._held[name] = ranks, since

    def drop(self, name: str) -> None:
        """They are gone."""
        self._held.pop(name, None)

    def joined(self) -> None:
        """The last entry made the list longer."""
        self._listed_at = self._run.state.head.index

    def released(self) -> Iterator[tuple[str, RanksUp]]:
        """Those who may take part now, one at a time: the caller takes each in before the next is looked at."""
        for name, (ranks, since) in sorted(self._held.items()):
            if not self._run.sites[name].welcomed:
                del self._held[name]
            elif self.may_come(name):
                del self._held[name]
                self._told.discard(name)
                yield name, ranks
            elif self._run.state.genesis and self._run.now - since > _HELD_S and name not in self._told:
                self._told.add(name)
                lack = ", ".join(one for one in members_of(self._run.state) if one not in self._holders)
                self._run.log(
                    f"{name} joins once most members of the run hold entry {self._listed_at}: {lack} do not. Start "
                    "these sites, or give them up with geocomm members remove"
                )

    @property
    def _holders(self) -> list[str]:
        """Who holds the entry by which the last member came."""
        return holders(self._run.sites, self._listed_at)
