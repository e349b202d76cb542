"""Another site averages what an aggregator has averaged, and the leader names who makes something else of it."""

from __future__ import annotations

import pytest

from geocomm.elastic.journal import average_checks
from geocomm.elastic.journal.member import CheckSum, Member
from geocomm.elastic.journal.messages import Check, Hold, Open, RanksGone, Sum, SumChecked, Summed
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.led_sequencer import MODEL, Led

AGGREGATES = MODEL.model_copy(update={"settings": MODEL.settings | {"reduce": "aggregator"}})
RIGHT, WRONG, STRANGE = "f" * 64, "e" * 64, "d" * 64


@pytest.fixture(autouse=True)
def all_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(average_checks, "ONE_IN", 1)


class CheckedRun(Led):
    """Rounds with an aggregator, and sites that answer checks as they are told."""

    def __init__(self, sites: str) -> None:
        super().__init__(LeaderSettings(), model=AGGREGATES)
        self.sites = sites
        self.take_part(sites)

    def decide(self, frame: str) -> str:
        """A round whose aggregator, which is returned, says that its average has this hash."""
        version = self.sequencer.state.versions[0]
        self.due(self.sites[0])
        charged = self.messages(Open)[-1].aggregator
        assert charged is not None
        for site in self.sites:
            self.offer(site, "" if site == charged.site else charged.site)
        asked = self.messages(Sum, charged.site)[-1]
        counts = tuple(one.site for one in asked.members)
        self.say(
            charged.site,
            Summed(
                fragment=0, version=version, attempt=charged.attempt, frame=frame, coded_bytes=9, exact_bytes=1,
                counts=counts,
            ),
        )  # fmt: skip
        other = next(site for site in self.sites if site != charged.site)
        self.say(other, Hold(fragment=0, version=version, site=charged.site, frame=frame, by_mail=True))
        assert self.sequencer.state.versions[0] == version + 1
        return charged.site

    @property
    def asked(self) -> list[str]:
        """The sites that were asked to check, one after another."""
        return [one.site for one in self.sent if isinstance(getattr(one, "message", None), Check)]

    def answer(self, frame: str, site: str = "") -> str:
        """The site that was asked last, or another one, says what it makes of the frames; which it is."""
        check = self.messages(Check)[-1]
        site = site or self.asked[-1]
        self.say(site, SumChecked(fragment=0, version=check.version, attempt=check.attempt, frame=frame))
        return site

    @property
    def named(self) -> list[str]:
        """Who is said to average wrong."""
        return [line.split(":")[0] for line in self.logged if "averages no more" in line]


def test_another_site_is_asked_for_the_same_average_and_nothing_is_said_where_it_agrees() -> None:
    led = CheckedRun("abc")
    aggregator = led.decide(RIGHT)
    assert led.asked
    assert led.asked[-1] != aggregator
    assert led.messages(Check)[-1].members == led.messages(Sum)[-1].members
    led.answer(RIGHT)
    assert (len(led.asked), led.named, led.sequencer.checks.found_wrong) == (1, [], 0)
    led.decide(RIGHT)
    assert len(led.asked) == 2


def test_an_aggregator_that_two_others_contradict_is_named_and_averages_no_more() -> None:
    led = CheckedRun("abc")
    liar = led.decide(WRONG)
    first = led.answer(RIGHT)
    assert led.named == []  # one of two is wrong: a third one says which
    assert led.asked[-1] not in (liar, first)
    led.answer(RIGHT)
    assert (led.named, led.sequencer.checks.found_wrong) == ([liar], 1)
    assert liar not in {led.decide(RIGHT) for _ in range(6)}


def test_who_says_wrongly_that_an_average_is_wrong_is_named_itself() -> None:
    led = CheckedRun("abc")
    led.decide(RIGHT)
    liar = led.answer(WRONG)
    led.answer(RIGHT)
    assert led.named == [liar]


def test_of_two_sites_nobody_is_named_but_both_are_told_of() -> None:
    led = CheckedRun("ab")
    led.decide(WRONG)
    led.answer(RIGHT)
    assert (led.named, led.sequencer.checks.found_wrong) == ([], 1)
    assert any("a, b make different averages" in line for line in led.logged)


def test_of_three_that_make_three_averages_nobody_is_named() -> None:
    led = CheckedRun("abc")
    led.decide(WRONG)
    led.answer(RIGHT)
    led.answer(STRANGE)
    assert led.named == []
    assert any("a, b, c make different averages" in line for line in led.logged)


@pytest.mark.parametrize("why", ["silent", "gone"])
def test_a_site_that_does_not_answer_holds_up_nothing(why: str) -> None:
    led = CheckedRun("abc")
    led.decide(WRONG)
    if why == "gone":
        led.say(led.asked[-1], RanksGone(why="they ended"))
    led.wait(average_checks.ANSWER_S + 1, beating="abc")
    assert len(led.asked) == 1  # nothing is in doubt
    led.sites = "".join(led.sequencer.state.live)
    led.decide(RIGHT)
    assert len(led.asked) == 2


def test_an_answer_to_another_check_or_of_another_site_counts_nothing() -> None:
    led = CheckedRun("abc")
    aggregator = led.decide(WRONG)
    check = led.messages(Check)[-1]
    led.answer(RIGHT, next(site for site in "abc" if site not in (aggregator, led.asked[-1])))
    led.say(led.asked[-1], SumChecked(fragment=0, version=check.version, attempt=check.attempt + 1, frame=RIGHT))
    assert len(led.asked) == 1
    led.answer(RIGHT)
    assert len(led.asked) == 2


def test_a_rank_checks_an_average_of_any_round_of_its_fragments() -> None:
    led = CheckedRun("abc")
    led.decide(RIGHT)
    check = led.messages(Check)[-1]
    assert Member("a", {0: 7}).on_down(check) == [CheckSum(check)]
    assert Member("a", {1: 7}).on_down(check) == []
