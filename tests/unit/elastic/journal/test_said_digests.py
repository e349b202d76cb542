"""Sites whose bits differ repair them, once: those that are wrong, where anybody knows which."""

from __future__ import annotations

from collections.abc import Mapping

from geocomm.elastic.journal.entries import Away, Round
from geocomm.elastic.journal.messages import Applied, ReadySaid, Repair, Stop
from geocomm.elastic.journal.sequencer_events import Ended, Send
from support.led_sequencer import Led


def a_round(led: Led, sites: str) -> None:
    led.due()
    for site in sites:
        led.offer(site, sites.replace(site, ""))


def say(led: Led, digests: Mapping[str, str]) -> None:
    for site, digest in digests.items():
        led.say(site, Applied(fragment=0, version=led.sequencer.state.versions[0], digest=digest * 32))


def told(led: Led, kind: type[Repair | Stop]) -> str:
    return "".join(one.site for one in led.sent if isinstance(one, Send) and isinstance(one.message, kind))


def come_anew(led: Led, site: str) -> None:
    """With other ranks."""
    led.hello(site)
    led.ranks_up(site, owner="9" * 32)
    led.say(site, ReadySaid())
    assert site in led.sequencer.state.live


def test_the_one_that_differs_from_most_repairs_alone_and_the_second_time_is_stopped() -> None:
    led = Led().take_part("abc")
    a_round(led, "abc")
    say(led, {"a": "5", "c": "4"})
    assert told(led, Repair) == ""  # nobody knows yet who is wrong
    say(led, {"b": "4"})
    assert told(led, Repair) == "a"
    assert isinstance(led.entries[-1], Away)
    a_round(led, "bc")  # the others go on at once
    assert led.last_members == "bc"
    assert isinstance(led.entries[-1], Round)
    assert led.entries[-1].base == "4" * 32

    come_anew(led, "a")
    say(led, {"a": "4", "b": "4", "c": "4"})
    a_round(led, "abc")
    assert led.last_members == "abc"
    say(led, {"b": "6", "c": "6", "a": "7"})
    assert told(led, Stop) == "a"
    assert "b, c" in led.messages(Stop)[0].why
    assert told(led, Repair) == "a"
    assert led.sequencer.state.live == ["b", "c"]


def test_ranks_that_have_not_heard_that_they_are_to_repair_hear_it_again_and_count_no_more() -> None:
    """Their line broke just then. They would differ again, and be stopped for good."""
    led = Led().take_part("abc")
    a_round(led, "abc")
    say(led, {"a": "5", "b": "4", "c": "4"})
    assert told(led, Repair) == "a"
    led.on(Ended("a"))
    for _ in range(2):
        led.hello("a")
        led.ranks_up("a")
        led.say("a", ReadySaid())
        assert "a" not in led.sequencer.state.live
    assert told(led, Repair) == "aaa"
    come_anew(led, "a")
    assert told(led, Repair) == "aaa"
    say(led, {"a": "4"})
    assert not led.messages(Stop)


def test_a_digest_of_long_ago_says_nothing() -> None:
    led = Led().take_part("abc")
    for _ in range(8):
        a_round(led, "abc")
    for digest, site in zip("45", "ab", strict=True):
        led.say(site, Applied(fragment=0, version=1, digest=digest * 32))
    assert told(led, Repair) == ""
    assert led.sequencer.state.live == ["a", "b", "c"]


def test_the_frame_of_a_site_with_wrong_bits_does_not_count() -> None:
    led = Led().take_part("abc")
    a_round(led, "abc")
    led.due()
    led.offer("a", "bc")
    say(led, {"b": "4", "c": "4", "a": "5"})
    led.offer("b", "c")
    led.offer("c", "b")
    assert led.last_members == "bc"


def test_the_journal_knows_who_is_wrong_where_digests_come_late() -> None:
    led = Led().take_part("abc")
    a_round(led, "abc")
    say(led, {"a": "5", "b": "4", "c": "4"})
    a_round(led, "bc")
    come_anew(led, "a")
    led.say("b", Applied(fragment=0, version=1, digest="4" * 32))
    led.say("a", Applied(fragment=0, version=1, digest="5" * 32))
    assert told(led, Stop) == "a"
    assert "than b, c, also after a repair" in led.messages(Stop)[0].why


def test_no_base_is_written_that_one_of_several_sites_alone_has_said() -> None:
    led = Led().take_part("abc")
    a_round(led, "abc")
    say(led, {"a": "5"})
    a_round(led, "abc")
    assert isinstance(led.entries[-1], Round)
    assert led.entries[-1].base is None


def test_two_sites_that_differ_both_repair_and_the_second_time_both_are_stopped() -> None:
    led = Led().take_part("ab")
    a_round(led, "ab")
    say(led, {"a": "4", "b": "5"})
    assert told(led, Repair) == "ab"
    a_round(led, "ab")
    assert led.sequencer.state.versions[0] == 1  # no round before they agree
    say(led, {"a": "4", "b": "4"})
    assert led.sequencer.state.versions[0] == 2
    say(led, {"a": "6", "b": "7"})
    assert told(led, Stop) == "ab"
    assert "a and b" in led.messages(Stop)[0].why


def test_digests_of_two_that_differ_after_a_repair_too_stop_both() -> None:
    led = Led().take_part("ab")
    a_round(led, "ab")
    for digest in ("45", "45"):
        say(led, {"a": digest[0], "b": digest[1]})
    led.wait(59, "ab")
    assert led.messages(Stop) == []
    led.wait(2, "ab")
    assert told(led, Stop) == "ab"


def test_a_third_site_that_says_nothing_is_waited_for_and_then_both_repair() -> None:
    led = Led().take_part("abc")
    a_round(led, "abc")
    say(led, {"a": "4", "b": "5"})
    a_round(led, "abc")
    led.wait(29, "abc")
    assert (told(led, Repair), led.sequencer.state.versions[0]) == ("", 1)
    led.wait(2, "abc")
    assert told(led, Repair) == "ab"
