"""Whom the leader deals data to, when, and from whom it takes it back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from geocomm.data.deal_records import DealtSet, Piece, length
from geocomm.elastic.journal.entries import Data, Deal, Entry, Join, Skip, TakenBack
from geocomm.elastic.journal.messages import Beat, Hold, Leave, Open, Pass, RanksGone
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.journal.sequencer_events import Close, DataRead, Ended, LeaderSettings, Remove
from support.led_sequencer import OF_A_DEAL, EndlessShards, Led

LENGTH = 10
TERMS = LeaderSettings(data=DealtSet(set="cat", sequence_length=LENGTH, held_out_every=5), doubt_s=60.0, ahead_s=100.0)


def led(sites: str = "ab", data: EndlessShards | None = None, **changes: Any) -> Led:
    run = Led(replace(TERMS, **changes))
    run.on(DataRead(data or EndlessShards()))
    return run.take_part(sites)


def of(run: Led, kind: type[Entry]) -> list[Any]:
    return [entry for entry in run.entries if isinstance(entry, kind)]


def beat(run: Led, site: str, tokens: int, seconds: float = 1.0) -> None:
    """It says so, and time passes."""
    run.say(site, Beat(step=1, tokens=tokens, step_s=0.1, line_s=0, free_bytes=0))
    run.wait(seconds)


def left(run: Led, site: str) -> int:
    return length(run.sequencer.state.sites[site].line)


def count(run: Led, site: str, tokens: int, others: str) -> None:
    """A round of each fragment lists the site."""
    for fragment in range(2):
        run.due(site, fragment)
        attempt = [one for one in run.messages(Open) if one.fragment == fragment][-1].attempt
        run.offer(site, others, fragment=fragment, attempt=attempt, taken=tokens)
        for other in others:
            run.say(other, Pass(fragment=fragment, version=run.sequencer.state.versions[fragment], attempt=attempt))
        run.wait(0.5)
    assert run.sequencer.state.sites[site].taken == tokens


def test_run_has_its_data_set_before_any_site_joins() -> None:
    run = Led(TERMS)
    run.hello("a")
    run.ranks_up("a")
    run.wait(3, "a")
    assert run.entries == []  # until the catalog was read
    run.on(DataRead(EndlessShards()))
    run.wait(1, "a")
    assert run.kinds()[:3] == ["genesis", "data", "join"]
    [data] = of(run, Data)
    assert (data.set, data.number, data.sequence_length, data.held_out_every) == ("cat", 1, LENGTH, 5)


def test_site_that_is_ready_has_two_deals_and_more_once_it_reads_the_last_but_one() -> None:
    run = led("a")
    run.wait(1, "a")
    assert left(run, "a") == 2 * OF_A_DEAL
    beat(run, "a", LENGTH * OF_A_DEAL - 1)
    assert left(run, "a") == 2 * OF_A_DEAL
    beat(run, "a", LENGTH * OF_A_DEAL)
    assert left(run, "a") == 3 * OF_A_DEAL


def test_site_has_deals_for_as_long_as_the_leader_wants_at_its_speed() -> None:
    run = led("a")
    for second in range(0, 60, 3):
        beat(run, "a", second * 2 * LENGTH, 3.0)
    assert 40 + 2 * 100 <= left(run, "a") - second * 2 + 40 <= 40 + 2 * 100 + 2 * OF_A_DEAL + 8


def test_small_data_set_is_not_dealt_to_the_first_alone() -> None:
    run = led("a", EndlessShards(of_a_pass=80), ahead_s=3600.0)
    for second in range(0, 60, 3):
        beat(run, "a", second * 2 * LENGTH, 3.0)
    assert left(run, "a") - second * 2 <= 2 * 60 + 2 * OF_A_DEAL + 8  # a minute


def test_site_of_a_short_pass_has_half_of_it_left() -> None:
    """With 2 sequences a second, and another site that is as fast: ten of the twenty minutes that are its own."""
    run = led("ab", EndlessShards(of_a_pass=2 * 2 * 1200), ahead_s=3600.0)
    for second in range(0, 900, 3):
        for site in "ab":
            beat(run, site, second * 2 * LENGTH, 1.5)
    for site in "ab":
        assert 2 * 600 - 8 <= left(run, site) - second * 2 <= 2 * 600 + 2 * OF_A_DEAL + 8


def test_site_that_counts_what_was_never_dealt_gets_no_more() -> None:
    run = led("a")
    run.wait(1, "a")
    for _ in range(10):
        beat(run, "a", 10**6)
    assert left(run, "a") == 2 * OF_A_DEAL


def test_site_that_joins_or_is_away_is_dealt_nothing() -> None:
    run = led("a")
    run.hello("b")
    run.ranks_up("b")
    run.wait(1, "ab")
    assert {deal.site for deal in of(run, Deal)} == {"a"}
    run.on(Ended("a"))
    run.wait(5, "b")
    before = left(run, "a")
    run.wait(20, "b")
    assert left(run, "a") == before


def test_rest_of_a_site_that_is_gone_is_dealt_after_the_doubt_and_to_who_may_read_it() -> None:
    run = led("ab")
    run.wait(1, "ab")
    count(run, "a", 15, "b")
    run.on(Ended("a"))
    run.wait(55, "b")
    assert not of(run, TakenBack)
    run.wait(15, "b")
    [back] = of(run, TakenBack)
    assert (back.site, back.taken) == ("a", LENGTH)
    rests = run.sequencer.state.rests
    assert [one.sequences for one in rests] == [OF_A_DEAL - 1, OF_A_DEAL]
    beat(run, "b", LENGTH * OF_A_DEAL)
    last = of(run, Deal)[-1]
    assert (last.site, last.rest, last.start, last.sequences) == ("b", rests[0].deal, 1, OF_A_DEAL - 1)


def test_rest_of_a_site_that_is_gone_is_taken_back_though_leaders_change_more_often() -> None:
    run = led("abc")
    run.wait(1, "abc")
    count(run, "a", 15, "bc")
    backs = list[int]()
    for number in range(1, 9):  # each leads for 30 s, half of the doubt
        run = Led(TERMS, run.entries, start=number)
        run.on(DataRead(EndlessShards()))
        run.take_part("bc")
        for _ in range(5):
            for fragment in range(2):
                run.due("b", fragment)
                run.offer("b", "c", fragment=fragment)
                run.offer("c", "b", fragment=fragment)
            run.wait(6, "bc")
        backs.append(len(of(run, TakenBack)))
    assert 1 <= backs.index(1) <= 3  # 60 s of 30 s each, and each has to learn how fast rounds are
    assert backs[-1] == 1
    assert of(run, TakenBack)[0].site == "a"


def test_doubt_of_zero_takes_nothing_back() -> None:
    run = led("ab", doubt_s=0.0)
    run.wait(1, "ab")
    run.on(Ended("a"))
    run.wait(500, "b")
    assert not of(run, TakenBack)


def test_site_that_is_there_without_ranks_is_gone_too() -> None:
    run = led("ab")
    run.wait(1, "ab")
    run.say("a", RanksGone(why="died"))
    run.wait(70, "ab")
    assert [back.site for back in of(run, TakenBack)] == ["a"]
    assert any(isinstance(one, Close) and one.site == "a" for one in run.sent)


def test_site_that_comes_back_in_time_keeps_its_deals() -> None:
    run = led("ab")
    run.wait(1, "ab")
    line = run.sequencer.state.sites["a"].line
    run.on(Ended("a"))
    run.wait(50, "b")
    run.take_part("a")
    run.wait(50, "ab")
    assert run.sequencer.state.sites["a"].line[: len(line)] == line
    assert not of(run, TakenBack)


def test_site_that_was_taken_back_joins_and_is_dealt_other_data() -> None:
    run = led("ab")
    run.wait(1, "ab")
    run.on(Ended("a"))
    run.wait(70, "b")
    at = len(run.entries)
    run.take_part("a")
    run.wait(1, "ab")
    kinds = [entry.kind for entry in run.entries[at:]]
    assert kinds[:2] == ["join", "ready"]
    assert isinstance(run.entries[at], Join)
    assert [one.site for one in run.entries[at + 2 :] if isinstance(one, Deal)] == ["a", "a"]


def test_removed_site_and_one_that_has_left_are_taken_back_at_once() -> None:
    run = led("abc")
    run.wait(1, "abc")
    run.on(Remove("a", "sold"))
    run.say("b", Leave(finished=True))
    run.wait(2, "c")
    assert run.sequencer.state.sites["b"].standing is Standing.LEFT
    assert {back.site for back in of(run, TakenBack)} == {"a", "b"}


def test_open_offer_of_a_site_that_is_taken_back_counts_no_more() -> None:
    run = led("ab", attempt_s=10**6)
    run.wait(1, "ab")
    run.due("a")
    frame = run.offer("a", taken=LENGTH)  # nobody else has it
    run.on(Ended("a"))
    run.wait(100, "b")
    [back] = of(run, TakenBack)
    assert back.taken == 0
    run.say("b", Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True))  # the mail was late
    run.wait(5, "b")
    run.offer("b")
    run.wait(5, "b")
    assert all(one.site != "a" for entry in run.entries if entry.kind == "round" for one in entry.members)


def test_tokens_are_read_again_where_a_site_begins_anew_or_others_have_its_rest() -> None:
    run = led("ab")
    run.wait(1, "ab")
    for site in "ab":
        beat(run, site, 38)
    count(run, "a", 20, "b")
    beat(run, "a", 0)  # of an agent that has started again: its ranks have not told it yet
    beat(run, "a", 39)
    assert run.sequencer.deals.repeated_tokens == 0
    run.on(Ended("a"))
    run.take_part("a")  # the same ranks, over a new connection
    assert run.sequencer.deals.repeated_tokens == 0
    run.say("a", RanksGone(why="died"))
    run.ranks_up("a", owner="f" * 32)
    assert run.sequencer.deals.repeated_tokens == 19
    beat(run, "a", 30)
    run.on(Remove("b", "sold"))
    run.wait(1, "a")
    assert run.sequencer.deals.repeated_tokens == 19 + 38
    run.on(Remove("a", "sold"))
    run.wait(1)
    assert run.sequencer.deals.repeated_tokens == 19 + 38 + 10


def test_what_is_left_of_a_pass_has_the_rests_that_nobody_has_yet() -> None:
    run = led("ab", EndlessShards(readers="a"))
    assert run.sequencer.deals.undealt_tokens == LENGTH * (100 - len(of(run, Deal)))
    before = left(run, "a")
    run.on(Remove("a", "broken"))
    run.wait(1)
    assert [rest.sequences for rest in run.sequencer.state.rests] == [OF_A_DEAL] * (before // OF_A_DEAL)
    assert run.sequencer.deals.undealt_tokens == LENGTH * (100 - len(of(run, Deal)) + before)


def test_rest_waits_where_nobody_may_read_it_and_a_person_hears_of_that_once() -> None:
    run = led("ab", EndlessShards(readers="a"))
    run.wait(1, "ab")
    assert {deal.site for deal in of(run, Deal)} == {"a"}
    run.on(Ended("a"))
    run.wait(80, "b")
    assert length(run.sequencer.state.rests) == 2 * OF_A_DEAL
    assert run.sequencer.deals.waits == ["it waits for a"]
    assert run.logged.count("it waits for a") == 1


def test_newer_version_is_dealt_from_now_on() -> None:
    run = led("a")
    run.wait(1, "a")
    before = run.sequencer.state.deals
    run.on(DataRead(EndlessShards(number=3)))
    run.wait(1, "a")
    assert [data.number for data in of(run, Data)] == [1, 3]
    assert run.sequencer.state.deals == before
    beat(run, "a", LENGTH * OF_A_DEAL)
    assert of(run, Deal)[-1].index > of(run, Data)[-1].index


def test_deal_that_a_newer_version_denies_is_taken_back_once_also_by_another_leader() -> None:
    run = led("ab")
    run.wait(1, "ab")
    before = {name: left(run, name) for name in "ab"}
    run.on(DataRead(EndlessShards(number=2, readers="b")))
    run.wait(1, "ab")
    state = run.sequencer.state
    assert [(one.site, one.taken) for one in of(run, TakenBack)] == [("a", 0)]
    assert state.sites["a"].standing is not Standing.READY
    assert (left(run, "a"), left(run, "b")) == (0, before["b"])
    assert length(state.rests) == before["a"]
    assert "a" in {one.site for one in run.sent if isinstance(one, Close)}
    taken_back = run.entries.index(of(run, TakenBack)[0]) + 1
    for entries, more in ((run.entries[: taken_back - 2], 1), (run.entries[:taken_back], 0)):  # before, and after it
        other = Led(LeaderSettings(doubt_s=60.0), entries, start=1)
        other.take_part("b")
        other.on(DataRead(EndlessShards(number=2, readers="b")))
        other.wait(1, "b")
        assert len(of(other, TakenBack)) == more + len([one for one in entries if isinstance(one, TakenBack)])


def test_what_a_void_round_has_a_site_read_again_is_taken_back_where_the_version_denies_it() -> None:
    run = led("ab")
    run.wait(1, "ab")
    count(run, "a", 3 * LENGTH, "b")
    run.on(DataRead(EndlessShards(number=2, readers="b")))
    run.wait(1, "ab")
    assert [(one.site, one.taken) for one in of(run, TakenBack)] == [("a", 3 * LENGTH)]
    run.sequencer._run.append(Skip, fragment=0, version=0, why="nobody has a frame")
    run.wait(1, "b")
    assert [(one.site, one.taken) for one in of(run, TakenBack)] == [("a", 3 * LENGTH), ("a", 0)]
    assert left(run, "a") == 0
    run.wait(1, "b")
    assert len(of(run, TakenBack)) == 2


def test_another_leader_goes_on_with_the_deals_and_the_data_set_of_the_journal() -> None:
    run = led("ab")
    run.wait(1, "ab")
    count(run, "a", 15, "b")
    lines = {name: site.line for name, site in run.sequencer.state.sites.items()}
    other = Led(LeaderSettings(doubt_s=60.0), run.entries, start=1)  # it was told of no data set
    other.take_part("b")
    other.on(DataRead(EndlessShards()))
    other.wait(30, "b")
    assert {name: site.line for name, site in other.sequencer.state.sites.items()} == lines
    other.wait(40, "b")
    assert other.sequencer.state.rests == (Piece(lines["a"][0].deal, 1, 3), *lines["a"][1:])
    beat(other, "b", LENGTH * OF_A_DEAL)
    assert of(other, Deal)[-1].rest == lines["a"][0].deal


@pytest.mark.parametrize("speeds", [(1, 2), (3, 1)])
def test_data_set_hears_how_fast_each_site_reads(speeds: tuple[int, int]) -> None:
    data = EndlessShards()
    run = led("ab", data)
    for second in range(0, 90, 3):
        for site, speed in zip("ab", speeds, strict=True):
            run.say(site, Beat(step=1, tokens=second * speed, step_s=0.1, line_s=0, free_bytes=0))
        run.wait(3)
    assert data.speeds == pytest.approx(dict(zip("ab", speeds, strict=True)), rel=0.01)
