"""When the leader takes snapshots of the run, which are kept, and what it says of those that are not."""

from __future__ import annotations

from geocomm.elastic.journal.messages import (
    SnapshotHeld,
)
from geocomm.elastic.journal.sequencer_events import Ended, LeaderSettings
from support.led_sequencer import Led


def test_snapshot_is_due_after_rounds_and_kept_once_two_sites_have_equal_bits() -> None:
    led = Led(LeaderSettings(snapshot_s=10)).take_part("abc")
    led.wait(11, "abc")
    assert "snapshot" not in led.kinds()  # nothing has happened yet
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c", "ab")
    led.wait(0.5, "abc")
    assert led.kinds()[-1] == "snapshot"
    snapshot = led.sequencer.state.snapshot
    assert snapshot is not None
    assert snapshot.versions == (1, 0)
    for site, digest in (("a", "1"), ("b", "2"), ("c", "2")):
        assert led.kinds()[-1] == "snapshot"
        led.say(site, SnapshotHeld(snapshot=snapshot.index, digest=digest * 32))
    assert led.sequencer.state.kept[snapshot.index].sites == ("b", "c")
    led.wait(11, "abc")
    assert led.kinds()[-1] == "kept"  # and no second one without a round


def test_snapshot_that_too_few_sites_have_is_told_of_once_with_who_lacks_it() -> None:
    led = Led(LeaderSettings(snapshot_s=1000)).take_part("abc")
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c", "ab")
    led.wait(1001, "abc")
    snapshot = led.sequencer.state.snapshot
    assert snapshot is not None
    led.say("b", SnapshotHeld(snapshot=snapshot.index, digest="1" * 32))
    led.wait(300, "abc")
    assert [one for one in led.logged if "is not kept yet" in one] == [
        f"snapshot {snapshot.index} is not kept yet: 2 sites have to have it. b has it, a, c lacks it; the log there "
        "says why"
    ]


def test_a_snapshot_that_nobody_has_is_told_of_once_while_no_site_is_ready() -> None:
    led = Led(LeaderSettings(snapshot_s=10)).take_part("a")
    led.due()
    led.offer("a")
    led.wait(11, "a")
    assert led.kinds()[-1] == "snapshot"
    led.on(Ended("a"))
    led.wait(400)
    assert not led.sequencer.state.live
    assert sum("is not kept yet" in text for text in led.logged) == 1


def test_snapshots_come_though_leaders_change_more_often_than_they_are_due() -> None:
    terms, kinds = LeaderSettings(snapshot_s=100), list[str]()
    led = Led(terms)
    for number in range(8):
        led = Led(terms, led.entries, start=number).take_part("ab")
        for _ in range(6):
            led.due()
            led.offer("a", "b")
            led.offer("b", "a")
            led.wait(5, "ab")
        kinds = led.kinds()
    rounds, snapshots = kinds.count("round"), kinds.count("snapshot")
    assert rounds == 48
    assert 1 <= snapshots <= 3  # 240 s went by
