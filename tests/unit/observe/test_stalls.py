"""Verdicts on what is not in all steps: pauses, outages, changes; and on what no cause explains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from geocomm.observe.diagnosis.bottleneck import Diagnosis, diagnose
from geocomm.observe.diagnosis.run_window import Outage, RankWindow, RunWindow, read_window
from geocomm.observe.diagnosis.verdict import Cause, headline
from geocomm.observe.telemetry.run_store import RunStore
from support.invented_run import STEPS, Run

FULL = Run(rate=10e6, size=2 << 20, counters={"best_rate": 10e6, "rtt_s": 0.03})
AT_B = {(3, 1): 1.5, (13, 1): 1.5}


def causes(said: Diagnosis) -> list[tuple[Cause, str]]:
    return [(verdict.cause, verdict.where) for verdict in said.verdicts]


def saved_without(run: Run, **changes: object) -> float:
    return run.window().step_seconds - replace(run, **changes).window().step_seconds


def test_pauses_of_few_steps_are_named_by_what_they_cost_together() -> None:
    run = Run(pauses=AT_B)
    said = run.said()
    assert causes(said)[0] == (Cause.PAUSES, "b")
    assert headline(said.verdict).startswith(f"Pauses of b: 2 of {STEPS} steps, 1.50 s each: ")
    assert said.verdict.saved_seconds == pytest.approx(saved_without(run, pauses={}), rel=0.05)


def test_pauses_do_not_hide_what_is_in_all_steps() -> None:
    run = replace(FULL, pauses=AT_B)
    said = run.said()
    assert causes(said) == [(Cause.BANDWIDTH, "a - b"), (Cause.PAUSES, "b")]
    plain = FULL.said().verdict.saved_seconds
    assert said.verdict.saved_seconds == pytest.approx(plain, rel=0.05)
    assert said.verdicts[1].saved_seconds == pytest.approx(3.0 / STEPS, rel=0.05)


def test_sites_that_pause_in_the_same_steps_are_all_named() -> None:
    said = Run(pauses={(step, site): 1.5 for step in (3, 13) for site in (0, 1)}).said()
    assert causes(said)[0] == (Cause.PAUSES, "")
    assert "Pauses of all sites" in headline(said.verdict)


def test_a_site_that_is_late_in_all_steps_does_not_pause() -> None:
    assert causes(Run(pauses={(step, 1): 0.2 for step in range(STEPS)}).said())[0] == (Cause.STRAGGLER, "b")


def test_sites_that_are_late_in_turn_are_judged_by_the_sum_of_what_each_is_late() -> None:
    late = {(step, step * step % 3 % 2): 0.3 for step in range(STEPS)}
    said = Run(pauses=late).said()
    assert causes(said)[0] == (Cause.UNEVEN, "")
    assert said.verdict.saved_seconds == pytest.approx(0.3, rel=0.1)
    assert ("steps in which a was last", f"{sum(site == 0 for _, site in late)} of {STEPS}") in said.verdict.evidence


def test_a_checkpoint_that_is_told_is_no_pause() -> None:
    assert Cause.PAUSES not in {cause for cause, _ in causes(Run(save=0.5).said())}


def test_a_process_that_was_stopped_within_a_wait_is_known_by_its_missing_reports() -> None:
    window = Run(held={5: 2.0, 15: 2.0}).window()
    stops = [(rank.steps[i].began, rank.steps[i].ended) for rank in window.ranks[1:] for i in (5, 15)]
    said = diagnose(replace(window, ranks=[window.ranks[0], replace(window.ranks[1], stops=stops)]))
    assert causes(said)[0] == (Cause.PAUSES, "b")
    assert ("of these, the process did not even report in", "2") in said.verdict.evidence


def test_messages_that_lay_on_the_way_for_no_known_reason_are_not_known() -> None:
    said = Run(held={5: 2.0, 15: 2.0}).said()
    assert said.verdict.cause is Cause.UNKNOWN
    assert said.verdict.saved_seconds == pytest.approx(4.0 / STEPS, rel=0.1)


def test_losses_at_once_are_no_lossy_line() -> None:
    counters = {"best_rate": 25e6, "retransmitted": 3 * 10**6}
    lossy = Run(rate=5e6, counters=counters)
    assert lossy.said().verdict.cause is Cause.LOSS
    at_once = replace(lossy, counters={**counters, "spread": 0.2}, repairs=(1.0, 3.0, 0.5, 2.0)).said()
    assert Cause.LOSS not in {cause for cause, _ in causes(at_once)}
    assert at_once.verdict.cause is Cause.UNKNOWN


def test_of_three_steps_nothing_is_said() -> None:
    window = FULL.window()
    few = [RankWindow(rank.place, rank.steps[:3], rank.operations[:6]) for rank in window.ranks]
    assert diagnose(replace(window, ranks=few)).verdict.cause is Cause.UNKNOWN


def test_a_full_line_with_a_rest_that_is_smaller_stays_first() -> None:
    said = replace(FULL, held={5: 3.0}).said()
    assert [cause for cause, _ in causes(said)] == [Cause.BANDWIDTH, Cause.UNKNOWN]
    assert said.verdict.saved_seconds == pytest.approx(FULL.said().verdict.saved_seconds, rel=0.1)
    assert said.verdicts[1].saved_seconds == pytest.approx(3.0 / STEPS, rel=0.25)


def outage(window: RunWindow, step: int, seconds: float) -> Outage:
    began = window.ranks[0].steps[step].began
    return Outage("a - b", began, began + seconds)


def test_an_outage_is_named_with_its_two_sites_and_what_it_cost() -> None:
    run = Run(held={7: 10.0})
    window = run.window()
    said = diagnose(replace(window, outages=[outage(window, 7, 10.0)]))
    assert causes(said)[0] == (Cause.OUTAGE, "a - b")
    assert headline(said.verdict).startswith("Outage of a - b, 10 s: ")
    assert said.verdict.saved_seconds == pytest.approx(saved_without(run, held={}), rel=0.05)
    assert set(causes(said)[1:]) < set(causes(Run().said()))


def test_an_outage_that_delayed_no_step_is_no_cause() -> None:
    window = Run().window()
    assert causes(diagnose(replace(window, outages=[outage(window, 7, 10.0)]))) == causes(Run().said())


def test_a_line_that_has_become_slower_is_judged_by_the_steps_since(tmp_path: Path) -> None:
    """Fourteen of fifty: what the line carried before does not make it look idle."""
    run = replace(FULL, rate=400e6, steps=50, slower=(36, 40.0))
    window = run.read(tmp_path)
    said = diagnose(window)
    assert window.step_count == 13  # that of the change itself is of both kinds
    assert causes(said)[0] == (Cause.BANDWIDTH, "a - b")
    assert Cause.UNKNOWN not in {cause for cause, _ in causes(said)}
    assert said.verdict.share > 0.5
    assert said.step_seconds == pytest.approx(run.window().ranks[0].steps[-1].seconds, rel=0.02)
    assert any(note.startswith("Since step 36 a step takes ") for note in said.notes)
    told = {verdict.cause: verdict for verdict in diagnose(read_window(RunStore(tmp_path), 13)).verdicts}
    assert said.verdict.saved_seconds == pytest.approx(told[Cause.BANDWIDTH].saved_seconds, rel=0.02)


def test_what_a_line_carried_before_it_became_slower_is_evidence(tmp_path: Path) -> None:
    said = diagnose(replace(FULL, rate=50e6, size=8 << 20, steps=50, slower=(30, 4.0)).read(tmp_path)).verdict
    assert said.cause is Cause.BANDWIDTH
    assert ("what TCP delivered in good times before", "400 Mbit/s") in said.evidence


def test_a_run_of_one_kind_is_judged_whole(tmp_path: Path) -> None:
    window = FULL.read(tmp_path)
    assert window.step_count == STEPS
    assert window.change is None
    assert not any(note.startswith("Since step") for note in diagnose(window).notes)


def test_a_run_of_uneven_steps_that_has_become_faster_is_judged_whole(tmp_path: Path) -> None:
    """Only of one that has become slower is it asked what is so since."""
    uneven = {(step, 1): 1.5 for step in range(1, 13, 2)}
    said = diagnose(Run(pauses=uneven).read(tmp_path / "faster"))
    assert causes(said)[0] == (Cause.PAUSES, "b")
    since = replace(FULL, rate=400e6, slower=(13, 400.0), pauses=uneven)
    assert causes(diagnose(since.read(tmp_path / "slower")))[0] == (Cause.BANDWIDTH, "a - b")


def test_a_slow_site_beside_pauses_is_later_by_no_more_than_its_steps_last() -> None:
    """What was cut out of the steps makes nobody late."""
    window = Run(compute=(0.1, 0.2), pauses={(3, 0): 2.7, (13, 0): 2.7}).window()
    said = next(one for one in diagnose(window).verdicts if one.cause is Cause.STRAGGLER)
    assert said.where == "b"
    later = dict(said.evidence)["it came later than the others by"]
    assert float(later.removesuffix(" ms ± 6.0 ms")) == pytest.approx(100, abs=10)


def at_all(*seconds: float) -> dict[tuple[int, int], float]:
    """The first steps of both sites, longer by so much."""
    return {(step, site): more for step, more in enumerate(seconds) for site in (0, 1)}


@pytest.mark.parametrize(
    ("first", "count"),
    [(at_all(20.0), 1), (at_all(0.0, 8.0), 2), (at_all(9.0, 0.0, 3.0), 3), (at_all(9.0, 2.0, 2.0, 2.0, 2.0), 5)],
    ids=["compiles", "buckets are made anew", "with a step between", "slow ones in a row"],
)
def test_the_first_steps_of_a_program_are_warm_up_and_no_pauses(
    first: dict[tuple[int, int], float], count: int, tmp_path: Path
) -> None:
    window = replace(FULL, pauses=first).read(tmp_path)
    said = diagnose(window)
    assert window.step_count == STEPS - count
    assert {cause for cause, _ in causes(said)} == {Cause.BANDWIDTH}
    assert said.step_seconds == pytest.approx(FULL.said().step_seconds, rel=0.02)
    assert any(note.startswith("Warm-up") for note in said.notes)


def test_pauses_that_come_again_are_no_warm_up(tmp_path: Path) -> None:
    window = replace(Run(), pauses={(step, 1): 1.5 for step in (1, 8, 15)}).read(tmp_path)
    assert window.warm_up is not None
    assert causes(diagnose(window))[0] == (Cause.PAUSES, "b")
    assert headline(diagnose(window).verdict).startswith(f"Pauses of b: 2 of {STEPS - 2} steps, 1.50 s each: ")


def test_a_run_that_was_slow_at_first_for_longer_than_a_warm_up_has_become_faster(tmp_path: Path) -> None:
    window = replace(Run(), pauses=at_all(*[0.5] * 12)).read(tmp_path)
    assert window.warm_up is None
    assert window.change is not None
    assert window.change.step == 12


def test_steps_long_after_the_begin_are_never_warm_up(tmp_path: Path) -> None:
    """Of a run of which only the last steps are looked at."""
    run = Run(steps=40, pauses={(21, 1): 1.5, (22, 1): 1.5})
    said = diagnose(run.read(tmp_path, last=20))
    assert causes(said)[0] == (Cause.PAUSES, "b")
    assert not any(note.startswith("Warm-up") for note in said.notes)


def test_steps_that_are_cut_out_leave_the_others_as_they_were() -> None:
    """A pause in the first step and in the last one, and operations that belong to them."""
    said = Run(pauses={(0, 0): 2.0, (STEPS - 1, 1): 2.0}).said()
    assert set(causes(said)[:2]) == {(Cause.PAUSES, "a"), (Cause.PAUSES, "b")}
    assert all(verdict.saved_seconds == pytest.approx(2.0 / STEPS, rel=0.05) for verdict in said.verdicts[:2])


def test_one_step_alone_has_no_pauses() -> None:
    window = Run().window()
    one = [RankWindow(rank.place, rank.steps[:1], []) for rank in window.ranks]
    assert Cause.PAUSES not in {cause for cause, _ in causes(diagnose(replace(window, ranks=one)))}
