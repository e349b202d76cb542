"""A listed frame that nobody has is given up, however often leaders change; what is not lost is not."""

from __future__ import annotations

from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.messages import Lost, Open, ReadySaid
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.led_sequencer import Led

GIVEN_UP_S = LeaderSettings().lost_s


def led_a_round(terms: LeaderSettings | None = None) -> tuple[Led, Lost]:
    """A leader that has closed a round of a frame of a's, and what a site says that lacks it."""
    led = Led(terms).take_part("abc")
    led.due()
    frame = led.offer("a", held_by="b")
    led.wait(20, "abc")
    assert isinstance(led.entries[-1], Round)
    return led, Lost(fragment=0, version=0, site="a", frame=frame)


def next_leader(led: Led, lost: Lost, **missed_s: float) -> Led:
    """Of the same journal: these sites come, and lack the frame for so long."""
    after = Led(entries=led.entries, start=1)
    for site, seconds in missed_s.items():
        after.hello(site)
        after.ranks_up(site)
        after.say(site, lost.model_copy(update={"missed_s": seconds}))
    return after


def test_a_frame_that_was_missed_under_earlier_leaders_is_given_up_by_one_that_has_just_begun() -> None:
    led, lost = led_a_round()
    after = next_leader(led, lost, b=GIVEN_UP_S, c=0)
    after.wait(2, "bc")
    assert "skip" not in after.kinds()  # a takes part, as the journal says, and may have it
    after.wait(15, "bc")
    assert "away" in after.kinds()
    assert "skip" in after.kinds()


def test_a_frame_that_was_missed_for_less_is_looked_for_until_that_time_has_passed() -> None:
    led, lost = led_a_round()
    after = next_leader(led, lost, b=GIVEN_UP_S - 100, c=0)
    after.wait(50, "bc")
    assert "skip" not in after.kinds()
    after.say("b", lost.model_copy(update={"missed_s": GIVEN_UP_S}))
    after.wait(1, "bc")
    assert "skip" in after.kinds()


def test_a_frame_that_a_site_has_applied_is_not_given_up() -> None:
    led, lost = led_a_round()
    after = next_leader(led, lost, b=GIVEN_UP_S, c=GIVEN_UP_S)
    after.hello("a")
    after.ranks_up("a")
    after.say("a", ReadySaid())
    for _ in range(int(GIVEN_UP_S / 50) + 2):
        after.say("b", lost)
        after.wait(50, "abc")
    assert "skip" not in after.kinds()


def test_nobody_voids_a_round_at_once_by_what_it_says_of_the_time_before_it_was_closed() -> None:
    led, lost = led_a_round()
    for site in "abc":  # none has applied it yet
        led.say(site, lost.model_copy(update={"missed_s": 1e9}))
    led.wait(30, "abc")
    assert "skip" not in led.kinds()
    led.wait(GIVEN_UP_S - 80, "abc")
    for site in "abc":
        led.say(site, lost)
    led.wait(60, "abc")
    assert "skip" not in led.kinds()  # it was not said for long, so somebody may have had it meanwhile


def test_what_was_offered_before_an_earlier_round_became_void_counts_no_more() -> None:
    led, lost = led_a_round(LeaderSettings(lost_s=20.0))
    led.due("b")
    before = led.messages(Open)[-1].attempt
    led.offer("a")  # nobody else has it yet
    while "skip" not in led.kinds():
        led.say("b", lost)
        led.wait(2, "abc")
    led.offer("a", "bc", attempt=before)  # it is a delta to a state that is another one now
    led.wait(20, "abc")
    assert led.kinds()[-1] == "skip"
    assert led.messages(Open)[-1].attempt > before
    led.offer("a", "bc")
    led.wait(20, "abc")
    assert isinstance(led.entries[-1], Round)
    assert led.entries[-1].version == 1
