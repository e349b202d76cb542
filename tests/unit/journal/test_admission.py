"""Whom the leader takes in, and what it says to others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from geocomm.journal.entries import TermBegun, hash_of
from geocomm.journal.messages import PROTOCOL_VERSION, Refused
from geocomm.journal.run_state import Standing
from geocomm.journal.sequencer_events import SendEntries
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
    assert led.sequencer.superseded_by == changes.get("term", 0)
    assert refused.blames == {"run": "run", "head": "leader", "term": "leader"}.get(next(iter(changes)), "site")


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


def test_second_machine_of_a_name_takes_over_and_the_first_is_refused() -> None:
    led = Led().take_part("a")
    led.hello("a", store=STORES["d"], run=None, head=-1, head_hash=None)
    assert led.sequencer.state.sites["a"].store == STORES["d"]
    assert led.sequencer.state.sites["a"].standing is Standing.JOINING
    led.hello("a")
    assert "two machines" in led.messages(Refused)[0].why


def test_follower_of_an_earlier_term_is_sent_the_entries_since_the_leader_took_over() -> None:
    entries = Led().take_part("ab").entries
    head = entries[-1]
    began = TermBegun(index=head.index + 1, prev=hash_of(head), term=1, site="a", address="a:1")
    led = Led(entries=[*entries, began])
    led.hello("b", term=0, head=40, head_hash="f" * 64)  # its chain ends with entries of the leader before
    assert led.messages(Refused) == []
    assert SendEntries("b", began.index, began.index) in led.sent
    led.hello("a")
    assert not [one for one in led.sent if isinstance(one, SendEntries) and one.site == "a"]
