"""Sites whose journals do not fit the leader's: it may have lost its own, or not be the only one that leads."""

from __future__ import annotations

from dataclasses import dataclass

from geocomm.journal.messages import Refused

REMEMBERED_S = 60.0
"""Such a site dials again every second or so: one that has not for this time has gone."""


@dataclass
class _Seen:
    refused: Refused
    at: float
    times: int = 1


class ForeignJournals:
    """What the leader has told those that it refused for theirs."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def told(self, name: str, refused: Refused, now: float) -> None:
        """A site is refused for its journal."""
        before = self._seen.get(name)
        self._seen[name] = _Seen(refused, now, 1 if before is None else before.times + 1)

    def taken_in(self, name: str) -> None:
        """Forget what was said of a site: its journal fits now."""
        self._seen.pop(name, None)

    def there(self, now: float) -> bool:
        """Whether such a site is there."""
        self._seen = {name: one for name, one in self._seen.items() if now - one.at < REMEMBERED_S}
        return bool(self._seen)

    def doubt(self, now: float) -> tuple[str, ...]:
        """Why the leader may not be the run's, one text a site; none: it is. Who came once with the journal of another
        run has begun with the wrong folder, and has ended."""
        if not self.there(now):
            return ()
        seen = [one for _, one in sorted(self._seen.items()) if one.refused.blames != "run" or one.times > 1]
        return tuple(one.refused.why for one in seen)
