"""The deals of a run's data: the leader deals to a site that soon has none left, and takes back from one that is gone.

Pure logic, a part of the `Sequencer`. Deals only grow: nobody else changes what a site that lives reads next, and one
that is cut off trains on for as long as its deals last. But what a newer version takes from it, it is not to read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geocomm.data.deal_records import DealtSet, cut, length
from geocomm.elastic.journal.entries import Away, Data, Deal, TakenBack
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Beat, Owner
from geocomm.elastic.journal.run_state import SiteRecord, Standing

if TYPE_CHECKING:
    from geocomm.elastic.journal.run_data import RunData

_LEAST_DEALS = 2
"""That a site has left, begun ones included."""
_DEALS_AT_ONCE = 2
_LEAST_AHEAD_S = 60.0
_PARTS_OF_A_PASS = 2
"""A site has no more left than such a part of what is its own of a pass, so that those that come find some. It is a
large part, since a site trains on from what it has left, and has fetched, while a store or the leader is away."""
_PACE_S = 20.0
"""The shortest time over which a site's speed is measured."""


@dataclass
class _Pace:
    """How fast a site reads."""

    since: float
    tokens: int
    """That it had read at `since`."""
    speed: float = 0.0
    """In tokens per second; 0: not known yet."""


class LeaderDeals:
    """`look` does what is due, at each tick. forget: nothing counts that a site has said of open rounds."""

    def __init__(self, run: LedRun, forget: Callable[[str], None]) -> None:
        self._run, self._forget = run, forget
        self._data: RunData | None = None
        self._looked_through = 0, 0
        """The number of the version by which all deals were looked at, and how many rounds were void then."""
        self._paces: dict[str, _Pace] = {}
        self._owners: dict[str, tuple[Owner, ...]] = {}
        """The last ranks of each site."""
        self._read: dict[str, int] = {}
        """Tokens that these have read, as they said last."""
        self._gone_since: dict[str, float] = {}
        """By site: since when nobody there reads, as far as this leader has seen it."""
        self._first_look_at: float | None = None
        self._waits: set[str] = set()
        self.repeated_tokens = 0
        """That sites had read, since this leader began, and that did not count when their ranks began anew, or when it
        was taken back: the same ranks or others read it again."""

    @property
    def waits(self) -> list[str]:
        """What no site that is there may read, in words."""
        return sorted(self._waits)

    @property
    def undealt_tokens(self) -> int | None:
        """Tokens of this pass over the data that are not dealt; None: the run deals none, or the catalog was not read
        yet."""
        state, data = self._run.state, self._data
        version = state.data_in_force
        if data is None or version is None:
            return None
        return (data.undealt(state) + sum(rest.sequences for rest in state.rests)) * version.sequence_length

    @property
    def lacks_catalog(self) -> bool:
        """Whether a run cannot begin, since it is to deal data and the catalog was not read yet."""
        return self._run.terms.data is not None and not self._run.state.data and self._data is None

    def read(self, data: RunData) -> None:
        """The catalog was read."""
        self._data = data

    def beat(self, name: str, beat: Beat) -> None:
        """A site says how far it has read; 0: nothing, or its agent does not know it yet."""
        if not beat.tokens:
            return
        self._read[name] = beat.tokens
        if name not in self._run.state.live:
            return
        now, tokens = self._run.now, beat.tokens
        pace = self._paces.setdefault(name, _Pace(now, tokens))
        if tokens < pace.tokens:  # it has started again, and reads on from what counts
            pace.since, pace.tokens = now, tokens
        elif now - pace.since >= _PACE_S:
            # A site that has waited for data is not slow for that.
            pace.speed = max((tokens - pace.tokens) / (now - pace.since), pace.speed / 2)
            pace.since, pace.tokens = now, tokens

    def ranks_up(self, name: str, owners: tuple[Owner, ...]) -> None:
        """A site has ranks; new ones read on from what counts."""
        if self._owners.get(name) != owners:
            self._reads_again(name, self._run.state.sites[name].taken)
            self._owners[name] = owners

    def _reads_again(self, name: str, taken: int) -> None:
        """What the ranks of a site have read behind these tokens is read once more."""
        read = self._read.pop(name, 0)
        if self._owners.pop(name, None) is not None:
            self.repeated_tokens += max(0, read - taken)

    def look(self) -> None:
        """Take over a newer version, take back what nobody reads, and deal to those who have too little left."""
        self.take_version()
        if not self._run.state.data:
            return
        if self._first_look_at is None:
            self._first_look_at = self._run.now
        self._take_back_unreadable()
        for name, site in sorted(self._run.state.sites.items()):
            if self._is_gone(name, site) and self._run.state.left(name):
                self._take_back(name, site)
        for name in self._run.state.live:
            for _ in range(_DEALS_AT_ONCE):
                if not self._lacks(name) or not self._deal(name):
                    break

    def take_version(self) -> None:
        """Deal the newest version of the data set: from the run's beginning on, or from now on."""
        state, data, terms = self._run.state, self._data, self._run.terms
        if data is None or state.genesis is None:
            return
        before = state.data_in_force
        if before is None:
            begins, said = not any(state.versions), terms.data
        else:
            begins, said = data.number > before.number, before
        if begins and said is not None:
            of = {name: getattr(said, name) for name in DealtSet.model_fields}
            self._run.append(Data, number=data.number, sha256=data.sha256, **of)
        if begins and before is not None:
            self._run.log(f"deals are of version {data.number} of {before.set} from now on; it was {before.number}")

    # ---- to a site

    def _lacks(self, name: str) -> bool:
        """Whether a site that is there has less left than it is to have."""
        site, data, state = self._run.sites[name], self._data, self._run.state
        version = state.data_in_force
        if data is None or version is None or not site.connected or not site.has_ranks:
            return False
        line, pace = state.sites[name].line, self._paces.get(name)
        read = max(self._read.get(name, 0), state.sites[name].taken) // version.sequence_length
        left = state.line_ends(name) - read
        if left < 0:  # it counts what it was never dealt: there would be no end
            return False
        if len(line) < _LEAST_DEALS or left <= length(line[1 - _LEAST_DEALS :]):
            return True
        if pace is None or not pace.speed:
            return False
        speeds = self._speeds()
        speed = pace.speed / version.sequence_length
        share = data.readable(name) * speeds[name] / sum(speeds.values()) / _PARTS_OF_A_PASS
        return left < max(min(self._run.terms.ahead_s * speed, share), _LEAST_AHEAD_S * speed)

    def _speeds(self) -> dict[str, float]:
        """In tokens per second, of all sites that are there; one that is not known is as fast as the others."""
        known = {name: self._paces[name].speed for name in self._run.state.live if name in self._paces}
        some = [speed for speed in known.values() if speed > 0]
        mean = sum(some) / len(some) if some else 1.0
        return {name: known.get(name, 0.0) or mean for name in self._run.state.live}

    def _deal(self, name: str) -> bool:
        """Deal what others have left over, or else what was dealt least. Whether there was anything."""
        state, data = self._run.state, self._data
        if data is None:
            return False
        for rest in state.rests:
            if data.may_read(state, name, state.deals[rest.deal]):
                self._run.append(Deal, site=name, rest=rest.deal, start=rest.start, sequences=rest.sequences)
                return True
        found = data.next_deal(state, name, self._speeds())
        waits = set(data.waits(state, state.live))
        for text in sorted(waits - self._waits):
            self._run.log(text)
        self._waits = waits
        if found is not None:
            self._run.append(Deal, site=name, shards=found[0], sequences=found[1])
        return found is not None

    # ---- back from one

    def _is_gone(self, name: str, site: SiteRecord) -> bool:
        """Whether nobody reads what the site has left: it has ended, or was away for long."""
        if site.standing in (Standing.LEFT, Standing.REMOVED):
            return True
        led, doubt_s = self._run.sites.get(name), self._run.terms.doubt_s
        lives = site.standing is Standing.READY or (led is not None and led.connected and led.has_ranks)
        if lives:
            self._gone_since.pop(name, None)
            return False
        since = self._gone_since.setdefault(name, self._run.now)
        before_s = self._gone_before_s(site) if since == self._first_look_at else 0.0
        return 0 < doubt_s <= self._run.now - since + before_s

    def _gone_before_s(self, site: SiteRecord) -> float:
        """How long a site that was gone when this leader began had not counted then: leaders may change more often than
        sites are given up."""
        begun = self._run.began_with
        counted = [marks[-1][0] + 1 if marks else 0 for marks in site.read]
        missed = sum(max(0, rounds - last) for rounds, last in zip(begun, counted, strict=False))
        return self._run.seconds_of(missed) if any(counted) else 0.0

    def _take_back_unreadable(self) -> None:
        """What a site is about to read is in the newest version, and it may read it there: else it gets other deals."""
        state, data = self._run.state, self._data
        if data is None:
            return
        looked_through = data.number, len(state.skipped)  # what a void round counted is read again
        if looked_through == self._looked_through:
            return
        self._looked_through = looked_through
        for name, site in sorted(state.sites.items()):
            _, rest = cut(site.line, state.position(name) - state.line_begins(name))
            if all(data.may_read(state, name, state.deals[deal]) for deal in {piece.deal for piece in rest}):
                continue
            why = f"version {data.number} of the data is without some of it, or does not let it read some"
            if site.standing is Standing.READY:
                self._run.append(Away, site=name, why=why)
            self._take_back(name, site, why)

    def _take_back(self, name: str, site: SiteRecord, why: str = "") -> None:
        state, data = self._run.state, self._run.state.data_in_force
        if data is None:
            return
        if not why:
            why = f"it has {site.standing}" if site.standing is Standing.LEFT else f"it was {site.standing}"
            if site.standing in (Standing.AWAY, Standing.JOINING):
                why = f"away for {self._run.terms.doubt_s / 60:g} min"
        # What it has offered, and what is on its way, is of deals that others read from now on.
        self._forget(name)
        self._paces.pop(name, None)
        taken = state.position(name) * data.sequence_length
        self._reads_again(name, taken)
        self._run.append(TakenBack, site=name, taken=taken, why=why)
        self._run.drop(name, f"its deals were taken back: {why}")
