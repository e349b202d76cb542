"""Whether all sites have the same bits of each fragment, by the digests that they say, and who repairs it.

Who differs from the journal's base, or from what most live sites say, is wrong, and repairs alone. Where neither tells,
as between two sites, all that differ do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from geocomm.elastic.journal.entries import Digest
from geocomm.elastic.journal.messages import Applied
from geocomm.elastic.journal.run_state import RunState

_REPAIRS_WITHIN = 100
"""Entries: a site that differs a second time within this many ends its run."""
_KEPT_VERSIONS = 4
DECIDE_S = 30.0
"""Where sites differ and neither side has most of them, the others have this time to say theirs."""


@dataclass(frozen=True)
class DigestDifference:
    """Sites have other bits of a fragment than others, or than the journal says."""

    fragment: int
    version: int
    sites: tuple[str, ...]
    """Those that are wrong, or may be."""
    right: tuple[str, ...]
    """Those that are not; none: the journal alone says so, or nobody knows."""
    is_known: bool
    """Who is wrong."""
    again: frozenset[str]
    """Those of `sites` that differed so short a while ago that a repair does not help."""


@dataclass
class _Repairing:
    """Sites whose digests of a fragment differ, and nobody knows who is right, until all say the same."""

    since: float
    sites: set[str]


class SaidDigests:
    """What sites have said since this leader began. state: of the run, as it is at each call."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._said: dict[int, dict[int, dict[str, Digest]]] = {}
        """By fragment, version and site."""
        self._differ_since: dict[tuple[int, int], float] = {}
        """By fragment and version: since when it is known that sites differ, and not yet who is wrong."""
        self._repairing: dict[int, _Repairing] = {}
        self._repaired_at: dict[tuple[int, str], int] = {}
        """By fragment and site: the head when it was last told to repair."""

    def base(self, fragment: int, version: int) -> Digest | None:
        """The digest of a version, for the round that follows it; None: not more than half of the live sites have said
        it."""
        return self._most_said(self._said_by_live(fragment, version))

    def is_repairing(self, fragment: int) -> bool:
        """Whether sites take the fragment anew, or may have to."""
        return fragment in self._repairing or any(of == fragment for of, _ in self._differ_since)

    def take(self, name: str, applied: Applied, now: float) -> DigestDifference | None:
        """A live site says a digest. Who is wrong by it, or may be."""
        fragment, version = applied.fragment, applied.version
        said = self._said.setdefault(fragment, {})
        digests = said.setdefault(version, {})  # of one that came long ago nothing is kept below
        digests[name] = applied.digest
        for old in [one for one in said if one < self._state.versions[fragment] - _KEPT_VERSIONS]:
            del said[old]
            self._differ_since.pop((fragment, old), None)
        if (repairing := self._repairing.get(fragment)) is not None:
            self._end_repair(fragment, repairing)
            return None
        if set(digests.values()) == {applied.digest} and self._state.base(fragment, version) in (
            None,
            applied.digest,
        ):  # as nearly always: nobody differs, whoever is live
            self._differ_since.pop((fragment, version), None)
            return None
        return self._judge(fragment, version, now)

    def overdue(self, repair_s: float, now: float) -> Iterator[DigestDifference]:
        """What has to be decided, since time has passed: who differs though others have not said theirs, and whose
        repair has taken too long; these repairs are over."""
        for fragment, version in [*self._differ_since]:
            if (found := self._judge(fragment, version, now)) is not None:
                yield found
        for fragment, repairing in [*self._repairing.items()]:
            self._end_repair(fragment, repairing)
            if fragment in self._repairing and now - repairing.since >= repair_s:
                del self._repairing[fragment]
                sites = tuple(sorted(repairing.sites))
                yield DigestDifference(fragment, self._state.versions[fragment], sites, (), False, frozenset(sites))

    def leave(self, name: str) -> None:
        """A site is away: no repair waits for it."""
        for repairing in self._repairing.values():
            repairing.sites.discard(name)

    def forget(self, fragment: int) -> None:
        """Forget the digests of a fragment: its states have changed since they were said."""
        self._said.pop(fragment, None)
        self._repairing.pop(fragment, None)
        self._differ_since = {key: since for key, since in self._differ_since.items() if key[0] != fragment}

    def _judge(self, fragment: int, version: int, now: float) -> DigestDifference | None:
        """Who is wrong of those that have said the digest of a version; None: nobody, or it is not decided yet."""
        said = self._said_by_live(fragment, version)
        base = self._state.base(fragment, version)
        right = self._most_said(said) if base is None else base
        wrong = sorted(name for name, digest in said.items() if digest != right)
        if right is None:
            if len(set(said.values())) < 2:
                self._differ_since.pop((fragment, version), None)
                return None
            known_at = self._differ_since.setdefault((fragment, version), now)
            if len(said) < len(self._state.live) and now - known_at < DECIDE_S:
                return None
            self._repairing[fragment] = _Repairing(now, set(wrong))
        self._differ_since.pop((fragment, version), None)
        if not wrong:
            return None
        head = self._state.head.index
        since = head - _REPAIRS_WITHIN
        again = frozenset(one for one in wrong if self._repaired_at.get((fragment, one), since) > since)
        for one in wrong:
            self._repaired_at[fragment, one] = head
            for digests in self._said[fragment].values():
                digests.pop(one, None)
        others = tuple(sorted(set(said) - set(wrong)))
        return DigestDifference(fragment, version, tuple(wrong), others, right is not None, again)

    def _said_by_live(self, fragment: int, version: int) -> dict[str, Digest]:
        live = self._state.live
        return {name: one for name, one in self._said.get(fragment, {}).get(version, {}).items() if name in live}

    def _most_said(self, said: dict[str, Digest]) -> Digest | None:
        """What more than half of the live sites say, if anything."""
        for digest, count in Counter(said.values()).most_common(1):
            if 2 * count > len(self._state.live):
                return digest
        return None

    def _end_repair(self, fragment: int, repairing: _Repairing) -> None:
        """Over once all of them have said the same of the newest version. What was under way before is of no weight."""
        said = self._said.get(fragment, {}).get(self._state.versions[fragment], {})
        if all(name in said for name in repairing.sites) and len({said[name] for name in repairing.sites}) <= 1:
            del self._repairing[fragment]
