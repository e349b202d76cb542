"""Whether all sites have the same bits of each fragment, by the digests that they say, and who repairs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from geocomm.journal.entries import Digest
from geocomm.journal.messages import Applied
from geocomm.journal.run_state import RunState

_REPAIRS_WITHIN = 100
"""Entries: a second time in so many that digests differ ends the run of these sites."""
_KEPT_VERSIONS = 4


@dataclass(frozen=True)
class Difference:
    """Sites have other bits of a fragment than others, or than the journal says."""

    sites: set[str]
    """Those of them that are connected."""
    others: tuple[str, ...]
    """Sites whose digest is another one than that which was said last; none: the journal's is."""
    again: bool
    """So soon after the last time that a repair does not help."""


@dataclass
class _Repairing:
    """Sites whose digests of a fragment differ, until all say the same."""

    since: float
    sites: set[str]


class SaidDigests:
    """What sites have said since this leader began. state: of the run, as it is at each call."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._said: dict[int, dict[int, dict[str, Digest]]] = {}
        """By fragment, version and site."""
        self._repairing: dict[int, _Repairing] = {}
        self._repaired_at: dict[int, int] = {}
        """By fragment: the head when digests last differed."""

    def base(self, fragment: int, version: int) -> Digest | None:
        """That of a version, for the round that follows it; None: nobody has said it."""
        said = self._said.get(fragment, {}).get(version, {})
        return next((said[name] for name in sorted(said)), None)

    def is_repairing(self, fragment: int) -> bool:
        """Whether sites take the fragment anew."""
        return fragment in self._repairing

    def take(self, name: str, applied: Applied, connected: Callable[[str], bool], now: float) -> Difference | None:
        """A live site says a digest. A difference that comes for the first time begins a repair."""
        fragment, version = applied.fragment, applied.version
        said = self._said.setdefault(fragment, {})
        said.setdefault(version, {})[name] = applied.digest
        for old in [one for one in said if one < self._state.versions[fragment] - _KEPT_VERSIONS]:
            del said[old]
        repairing = self._repairing.get(fragment)
        if repairing is not None:
            self._end_repair(fragment, repairing)
            return None
        base = self._state.base(fragment, version)
        others = {other for other, digest in said.get(version, {}).items() if digest != applied.digest}
        if not others and base in (None, applied.digest):
            return None
        sites = {one for one in others | {name} if connected(one)}
        head, last = self._state.head.index, self._repaired_at.get(fragment)
        self._repaired_at[fragment] = head
        again = last is not None and head - last < _REPAIRS_WITHIN
        if not again:
            said.clear()
            self._repairing[fragment] = _Repairing(now, sites)
        return Difference(sites, tuple(sorted(others)), again)

    def overdue(self, repair_s: float, now: float) -> Iterator[tuple[int, set[str]]]:
        """Fragments whose repair has taken too long, and its sites; these repairs are over."""
        for fragment, repairing in [*self._repairing.items()]:
            self._end_repair(fragment, repairing)
            if fragment in self._repairing and now - repairing.since >= repair_s:
                del self._repairing[fragment]
                yield fragment, repairing.sites

    def leave(self, name: str) -> None:
        """A site is away: no repair waits for it."""
        for repairing in self._repairing.values():
            repairing.sites.discard(name)

    def forget(self, fragment: int) -> None:
        """Its states have changed since they were said."""
        self._said.pop(fragment, None)
        self._repairing.pop(fragment, None)

    def _end_repair(self, fragment: int, repairing: _Repairing) -> None:
        """Over once all of them have said the same of the newest version. What was under way before is of no weight."""
        said = self._said.get(fragment, {}).get(self._state.versions[fragment], {})
        if all(name in said for name in repairing.sites) and len({said[name] for name in repairing.sites}) <= 1:
            del self._repairing[fragment]
