"""Which frames a round does without."""

from __future__ import annotations

import random

from geocomm.elastic.journal.messages import Pass
from geocomm.elastic.journal.outliers import TIMES
from support.led_sequencer import Led

SITES = "abc"


def play(led: Led, lengths: dict[str, float]) -> str:
    """A round in which sites offer frames of these lengths: who counts."""
    led.due()
    for site, length in lengths.items():
        led.offer(site, "".join(one for one in lengths if one != site), length=length)
    for site in set(SITES) - lengths.keys():
        led.say(site, Pass(fragment=0, version=led.sequencer.state.versions[0], attempt=0))
    led.wait(0.5, SITES)
    return led.last_members


def test_frame_of_a_site_that_runs_away_is_left_out_once_and_a_person_hears_of_it() -> None:
    led = Led().take_part(SITES)
    for _ in range(4):
        assert play(led, {"a": 1.0, "b": 2.0, "c": 1.5}) == "abc"
    assert play(led, {"a": 1.0, "b": 3 * TIMES, "c": 1.5}) == "ac"
    assert led.sequencer.rounds.left_out == 1
    assert "b: its delta of fragment 0 in round 4 is left out" in led.logged[-1]
    assert play(led, {"a": 1.0, "b": 3 * TIMES, "c": 1.5}) == "abc"  # it may be right
    assert play(led, {"a": 1.0, "b": 2.0, "c": 1.5}) == "abc"
    assert play(led, {"a": 1.0, "b": 3 * TIMES, "c": 1.5}) == "ac"  # another time
    assert led.sequencer.rounds.left_out == 2


def test_frame_is_as_long_as_usual_where_the_others_are_as_long_or_it_always_was() -> None:
    led = Led().take_part(SITES)
    for _ in range(4):
        assert play(led, {"a": 1.0, "b": 200.0, "c": 1.5}) == "abc"
    assert play(led, {"a": 100.0, "b": 2000.0, "c": 150.0}) == "abc"  # as when a warm-up ends
    assert led.sequencer.rounds.left_out == 0


def test_round_that_would_have_too_few_frames_without_it_takes_it() -> None:
    led = Led().take_part("a")
    for length in (1.0, 1.0, 1.0, 1.0, 1000.0):
        led.due()
        led.offer("a", length=length)
        led.wait(1, "a")
    assert led.sequencer.state.versions[0] == 5
    assert led.sequencer.rounds.left_out == 0


def test_healthy_sites_are_never_left_out() -> None:
    chance = random.Random(5)
    led = Led().take_part(SITES)
    scale = 1.0
    for _ in range(300):
        scale *= chance.choice((0.7, 0.9, 1.0, 1.1, 1.4))
        play(led, {site: scale * chance.uniform(0.3, 5.0) for site in SITES if chance.random() < 0.9 or site == "a"})
    assert led.sequencer.rounds.left_out == 0
