"""Sites whose bits differ repair them, once."""

from __future__ import annotations

from collections.abc import Sequence

from geocomm.journal.messages import Applied, Repair, Stop
from geocomm.journal.sequencer_events import Send
from support.led_sequencer import Led


def test_digests_that_differ_are_repaired_once_and_then_stop_both() -> None:
    led = Led().take_part("abc")

    def a_round(digests: Sequence[str]) -> None:
        led.due()
        for site in "abc":
            led.offer(site, "abc".replace(site, ""))
        version = led.sequencer.state.versions[0]
        for site, digest in zip("abc", digests, strict=True):
            led.say(site, Applied(fragment=0, version=version, digest=digest * 32))

    a_round("445")
    assert [one.site for one in led.sent if isinstance(one, Send) and isinstance(one.message, Repair)] == [
        "a",
        "b",
        "c",
    ]
    led.due()
    for site in "abc":
        led.offer(site, "abc".replace(site, ""))
    assert led.sequencer.state.versions[0] == 1  # no round before they agree
    for site in "abc":
        led.say(site, Applied(fragment=0, version=1, digest="4" * 32))
    assert led.sequencer.state.versions[0] == 2
    for site, digest in zip("ab", "67", strict=True):
        led.say(site, Applied(fragment=0, version=2, digest=digest * 32))
    stopped = led.messages(Stop)
    assert len(stopped) == 2
    assert "a and b" in stopped[0].why
    assert led.sequencer.state.live == ["c"]


def test_digests_that_differ_after_a_repair_too_stop_both() -> None:
    led = Led().take_part("ab")
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    for digest in ("45", "45"):
        for site, one in zip("ab", digest, strict=True):
            led.say(site, Applied(fragment=0, version=1, digest=one * 32))
    led.wait(59, "ab")
    assert led.messages(Stop) == []
    led.wait(2, "ab")
    assert len(led.messages(Stop)) == 2
