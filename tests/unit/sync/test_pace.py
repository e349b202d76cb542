"""How often the sites average where `every` follows the line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedRounds, SimulatedSites
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.outer.schedule import LineClock, Pace
from geocomm.sync.local_steps.settings.local_settings import Auto, LocalSettings
from support.local_models import SITES, adamw, make_model, train_step, values


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_line_clock_counts_what_happens_at_the_same_time_once() -> None:
    clock = Clock()
    line = LineClock(clock)
    with line.running():
        clock.now += 2
        with line.running():
            clock.now += 3
            assert line.seconds == 5
        clock.now += 1
    clock.now += 10
    assert line.seconds == 6
    with line.running():
        clock.now += 1
    assert line.seconds == 7


class Cycles:
    """Cycles of 30 steps of 0.1 s."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.pace = Pace(self.clock)
        self.line_s = 0.0

    def wanted(self, every: int, line_s: float, longest_step_s: float = 0.1) -> int:
        for index in range(30):
            self.clock.now += longest_step_s if index == 7 else 0.1
            self.pace.count_step()
        self.line_s += line_s
        return self.pace.wanted(every, self.line_s)


def test_nothing_is_wanted_before_two_cycles_were_measured() -> None:
    cycles = Cycles()
    assert [cycles.wanted(30, 50.0) for _ in range(3)] == [0, 0, 300]


@pytest.mark.parametrize(
    ("line_s", "every", "wanted"),
    [
        (0.7, 30, 30),  # 10 steps are enough, and 30 is the least
        (3.46, 30, 50),  # 50 steps of 0.1 s, of which rounds take 0.7
        (3.46, 46, 46),  # little more or less: it stays
        (3.46, 60, 60),
        (3.46, 100, 50),
        (70.0, 30, 300),  # the most
        (0.0, 120, 30),
    ],
)
def test_wanted_is_the_least_with_which_rounds_fit_under_the_steps(line_s: float, every: int, wanted: int) -> None:
    cycles = Cycles()
    assert [cycles.wanted(every, line_s) for _ in range(3)][-1] == wanted


def test_line_that_was_down_once_and_one_long_step_change_nothing() -> None:
    cycles = Cycles()
    found = [cycles.wanted(50, 3.46), cycles.wanted(50, 3.46), cycles.wanted(50, 90.0, longest_step_s=60.0)]
    found += [cycles.wanted(50, 3.46) for _ in range(2)]
    assert found == [0, 0, 50, 50, 50]


class SlowLineRounds(SimulatedRounds):
    """Simulated rounds that say how long they took: so long that more steps than 30 are wanted at one site."""

    def __init__(self, sites: SimulatedSites, site: str) -> None:
        super().__init__(sites, site)
        self.spent = 0.0

    @property
    def line_seconds(self) -> float:
        self.spent += 1e6 if self.site == SITES[0] else 0.0
        return self.spent


def slow_run(
    rounds: Rounds, sites: SimulatedSites, every: int | Auto, *, deterministic: bool = False, steps: int = 200
) -> tuple[LocalSteps, list]:
    model = make_model()
    optimizer = adamw(model)
    slow = SlowLineRounds(sites, rounds.site)
    settings = {"every": every, "fragments": 3, "overlap": 2, "exact_below": 100, "deterministic": deterministic}
    handle = local_steps(model, optimizer, LocalSettings(**settings), rounds=slow)
    found = []
    for step in range(steps):
        train_step(model, optimizer, rounds.site, step)
        if not found or found[-1][1] != handle.stats()["every"]:
            found.append((step, handle.stats()["every"]))
    found.append((steps, handle.stats()["rounds"]))
    handle.finish()
    found.append((steps, values(model).tolist()))
    return handle, found


def test_sites_change_every_after_the_same_round_and_stay_equal() -> None:
    sites = SimulatedSites(SITES)
    (_, one), (_, other) = sites.run(lambda rounds: slow_run(rounds, sites, "auto"))
    assert one == other  # site b has a fast line, and follows
    assert [every for _, every in one[:2]] == [30, 300]
    # Fragment 0 is due after 10, 40 and 70 steps. At the third time two cycles have been measured. The
    # change is merged two steps later, and holds from the end of this cycle, after 90 steps.
    begun = sorted((entry.round, entry.steps[0]) for entry in sites.committed)
    assert [step for number, step in begun if number % 3 == 0][:4] == [10, 40, 70, 190]


@pytest.mark.parametrize(("every", "deterministic"), [("auto", True), (30, False)])
def test_every_stays_where_it_was_given_or_runs_are_deterministic(every: int | Auto, deterministic: bool) -> None:
    sites = SimulatedSites(SITES)
    (handle, found), _ = sites.run(
        lambda rounds: slow_run(rounds, sites, every, deterministic=deterministic, steps=110)
    )
    assert found[0][1] == 30
    assert found[1][0] == 110  # no change
    assert handle.stats()["every"] == 30


def part_of_a_run(
    rounds: Rounds, sites: SimulatedSites, folder: Path, first: int, last: int
) -> tuple[int, list[float]]:
    """Steps [first, last) on a slow line, from the state in `folder` unless first is 0; the state after them is kept.

    Returns `every` and the parameters.
    """
    model = make_model()
    optimizer = adamw(model)
    slow = SlowLineRounds(sites, rounds.site)
    handle = local_steps(
        model, optimizer, LocalSettings(every="auto", fragments=3, overlap=2, exact_below=100), rounds=slow
    )
    path = folder / f"{rounds.site}.pt"
    if first:
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        handle.load_state_dict(state["local_steps"])
    for step in range(first, last):
        train_step(model, optimizer, rounds.site, step)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "local_steps": handle.state_dict()}
    torch.save(state, path)
    return handle.stats()["every"], values(model).tolist()


@pytest.mark.parametrize("stop", [71, 95])  # while the change is agreed but not yet held, and after it
def test_resumed_run_changes_every_where_the_whole_one_does(stop: int, tmp_path: Path) -> None:
    whole_sites = SimulatedSites(SITES)
    whole = whole_sites.run(lambda rounds: part_of_a_run(rounds, whole_sites, tmp_path, 0, 200))
    for first, last in ((0, stop), (stop, 200)):
        sites = SimulatedSites(SITES)
        resumed = sites.run(
            lambda rounds, sites=sites, first=first, last=last: part_of_a_run(rounds, sites, tmp_path, first, last)
        )
    assert resumed == whole
    assert [every for every, _ in whole] == [300, 300]
