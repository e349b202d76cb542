"""Whom the leader takes in, and what it says to others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from geocomm.elastic.journal.entries import TermBegun
from geocomm.elastic.journal.messages import PROTOCOL_VERSION, Beat, Leave, ReadySaid, Refused
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.journal.sequencer_events import Came, Ended, Remove, SendEntries
from support.led_sequencer import MODEL, STORES, Led

REFUSALS = [
    ({"protocol": 99}, ("99", str(PROTOCOL_VERSION))),
    ({"run": "9" * 32}, ("9" * 12,)),
    ({"head": 500, "head_hash": "a" * 64}, ("501 entries",)),
    ({"head_hash": "a" * 64}, ("entry",)),
    ({"store": STORES["a"]}, ("a copy",)),
    ({"term": 7}, ("7", "0")),
]


@pytest.mark.parametrize(("changes", "words"), REFUSALS, ids=lambda one: next(iter(one), ""))
def test_hello_that_does_not_fit_is_refused_with_both_values(changes: dict[str, Any], words: Sequence[str]) -> None:
    led = Led().take_part("a")
    entries = len(led.entries)
    led.hello("b", **changes)
    [refused] = led.messages(Refused, "b")
    assert all(word in refused.why for word in words)
    assert len(led.entries) == entries
    assert led.sequencer.superseded == ("term" in changes)
    of_leader = dict.fromkeys(("head", "head_hash", "term"), "leader")
    assert refused.blames == {"run": "run", **of_leader}.get(next(iter(changes)), "site")


def test_journal_of_a_run_is_refused_by_a_leader_without_one() -> None:
    led = Led()
    led.hello("a", run="9" * 32, head=4, head_hash="a" * 64)
    [refused] = led.messages(Refused)
    assert "promote" in refused.why
    assert refused.blames == "leader"  # the site does not end for it


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": {"codec": "int8"}}, ("codec", "int8", "int4")),
        ({"layout": "5" * 32}, ("layout", "5" * 32, "1" * 32)),
        ({"every": 11}, ("every", "11", "10")),
    ],
)
def test_ranks_with_another_model_are_refused_with_both_values(changes: dict[str, Any], words: Sequence[str]) -> None:
    led = Led().take_part("a")
    led.hello("b")
    led.ranks_up("b", MODEL.model_copy(update=changes))
    [refused] = led.messages(Refused, "b")
    assert all(word in refused.why for word in words)


def test_second_machine_of_a_name_waits_and_is_refused_once_the_first_is_heard_again() -> None:
    led = Led().take_part("ab")
    entries = len(led.entries)
    led.now += 1
    for _ in range(2):
        led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert [refused.blames for refused in led.messages(Refused)] == ["leader"] * 2  # it asks again
    led.wait(1, "ab")
    led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert led.messages(Refused)[-1].blames == "site"
    assert "two machines" in led.messages(Refused)[-1].why
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    assert led.last_members == "ab"  # nobody was away
    assert len(led.entries) == entries + 1


def test_site_whose_machine_was_lost_gets_its_place_with_an_empty_folder_once_it_is_away() -> None:
    led = Led().take_part("ab")
    led.wait(8, "b")
    led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert led.messages(Refused)[-1].blames == "leader"
    led.wait(1, "b")  # silent for 9 s
    led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert led.sequencer.state.sites["a"].store == STORES["d"]
    assert led.sequencer.state.sites["a"].standing is Standing.JOINING


def test_of_two_machines_with_copies_of_one_disk_the_second_one_is_refused_and_the_first_goes_on() -> None:
    led = Led().take_part("ab")
    led.hello("a", process="1" * 32)  # its agent has started again, and the end of the one before was not seen yet
    assert led.messages(Refused)[-1].blames == "leader"
    led.wait(1, "ab")
    led.hello("a", process="1" * 32)
    assert led.messages(Refused)[-1].blames == "site"
    assert "copy of one run folder" in led.messages(Refused)[-1].why
    assert "a" in led.sequencer.state.live
    led.due()
    led.offer("a", "b")
    led.offer("b", "a")
    assert led.last_members == "ab"


def test_agent_that_starts_again_has_its_place_at_once() -> None:
    led = Led().take_part("ab")
    led.on(Ended("a"))
    led.hello("a", process="1" * 32)
    assert not led.messages(Refused)
    led.wait(1, "ab")
    led.hello("a", process="1" * 32)  # its line broke, and the leader has not seen that
    assert not led.messages(Refused)


def test_store_of_a_site_whose_line_is_down_is_not_anothers() -> None:
    led = Led().take_part("ab")
    led.on(Ended("a"))
    led.wait(4, "b")
    assert led.sequencer.state.sites["a"].standing is Standing.AWAY
    led.hello("c", store=STORES["a"], run=None, head=-1, head_hash=None)
    assert "a copy" in led.messages(Refused, "c")[0].why
    led.hello("a")
    assert led.messages(Refused, "a") == []


def test_no_run_begins_while_a_site_that_has_one_is_there_and_the_leader_says_so_once() -> None:
    led = Led()
    led.hello("a")
    for _ in range(90):
        led.hello("b", run="9" * 32, head=4, head_hash="a" * 64)
        led.now += 1
        if led.now == 1030:
            led.ranks_up("a")
    assert led.entries == []
    assert len(led.logged) == 1
    assert "members promote" in led.logged[0]
    [doubt] = led.sequencer.doubt
    assert "members promote" in doubt
    led.wait(58, "a")
    assert led.entries == []
    led.wait(3, "a")  # b is started with an empty folder
    assert led.kinds() == ["genesis", "join"]
    assert led.sequencer.doubt == ()


def test_stand_by_without_ranks_that_was_there_before_the_run_is_no_member_of_it() -> None:
    led = Led()
    led.hello("b", ranks=False)
    led.take_part("a")
    assert led.kinds() == ["genesis", "join", "ready"]
    led.say("a", Leave(finished=True))
    led.wait(1, "ab")
    assert led.kinds()[-2:] == ["left", "end"]


def test_follower_of_an_earlier_term_is_sent_the_entries_since_the_leader_took_over() -> None:
    entries = Led().take_part("ab").entries
    head = entries[-1]
    began = TermBegun(index=head.index + 1, prev=head.hash, term=1, site="a", address="a:1")
    led = Led(entries=[*entries, began])
    led.hello("b", term=0, head=40, head_hash="f" * 64)  # its chain ends with entries of the leader before
    assert led.messages(Refused) == []
    assert SendEntries("b", began.index, began.index) in led.sent
    led.hello("a")
    assert not [one for one in led.sent if isinstance(one, SendEntries) and one.site == "a"]


def store(run: Led, sites: str) -> None:
    """What was said to these lies in their journals, as they say with a beat."""
    for site in sites:
        beat = Beat(step=0, tokens=0, step_s=0.1, line_s=0, free_bytes=0, head=len(run.entries) - 1)
        run.say(site, beat)


def come(run: Led, site: str) -> None:
    """Unlike `Led.take_part`, nothing says that the others have written what they heard."""
    run.on(Came(site))
    run.say(site, run.hello_of(site))
    run.ranks_up(site)


def _left_alone() -> Led:
    """A leader whose two other members have lost their lines, and to whom d has come."""
    run = Led().take_part("abc")
    store(run, "abc")
    for site in "bc":
        run.on(Ended(site))
    come(run, "d")
    return run


def test_member_list_grows_once_most_of_it_hold_the_last_one_that_came() -> None:
    """Else a leader that is cut off from most could fill the list with others: each side would have most of its own."""
    run = _left_alone()
    assert "d" in run.sequencer.state.sites  # all of a, b and c had what came before
    store(run, "ad")
    come(run, "e")
    assert "e" not in run.sequencer.state.sites  # a and d hold it, of four
    run.wait(20, "ade")
    (told,) = [text for text in run.logged if "e joins once most members" in text]
    assert "b, c do not" in told
    other = Led(entries=run.entries, start=1)  # a leader that has just begun knows of nobody what it holds
    come(other, "a")
    come(other, "e")
    assert "e" not in other.sequencer.state.sites
    run.hello("b")
    store(run, "b")
    assert "e" in run.sequencer.state.sites


def test_member_that_is_given_up_is_not_awaited() -> None:
    run = _left_alone()
    store(run, "ad")
    come(run, "e")
    assert "e" not in run.sequencer.state.sites
    run.on(Remove("b", "lost"))
    assert "e" in run.sequencer.state.sites  # a and d are two of three
    come(run, "c")  # who comes back is a member: nobody has to hold more for that
    run.say("c", ReadySaid())
    assert "c" in run.sequencer.state.live


@pytest.mark.parametrize("go", [lambda run: run.on(Ended("e")), lambda run: run.say("e", Leave())])
def test_site_that_goes_before_it_has_a_place_is_not_taken_in(go: Callable[[Led], object]) -> None:
    """It would be a member for ever, of which most have to hold what counts."""
    run = _left_alone()
    store(run, "ad")
    come(run, "e")
    go(run)
    run.hello("b")
    store(run, "b")
    assert "e" not in run.sequencer.state.sites


def test_site_whose_ranks_are_others_while_it_waits_for_a_place_comes_with_those() -> None:
    run = _left_alone()
    store(run, "ad")
    come(run, "e")
    run.ranks_up("e", owner="9" * 32)
    run.hello("b")
    store(run, "b")
    assert "e" in run.sequencer.state.sites
    assert [owner.id for owner in run.sequencer.sites["e"].owners] == ["9" * 32]
