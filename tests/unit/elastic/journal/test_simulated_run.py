"""Random histories of whole runs: nothing breaks, and none stands still. And mistakes are found by that."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from geocomm.elastic.journal.entries import AnyRound
from geocomm.elastic.journal.leader_deals import LeaderDeals
from geocomm.elastic.journal.member import Member
from geocomm.elastic.journal.messages import Fetch, Hello, Offer, Refused, Summed
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import Action, Event, Send
from support.journal import simulated_agents
from support.journal.simulated_run import FAULTS, TERMS, History, SimulatedRun

BUDGET_S = 4.0
IN_DOUBT = replace(TERMS, doubt_s=0.5, silent_s=3.0, disconnected_s=0.5)
"""Deals are taken back from sites that have hardly gone."""
# `make test` looks at the same histories each time; others are the matter of benchmarks/journal_histories.py.
SAME_HISTORIES = settings(
    max_examples=400,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[*HealthCheck],
)


@SAME_HISTORIES
@given(seed=st.integers(0, 2**64), kinds=st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
def check_a_history(seed: int, kinds: set[str]) -> None:
    if time.monotonic() > check_a_history.until:  # type: ignore[attr-defined]
        return
    history = SimulatedRun(seed, faults={kind: FAULTS[kind] for kind in kinds}).run()
    assert not history.broken
    assert not history.stood_still
    check_a_history.count += 1  # type: ignore[attr-defined]


def test_histories_with_faults_keep_every_rule_and_go_on() -> None:
    check_a_history.until = time.monotonic() + BUDGET_S  # type: ignore[attr-defined]
    check_a_history.count = 0  # type: ignore[attr-defined]
    check_a_history()
    assert check_a_history.count > 0  # type: ignore[attr-defined]


def test_equal_seeds_give_equal_histories() -> None:
    one, other = SimulatedRun(11).run(), SimulatedRun(11).run()
    assert one.entries == other.entries
    assert one.faults == other.faults
    assert sum(isinstance(entry, AnyRound) for entry in one.entries) > 10


def test_leader_says_how_much_is_read_again_after_ranks_die(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_agents, "BEAT_S", 0.2)  # what the leader has not heard, it does not count
    histories = [SimulatedRun(seed, faults={"ranks": 1.0}).run() for seed in range(8)]
    read, said = (sum(getattr(one, name) for one in histories) for name in ("read_again", "said_again"))
    assert 300 < 0.8 * read <= said <= read
    kept = SimulatedRun(3, faults={"agent": 1.0}).run()  # its ranks live, and read on
    assert kept.faults["agent"] > 5
    assert (kept.read_again, kept.said_again) == (0, 0)


@pytest.mark.slow
def test_wrong_bits_of_one_site_of_three_hardly_ever_cost_the_others_a_start() -> None:
    histories = [SimulatedRun(seed, sites=3, faults={"bits": 1.0}).run() for seed in range(20)]
    assert [verdict(history) for history in histories] == [""] * 20
    faults = sum(history.faults["bits"] for history in histories)
    assert faults > 50
    # In about one run of fifty, a digest that a site said before it started again is heard after that.
    assert sum(history.repaired_in_vain for history in histories) <= faults // 20


class BelievesWhatWasOpen(Member):
    """A member that goes on believing in rounds that the leader does not name any more."""

    def _forget_opens(self, still_open: object) -> None:
        pass


class NeverFetches(Sequencer):
    """A leader that waits for the mail. Its terms have no new attempts."""

    def on(self, event: Event, now: float) -> list[Action]:
        return [one for one in super().on(event, now) if not (isinstance(one, Send) and isinstance(one.message, Fetch))]


class BelievesLostDisks(Sequencer):
    """A leader that does not look at the store of a site that comes back."""

    def _believed(self, name: str, hello: Hello) -> Hello:
        known = self.state.sites.get(name)
        return hello if known is None else hello.model_copy(update={"store": known.store})

    def turned_away(self, name: str, hello: Hello, now: float) -> Refused | None:
        return super().turned_away(name, self._believed(name, hello), now)

    def _hello(self, name: str, site: Any, hello: Hello) -> None:
        super()._hello(name, site, self._believed(name, hello))


class NeverSkips(Sequencer):
    """A leader that waits for frames that nobody has."""

    def _skip_lost(self) -> None:
        pass


class KnowsItsLastFrameOnly(Member):
    """A member that forgets what it offered before, in the same round."""

    def _counted(self, own: Any, entry: AnyRound) -> Offer | None:
        found = super()._counted(own, entry)
        return found if found in own.own[-1:] else None


class ReadsOnBehindVoidRounds(Member):
    """A member that does not look whether its site was told of rounds that become void."""

    def __init__(self, site: str, versions: Mapping[int, int], on_disk: Any = (), head: int = -1) -> None:
        super().__init__(site, versions, on_disk)


class CountsWhatWasTakenBack(Sequencer):
    """A leader that still counts what a site has offered before its deals were taken back."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.deals = LeaderDeals(self._run, lambda site: None)


