"""The leader's decisions, event by event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from geocomm.elastic.journal.entries import Away, End, Genesis, Left, Ready, Removed, Round
from geocomm.elastic.journal.messages import (
    Applied,
    Due,
    Fetch,
    Hold,
    Leave,
    Offer,
    Open,
    Pass,
    Peers,
    RanksGone,
    ReadySaid,
    Refused,
    Stop,
    Welcome,
)
from geocomm.elastic.journal.sequencer_events import Close, Ended, LeaderSettings, Remove
from support.led_sequencer import Led


def test_first_ranks_make_the_genesis_and_a_round_closes_once_all_hold_all() -> None:
    led = Led()
    led.hello("b")
    led.hello("a")
    assert led.entries == []
    led.ranks_up("a")
    assert led.kinds() == ["genesis", "join", "join"]
    led.ranks_up("b")
    led.say("a", ReadySaid())
    led.say("b", ReadySaid())
    led.due()
    opened = led.messages(Open, "b")[-1]
    assert [peer.site for peer in opened.peers] == ["a", "b"]
    led.offer("a", "b")
    led.offer("b")
    assert led.kinds()[-1] == "ready"
    led.offer("b", "a")
    assert led.last_members == "ab"
    entry = led.entries[-1]
    assert isinstance(entry, Round)
    assert (entry.fragment, entry.version, entry.base) == (0, 0, None)


def test_ranks_of_all_hear_of_those_of_a_site_that_comes_before_it_is_ready() -> None:
    led = Led().take_part("ab")
    led.hello("c")
    told = len(led.messages(Peers))
    led.ranks_up("c")
    assert led.sequencer.state.live == ["a", "b"]
    heard = led.messages(Peers)[told:]
    assert len(heard) == 3  # each site, and once
    assert {tuple(peer.site for peer in one.peers if peer.owners) for one in heard} == {("a", "b", "c")}
    led.say("c", ReadySaid())
    led.due()
    assert len(led.messages(Peers)) == told + 3
    assert [peer.site for peer in led.messages(Open, "c")[-1].peers] == ["a", "b", "c"]


def test_an_agent_that_begins_anew_hears_again_whose_ranks_take_part() -> None:
    """Else it fetches each frame that is on its way by mail."""
    led = Led().take_part("ab")
    told, others = len(led.messages(Peers, "a")), len(led.messages(Peers, "b"))
    led.on(Ended("a"))
    led.hello("a")
    (again,) = led.messages(Peers, "a")[told:]
    assert [peer.site for peer in again.peers if peer.owners] == ["a", "b"]
    assert len(led.messages(Peers, "b")) == others


def test_round_of_a_live_site_alone_needs_its_own_disk_only_and_names_the_base_that_was_said() -> None:
    led = Led().take_part("a")
    for digest in ("4" * 32, None):
        led.due()
        led.offer("a")
        if digest is not None:
            led.say("a", Applied(fragment=0, version=1, digest=digest))
    rounds = [entry for entry in led.entries if isinstance(entry, Round)]
    assert [entry.base for entry in rounds] == [None, "4" * 32]


def test_who_misses_a_round_is_not_waited_for_until_it_comes_in_time() -> None:
    led = Led().take_part("abc")
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    led.wait(1.5, "abc")
    assert led.kinds()[-1] == "ready"
    led.wait(1, "abc")
    assert led.last_members == "ab"
    led.due()  # now at once
    led.offer("a", "b")
    led.offer("b", "a")
    assert led.sequencer.state.versions[0] == 2
    # Its offer comes late for that round, but within the time that it would have been waited for.
    led.say("c", _offer_of(led, "a").model_copy(update={"frame": "c" * 64}))
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    assert led.sequencer.state.versions[0] == 2
    led.offer("c", "ab")
    assert led.last_members == "abc"


def _offer_of(led: Led, site: str) -> Offer:
    last = led.entries[-1]
    assert isinstance(last, Round)
    one = next(one for one in last.members if one.site == site)
    return Offer(**one.model_dump(exclude={"site"}), fragment=last.fragment, version=last.version, attempt=0, every=0)


def test_frame_that_no_mail_brings_is_fetched_after_the_grace_and_then_tried_anew() -> None:
    led = Led().take_part("ab")
    led.due()
    frame = led.offer("a")
    led.wait(1.5, "ab")
    assert led.messages(Fetch) == []
    led.wait(1, "ab")
    [fetch] = led.messages(Fetch)
    assert fetch.frame == frame
    assert fetch.bytes == 12
    assert fetch.sources == ("a:1", "leader:1")
    led.wait(58, "ab")
    assert led.messages(Open, "b")[-1].attempt == 1
    led.say(
        "b", Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True)
    )  # of the attempt before: it still counts
    led.wait(0.5, "ab")
    assert led.last_members == "a"


def test_site_that_no_mail_reaches_counts_by_fetching_without_waiting_for_the_grace() -> None:
    """Port of c closed: at first its frames come too late, then agents fetch them as soon as they are offered."""
    led = Led().take_part("abc")

    def one_round() -> str:
        version = led.sequencer.state.versions[0]
        led.due()
        led.offer("a", "b")
        led.offer("b", "a")
        led.offer("c")
        led.wait(0.5, "abc")
        for fetch in led.messages(Fetch):
            if fetch.version == version and fetch.site == "c":
                led.say("a", Hold(fragment=0, version=version, site="c", frame=fetch.frame, by_mail=False))
        return led.last_members if led.sequencer.state.versions[0] > version else ""

    for _ in range(4):  # two cycles of two fragments
        assert one_round() == ""
        led.wait(2, "abc")
        assert led.last_members == "ab"
    assert [one_round() for _ in range(3)] == ["abc"] * 3
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c", "ab")  # the mail is back
    before = len(led.messages(Fetch))
    led.due()
    led.offer("a", "bc")
    led.offer("b", "ac")
    led.offer("c")
    led.wait(1, "abc")
    assert len(led.messages(Fetch)) == before


def test_site_whose_frames_take_longer_than_the_grace_is_waited_for_in_some_round() -> None:
    led = Led().take_part("abc")
    members = []
    for _ in range(12):
        led.due()
        led.offer("a", "b")
        led.offer("b", "a")
        frame = led.offer("c")
        version = led.sequencer.state.versions[0]
        led.wait(9, "abc")
        for holder in "ab":  # also where the round has ended without it
            led.say(holder, Hold(fragment=0, version=version, site="c", frame=frame, by_mail=True))
        members.append(led.last_members)
    assert members == [*["ab"] * 4, "abc", *["ab"] * 4, "abc", *["ab"] * 2]


def test_site_is_away_after_a_lost_connection_or_silence_and_its_frame_still_counts() -> None:
    led = Led(LeaderSettings(least_grace_s=60)).take_part("abc")
    led.due()
    led.offer("c", "ab")
    led.on(Ended("c"))
    led.offer("a", "b")
    led.offer("b", "a")
    led.wait(2.5, "ab")
    assert led.kinds()[-1] == "ready"
    led.wait(0.5, "ab")
    assert led.kinds()[-2:] == ["away", "round"]
    assert led.last_members == "abc"
    led.wait(9, "a")
    away = led.entries[-1]
    assert isinstance(away, Away)
    assert away.site == "b"
    assert Close("b", "silent") in led.sent


def test_site_that_is_back_with_another_run_folder_has_to_get_the_frames_again() -> None:
    led = Led(LeaderSettings(least_grace_s=60)).take_part("abc")
    led.due()
    frame = led.offer("a", "bc")
    led.on(Ended("c"))
    led.wait(3, "ab")
    led.hello("c", store="9" * 32, ranks=True)
    assert led.kinds()[-2:] == ["away", "join"]
    led.ranks_up("c")
    led.say("c", ReadySaid())
    led.offer("b", "ac")
    led.offer("c", "ab")
    assert led.kinds()[-1] == "ready"
    led.say("c", Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True))
    assert led.last_members == "abc"


def test_site_that_is_back_within_three_seconds_was_never_away() -> None:
    led = Led().take_part("ab")
    led.due()
    led.on(Ended("b"))
    led.wait(2, "a")
    led.hello("b")
    led.ranks_up("b")
    led.wait(8, "ab")
    assert "away" not in led.kinds()
    assert led.messages(Welcome, "b")[-1].open == ((0, 0, 0),)


def test_site_whose_ranks_are_gone_is_away_at_once() -> None:
    led = Led().take_part("ab")
    led.say("b", RanksGone(why="killed"))
    assert isinstance(led.entries[-1], Away)
    led.ranks_up("b")
    led.say("b", ReadySaid())
    assert isinstance(led.entries[-1], Ready)


def test_restarted_leader_opens_above_every_attempt_and_says_what_is_open() -> None:
    before = Led(start=1).take_part("ab")
    for _ in range(3):
        before.due()
        before.wait(70, "ab")
    led = Led(entries=before.entries, start=2)
    led.hello("a")
    assert led.messages(Welcome, "a")[-1].open == ()
    led.ranks_up("a")
    led.due()
    assert before.messages(Open, "a")[-1].attempt < led.messages(Open, "a")[-1].attempt < 2**61
    led.hello("b")
    led.wait(20, "a")
    last = led.entries[-1]
    assert isinstance(last, Away)
    assert last.site == "b"  # its ranks never came


def rates_of_rounds(rates: Mapping[str, Callable[[int], float]], steps: Mapping[str, Sequence[int]]) -> Led:
    """A run whose sites have these rates at these steps, one round each."""
    led = Led().take_part("".join(rates))
    for number in range(len(next(iter(steps.values())))):
        led.due()
        for site, rate in rates.items():
            step = steps[site][number]
            led.offer(site, "".join(rates).replace(site, ""), lr=rate(step), step=step)
        assert led.last_members == "".join(rates)  # all count, whatever their rates
    return led


def test_a_rate_that_differs_for_some_cycles_is_told_of_once_and_counts_all_the_same() -> None:
    steps = range(10, 400, 10)
    led = rates_of_rounds(
        {"a": lambda _: 0.1, "b": lambda _: 0.104, "c": lambda _: 0.2}, {site: [*steps] for site in "abc"}
    )
    told = [text for text in led.logged if text.startswith("learning rate: ")]
    assert len(told) == 1  # against b, its neighbour by name
    assert all("0.2" in text and "run_step" in text for text in told)
    assert not led.messages(Stop)


@pytest.mark.parametrize(
    "rate",
    [
        lambda step: 1e-3 if step < 205 else 1e-4,
        lambda step: 1e-3 * min(1.0, (step + 1) / 100),
        lambda step: 1e-3 * 0.995**step,
        lambda step: 1e-3 if step % 100 < 50 else 1e-4,
    ],
    ids=["falls", "warm-up", "decay", "restarts"],
)
@pytest.mark.parametrize("ahead", [0, 3, 25])
def test_one_schedule_at_sites_that_are_at_different_steps_is_told_of_never(
    rate: Callable[[int], float], ahead: int
) -> None:
    steps = [*range(10, 400, 7)]
    led = rates_of_rounds({"a": rate, "b": rate}, {"a": steps, "b": [step + ahead for step in steps]})
    assert not [text for text in led.logged if text.startswith("learning rate: ")]


def test_sites_that_have_nothing_to_offer_are_asked_again_after_a_cycle() -> None:
    led = Led().take_part("ab")
    led.due()
    for site in "ab":
        led.say(site, Pass(fragment=0, version=0, attempt=0))
    led.wait(5, "ab")
    assert led.messages(Open, "a")[-1].attempt == 1


def test_last_frames_of_a_site_that_leaves_count_and_the_last_one_ends_the_run() -> None:
    led = Led().take_part("ab")
    led.due()
    led.offer("a")
    led.say("a", Leave(finished=True))
    led.wait(1, "ab")
    assert "left" not in led.kinds()
    led.offer("b", "a")
    led.say("b", Hold(fragment=0, version=0, site="a", frame=led.offer("a"), by_mail=True))
    led.wait(1, "ab")
    assert led.kinds()[-2:] == ["round", "left"]
    led.say("b", Leave(finished=True))
    led.wait(1, "b")
    assert isinstance(led.entries[-2], Left)
    assert isinstance(led.entries[-1], End)


def test_first_round_waits_for_the_named_sites_and_every_round_for_min_sites() -> None:
    led = Led(LeaderSettings(min_sites=2, wait_for=frozenset("bc"))).take_part("ab")
    led.due()
    assert led.messages(Open) == []
    led.take_part("c")
    assert len(led.messages(Open)) == 3
    led.offer("a", "bc")
    led.wait(5, "abc")
    assert led.sequencer.state.versions[0] == 0
    led.offer("b", "c")
    led.wait(1, "abc")
    assert led.last_members == "ab"


def test_removed_site_is_stopped_and_refused_from_then_on() -> None:
    led = Led().take_part("ab")
    led.on(Remove("b", "its disk is wrong"))
    assert isinstance(led.entries[-1], Removed)
    assert "its disk is wrong" in led.messages(Stop, "b")[0].why
    led.hello("b")
    assert "its disk is wrong" in led.messages(Refused, "b")[0].why


def test_message_of_a_fragment_that_is_not_there_ends_the_connection_alone() -> None:
    led = Led().take_part("ab")
    led.say("b", Due(fragment=7, version=0))
    assert [one.site for one in led.sent if isinstance(one, Close)] == ["b"]
    assert isinstance(led.entries[0], Genesis)
    led.due()
    assert led.messages(Open, "a")


def test_site_that_leaves_while_it_is_away_has_left_and_the_run_can_end() -> None:
    led = Led().take_part("ab")
    led.say("b", RanksGone(why="its ranks have ended"))
    assert isinstance(led.entries[-1], Away)
    led.say("b", Leave(finished=True))
    assert isinstance(led.entries[-1], Left)
    led.say("a", Leave(finished=True))
    led.wait(1, "a")
    assert isinstance(led.entries[-1], End)


def test_run_whose_sites_were_all_told_to_leave_goes_on_when_they_are_back() -> None:
    led = Led().take_part("ab")
    for site in "ab":
        led.say(site, Leave())
        led.wait(1, "ab")
    assert led.kinds()[-2:] == ["left", "left"]
    again = Led(entries=led.entries, start=1).take_part("ba")
    again.due()
    again.offer("a", "b")
    again.offer("b", "a")
    assert isinstance(again.entries[-1], Round)
    again.say("a", Leave())
    again.wait(1, "ab")
    again.say("b", Leave(finished=True))
    again.wait(1, "b")
    assert isinstance(again.entries[-1], End)


def test_ranks_that_come_after_the_end_are_refused_and_the_leader_lives() -> None:
    led = Led().take_part("a")
    led.say("a", Leave(finished=True))
    led.wait(1, "a")
    assert isinstance(led.entries[-1], End)
    led.hello("b")
    led.ranks_up("b")
    assert "has ended" in led.messages(Refused, "b")[0].why
    assert isinstance(led.entries[-1], End)


def test_site_is_removed_after_the_end_without_another_entry() -> None:
    led = Led().take_part("a")
    led.say("a", Leave(finished=True))
    led.wait(1, "a")
    led.on(Remove("a", "told so"))
    assert isinstance(led.entries[-1], End)


def test_a_site_whose_line_breaks_after_each_hello_is_away_once_it_is_silent() -> None:
    led = Led().take_part("ab")
    for _ in range(12):
        led.on(Ended("b"))
        led.hello("b")
        led.wait(1, "a")
    assert "b" not in led.sequencer.state.live
    led.ranks_up("b")
    led.say("b", ReadySaid())
    led.wait(1, "ab")
    assert "b" in led.sequencer.state.live


def test_a_site_whose_line_never_stands_when_the_leader_looks_is_away_too() -> None:
    led = Led().take_part("ab")
    for _ in range(16):
        led.on(Ended("b"))
        led.hello("b")
        led.on(Ended("b"))
        led.wait(1, "a")
    assert "b" not in led.sequencer.state.live


def test_what_a_site_may_weigh_is_known_to_the_next_leader_too() -> None:
    led = Led().take_part("ab")
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    other = Led(entries=led.entries, start=1).take_part("ab")
    other.due()
    other.offer("a", "b", weight=2**40)
    other.offer("b", "a")
    entry = other.entries[-1]
    assert isinstance(entry, Round)
    assert [one.weight for one in entry.members] == [16 * 5, 5]  # b has counted for 5
