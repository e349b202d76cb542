"""Who averages wrong: now and then another site averages the same frames too, and the leader compares.

Pure logic, a part of the `Sequencer`. Sites code an average alike, bit for bit, so its hash tells. Where two hashes
differ, further sites are asked, until two agree: a site that has said another one is named in the log, and averages no
more. The state stays as it is: all sites have applied the same average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from geocomm.core.records import Hash
from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Check, SumChecked
from geocomm.elastic.journal.open_round import Charge, OpenRound

ONE_IN = 32
"""An average is checked with this chance, which nobody knows before it is in the journal: it costs the site that checks
all frames of the round."""
ANSWER_S = 120.0
"""A site that has not answered by then is not waited for: the frames may be gone."""


@dataclass
class _Open:
    """A check that is under way."""

    asked: Check
    said: dict[str, Hash]
    """By site: the hash of the average."""
    waits_for: str = ""
    since: float = 0.0
    passed_over: set[str] = field(default_factory=set[str])
    """Sites that have not answered."""


class AverageChecks:
    """The checks of a run, one at a time. random_hex: see `Sequencer`."""

    def __init__(self, run: LedRun, random_hex: Callable[[], str]) -> None:
        self._run, self._random_hex = run, random_hex
        self._open: _Open | None = None
        self.distrusted: set[str] = set()
        """Sites that were found to average wrong, since this leader began."""
        self.found_wrong = 0
        """Averages of which sites said different things, since this leader began."""

    def decided(self, found: OpenRound, fragment: int, averages: Sequence[Charge]) -> None:
        """A round is in the journal that is made of these averages."""
        if self._open is not None:
            return
        drawn, left = divmod(int(self._random_hex(), 16), ONE_IN)
        if left:
            return
        one = averages[drawn % len(averages)]
        if one.summed is not None:
            asked = Check(fragment=fragment, version=found.version, attempt=one.by.attempt, members=one.frames)
            self._open = _Open(asked, {one.by.site: one.summed.frame})
            self._ask_next(self._open)

    def checked(self, name: str, said: SumChecked) -> None:
        """A site has averaged the frames too."""
        found = self._open
        if found is None or name != found.waits_for or said.named != found.asked.named:
            return
        found.said[name] = said.frame
        hashes = [*found.said.values()]
        if (right := next((one for one in hashes if hashes.count(one) > 1), None)) is not None:
            self._open = None
            self._name(found, right)
        else:
            self._ask_next(found)

    def look(self) -> None:
        """Time has passed."""
        found = self._open
        if found is None:
            return
        if found.waits_for not in self._run.state.live or self._run.now - found.since >= ANSWER_S:
            found.passed_over.add(found.waits_for)
            self._ask_next(found)

    def _ask_next(self, found: _Open) -> None:
        able = [
            name
            for name in self._run.state.live
            if name not in found.said and name not in found.passed_over and self._run.sites[name].has_ranks
        ]
        if able and (len(found.said) > 1 or not found.passed_over):
            found.waits_for, found.since = able[int(self._random_hex(), 16) % len(able)], self._run.now
            self._run.send(found.waits_for, found.asked)
            return
        self._open = None
        if len(found.said) > 1:
            self.found_wrong += 1
            self._run.log(
                f"{_round_of(found)}: {', '.join(sorted(found.said))} make different averages of the same frames. At "
                "most one of them is right, and no other site can say which: look at these machines"
            )

    def _name(self, found: _Open, right: Hash) -> None:
        """Two sites agree: who differs from them is wrong."""
        agree = ", ".join(sorted(name for name, frame in found.said.items() if frame == right))
        self.found_wrong += len(set(found.said.values())) > 1
        for place, (name, frame) in enumerate(found.said.items()):
            if frame != right:
                what = (
                    "its average of the frames is wrong, and all sites have applied it"
                    if place == 0
                    else ("what it makes of the frames is wrong")
                )
                self.distrusted.add(name)
                self._run.log(
                    f"{name}: {_round_of(found)}: {what}, say {agree}, who make the same of them. It averages no more "
                    "under this leader: look at that machine, or remove the site with geocomm members remove"
                )


def _round_of(found: _Open) -> str:
    return f"round {found.asked.version} of fragment {found.asked.fragment}"