class NamesOneAggregator(Sequencer):
    """A leader whose aggregators stay what they are, also where they have left."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        charge = self._rounds._charge
        self._rounds._charge = lambda fragment, found: None if found.charges else charge(fragment, found)


class BelievesOneDisk(Sequencer):
    """A leader for which an average that lies on its aggregator's disk alone is safe."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        rounds, summed = self._rounds, self._rounds.summed

        def believed(name: str, message: Summed) -> None:
            summed(name, message)
            found = rounds._open.get(message.fragment)
            if found is not None and found.charge is not None and found.charge.summed == message:
                for site in self.state.live:
                    found.hold(site, message.frame)

        self._rounds.summed = believed


MISTAKES = [
    ({"sequencer": NamesOneAggregator, "faults": {"leave": 1.0}, "sites": 4, "reduce": "aggregator"}, "stands still"),
    ({"sequencer": BelievesOneDisk, "faults": {"line": 1.0}, "reduce": "aggregator"}, "3"),
    ({"member": BelievesWhatWasOpen, "faults": {"leader": 1.0}}, "stands still"),
    (
        {"sequencer": NeverFetches, "faults": {"line": 1.0}, "sites": 2, "terms": replace(TERMS, attempt_s=math.inf)},
        "stands still",
    ),
    (
        # A site that may be away for long without anybody noticing: what the mistake needs happens more often.
        {
            "sequencer": BelievesLostDisks,
            "faults": {"disk": 1.0, "line": 1.0},
            "sites": 2,
            "terms": replace(TERMS, disconnected_s=12.0),
        },
        "3",
    ),
    ({"sequencer": NeverSkips, "faults": {"disk": 1.0}, "sites": 2}, "stands still"),
    ({"member": KnowsItsLastFrameOnly, "faults": {"line": 1.0, "leader": 1.0}}, "12"),
    ({"member": ReadsOnBehindVoidRounds, "faults": {"disk": 1.0}}, "13"),
    ({"sequencer": CountsWhatWasTakenBack, "faults": {"line": 1.0, "uplink": 2.0}, "terms": IN_DOUBT}, "14"),
]


def verdict(history: History) -> str:
    return "stands still" if history.stood_still else history.broken.partition(":")[0]


@pytest.mark.parametrize(
    ("mistake", "found"),
    MISTAKES,
    ids=["charge", "average", "open", "fetch", "store", "skip", "frames", "read", "deals"],
)
def test_mistake_of_a_member_or_leader_is_found(mistake: Mapping[str, Any], found: str) -> None:
    right = {name: value for name, value in mistake.items() if name not in ("member", "sequencer")}
    if "terms" in right and right["terms"].attempt_s == math.inf:
        del right["terms"]  # is a part of that mistake
    seed = next(seed for seed in itertools.count() if verdict(SimulatedRun(seed, **mistake).run()) == found)
    assert seed < 200
    assert verdict(SimulatedRun(seed, **right).run()) == ""
