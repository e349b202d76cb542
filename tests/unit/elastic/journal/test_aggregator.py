"""Rounds of which one site averages the frames, for all: at their leader, and at a rank."""

from __future__ import annotations

from typing import Any

import pytest

from geocomm.elastic.journal.entries import Added, Counted, SumFrame, SummedRound
from geocomm.elastic.journal.member import MakeSum, Member, Say, SendFrame
from geocomm.elastic.journal.messages import (
    Aggregator,
    EntrySaid,
    Fetch,
    Hold,
    Need,
    Offer,
    Open,
    Owner,
    Peer,
    RanksGone,
    Sum,
    Summed,
)
from geocomm.elastic.journal.open_round import MOST_HOLDS
from geocomm.elastic.journal.sequencer_events import Close, Ended, LeaderSettings
from support.led_sequencer import MODEL, Led

AGGREGATES = MODEL.model_copy(update={"settings": MODEL.settings | {"reduce": "aggregator"}})
AVERAGE = "f" * 64


class Averaged(Led):
    """A run of some sites with a round that is due."""

    def __init__(self, sites: str, **terms: Any) -> None:
        super().__init__(LeaderSettings(**terms), model=AGGREGATES)
        self.sites = sites
        self.take_part(sites)
        self.due(sites[0])

    @property
    def opened(self) -> Open:
        return self.messages(Open)[-1]

    @property
    def charged(self) -> Aggregator:
        assert self.opened.aggregator is not None
        return self.opened.aggregator

    @property
    def others(self) -> str:
        return self.sites.replace(self.charged.site, "")

    def offer_all(self) -> None:
        """All frames lie at the aggregator."""
        by = self.charged.site
        for site in self.sites:
            self.offer(site, "" if site == by else by)

    def summed(self, **changes: Any) -> Summed:
        """What the aggregator says that was asked last."""
        asked = self.messages(Sum)[-1]
        fields: dict[str, Any] = {
            "fragment": asked.fragment,
            "version": asked.version,
            "attempt": asked.attempt,
            "frame": AVERAGE,
            "coded_bytes": 9,
            "exact_bytes": 1,
            "counts": tuple(one.site for one in asked.members),
        }
        return Summed(**fields | changes)

    def hold_average(self, site: str) -> None:
        by = self.charged.site
        self.say(site, Hold(fragment=0, version=0, site=by, frame=AVERAGE, by_mail=True))

    def not_held(self, site: str, one: Added) -> None:
        self.say(site, Hold(fragment=0, version=0, site=one.site, frame=one.frame, by_mail=False, held=False))

    @property
    def last_counted(self) -> str:
        return "".join(one.site for one in self.round.members)

    @property
    def round(self) -> SummedRound:
        entry = self.entries[-1]
        assert isinstance(entry, SummedRound)
        return entry


def test_a_round_is_decided_once_the_average_of_the_aggregator_is_on_another_disk() -> None:
    led = Averaged("abc")
    assert len(led.messages(Open)) == 3  # the first word of the round names the aggregator
    led.offer_all()
    asked = led.messages(Sum)
    assert [one.site for one in asked[-1].members] == ["a", "b", "c"]
    assert asked == led.messages(Sum, led.charged.site)
    led.say(led.charged.site, led.summed())
    assert led.kinds()[-1] == "ready"
    led.hold_average(led.others[0])
    assert [one.site for one in led.round.members] == ["a", "b", "c"]
    assert led.round.sum.site == led.charged.site
    assert led.round.frames == (led.round.sum,)
    assert all(one.frame == asked[-1].members[number].frame[:16] for number, one in enumerate(led.round.members))


def test_an_aggregator_averages_without_a_frame_that_its_disk_has_lost() -> None:
    led = Averaged("abc")
    led.offer_all()
    first, others = led.messages(Sum)[-1], led.others
    lost = next(one for one in first.members if one.site == others[0])
    led.not_held(led.charged.site, lost)
    led.wait(3, beating="abc")  # it may come from another site
    second = led.messages(Sum)[-1]
    assert [one.site for one in second.members] == sorted({led.charged.site, others[1]})
    led.say(led.charged.site, led.summed())
    led.not_held(led.charged.site, second.members[0])  # it has the average, which is what counts
    led.hold_average(others[1])
    assert led.last_counted == "".join(one.site for one in second.members)


def test_an_aggregator_fetches_again_what_its_disk_has_lost_and_others_have() -> None:
    led = Averaged("ab", min_sites=2)
    led.offer_all()
    by = led.charged.site
    lost = next(one for one in led.messages(Sum)[-1].members if one.site != by)
    led.not_held(by, lost)
    led.wait(3, beating="ab")
    assert {one.frame for one in led.messages(Fetch, by)} == {lost.frame}
    led.say(by, Hold(fragment=0, version=0, site=lost.site, frame=lost.frame, by_mail=False))
    assert led.messages(Sum)[-1].members == led.messages(Sum)[0].members


def test_a_site_that_names_too_many_frames_is_dropped_though_it_takes_each_back() -> None:
    led = Averaged("abc")
    for number in range(MOST_HOLDS + 1):
        for held in (True, False):
            frame = f"{number:064x}"
            led.say("b", Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True, held=held))
    assert [one.site for one in led.sent if isinstance(one, Close)] == ["b"]


def test_frames_that_no_disk_has_kept_are_made_anew() -> None:
    led = Averaged("ab")
    led.offer_all()
    for one in led.messages(Sum)[-1].members:
        for site in "ab":
            led.not_held(site, one)
    before = led.opened.attempt
    led.wait(5, beating="ab")
    assert led.opened.attempt > before


def test_nobody_but_the_aggregator_fetches_frames_of_others() -> None:
    led = Averaged("abc")
    for site in "abc":
        led.offer(site)
    led.wait(3, beating="abc")
    assert {one.site for one in led.sent if isinstance(getattr(one, "message", None), Fetch)} == {led.charged.site}


@pytest.mark.parametrize("asked", [False, True], ids=["before it is asked", "while it averages"])
def test_where_the_aggregator_is_gone_another_one_averages_the_same_frames(asked: bool) -> None:
    led = Averaged("abc")
    before, first = led.charged, led.opened
    if asked:
        led.offer_all()
    led.say(before.site, RanksGone(why="killed"))
    assert led.charged.site != before.site
    assert led.charged.attempt > before.attempt
    assert led.opened.attempt == first.attempt  # no frame is made anew
    led.sites = led.sites.replace(before.site, "")
    led.offer_all()
    led.say(led.charged.site, led.summed())
    led.hold_average(led.others[0])
    assert led.last_counted == led.sites


def test_an_aggregator_that_lives_and_does_not_average_is_replaced_and_its_average_comes_too_late() -> None:
    led = Averaged("abc")
    led.offer_all()
    before, late = led.charged, led.summed()
    led.wait(6, beating="abc")
    assert len(led.messages(Sum, before.site)) > 1  # it is asked again: the first line may be lost
    led.wait(4, beating="abc")
    assert led.charged.site != before.site
    assert any(text.startswith(f"round 0 of fragment 0: {before.site} has not averaged it") for text in led.logged)
    led.say(before.site, late)
    led.say(led.charged.site, Hold(fragment=0, version=0, site=before.site, frame=AVERAGE, by_mail=True))
    assert led.kinds()[-1] == "ready"
    led.offer_all()
    led.say(led.charged.site, led.summed())
    led.hold_average(before.site)
    assert led.round.sum.site != before.site


def test_where_nobody_is_left_to_average_the_next_one_that_comes_does() -> None:
    run = Averaged("ab")
    for site in "ab":
        run.on(Ended(site))
    run.wait(10)
    assert run.sequencer.state.live == []
    run.take_part("a")
    run.wait(1, "a")
    assert run.charged.site == "a"
    run.offer("a")
    run.wait(5, "a")
    assert {asked.attempt for asked in run.messages(Sum, "a")} == {run.charged.attempt}


def test_an_average_that_the_mail_brings_to_nobody_is_fetched() -> None:
    led = Averaged("abc")
    led.offer_all()
    led.say(led.charged.site, led.summed())
    led.wait(6, beating="abc")
    fetches = [one for one in led.messages(Fetch) if one.frame == AVERAGE]
    assert fetches
    assert all(f"{led.charged.site}:1" in one.sources for one in fetches)


def test_a_frame_that_is_no_delta_does_not_count() -> None:
    led = Averaged("abc")
    led.offer_all()
    bad = led.others[0]
    led.say(led.charged.site, led.summed(counts=tuple(led.sites.replace(bad, ""))))
    led.hold_average(led.others[1])
    assert led.last_counted == led.sites.replace(bad, "")
    assert any(f"{bad}: its frame of fragment 0 in round 0 is no delta" in text for text in led.logged)


def test_what_nobody_was_asked_for_is_no_average() -> None:
    led = Averaged("abc")
    led.offer_all()
    other = led.others[0]
    led.say(other, led.summed())
    led.hold_average(led.others[1])
    assert led.kinds()[-1] == "ready"
    led.say(other, led.summed(coded_bytes=1000))
    assert "a frame of 1001 bytes" in [one.why for one in led.sent if isinstance(one, Close)][-1]


def test_sites_take_turns() -> None:
    led = Averaged("abc")
    by: list[str] = []
    for version in range(6):
        if version:
            led.due()
        led.offer_all()
        led.say(led.charged.site, led.summed())
        led.say(
            led.others[0],
            Hold(fragment=0, version=version, site=led.charged.site, frame=AVERAGE, by_mail=True),
        )
        by.append(led.round.sum.site)
    assert sorted(by) == ["a", "a", "b", "b", "c", "c"]


def test_an_entry_of_64_sites_is_short() -> None:
    members = tuple(
        Counted(frame="0" * 16, weight=1_000_000, step=1_000_000, taken=10**12, site=f"site-{number:03d}")
        for number in range(64)
    )
    entry = SummedRound(
        index=10**6,
        prev="0" * 64,
        term=3,
        fragment=127,
        version=10**5,
        members=members,
        sum=SumFrame(frame="0" * 64, coded_bytes=10**8, exact_bytes=10**4, site="site-000"),
        squared_norm=1.2345678901234567,
        every=0,
        base="0" * 32,
    )
    assert len(entry.line) <= 8 << 10


# ---- a rank


def opened(aggregator: str, number: int, attempt: int = 0) -> Open:
    peers = tuple(
        Peer(site=site, owners=(Owner(id=f"{ord(site):032x}", host=site, port=1),), fetch="") for site in "abc"
    )
    by = Aggregator(site=aggregator, attempt=number)
    return Open(fragment=0, version=0, attempt=attempt, peers=peers, aggregator=by)


def offer(name: str) -> Offer:
    return Offer(
        fragment=0,
        version=0,
        attempt=0,
        frame=name * 64,
        coded_bytes=8,
        exact_bytes=1,
        weight=3,
        step=3,
        squared_norm=1.0,
        lr=0.1,
        every=0,
    )


def asked(number: int) -> Sum:
    members = tuple(Added(site=site, frame=site * 64, coded_bytes=8, exact_bytes=1, weight=3) for site in "ab")
    return Sum(fragment=0, version=0, attempt=number, members=members)


def not_held(name: str) -> Hold:
    return Hold(fragment=0, version=0, site=name, frame=name * 64, by_mail=False, held=False)


def sent(acts: list[Any]) -> list[tuple[str, str]]:
    """(to, frame) of each mail."""
    return [(peer.site, act.offer.frame) for act in acts if isinstance(act, SendFrame) for peer in act.peers]


def said(acts: list[Any]) -> list[Any]:
    return [act.message for act in acts if isinstance(act, Say)]


def test_a_rank_sends_its_frame_to_the_aggregator_and_to_the_next_one_the_same() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened("b", 1))
    assert sent(member.made(offer("a"))) == [("b", "a" * 64)]
    assert sent(member.on_down(opened("c", 2))) == [("c", "a" * 64)]
    assert member.begins() == []
    assert sent(member.on_down(opened("a", 3))) == []


def test_a_rank_averages_once_for_each_charge_and_sends_that_to_all() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened("a", 1))
    member.made(offer("a"))
    for _ in range(2):
        assert said(member.on_down(asked(1))) == [not_held("b")]
    member.arrived(0, 0, "b", "b" * 64, by_mail=True)
    assert member.on_down(asked(1)) == [MakeSum(asked(1))]
    assert member.on_down(asked(1)) == []
    member.not_summed(asked(1))
    assert said(member.lost(0, 0, "a", "a" * 64)) == [not_held("a")]
    assert said(member.on_down(asked(1))) == [not_held("a")]
    member.arrived(0, 0, "a", "a" * 64, by_mail=False)
    assert member.on_down(asked(1)) == [MakeSum(asked(1))]
    summed = Summed(fragment=0, version=0, attempt=1, frame=AVERAGE, coded_bytes=8, exact_bytes=1, counts=("a", "b"))
    acts = member.summed(summed)
    assert sent(acts) == [("b", AVERAGE), ("c", AVERAGE)]
    assert said(acts) == [summed]
    again = member.on_down(asked(1))
    assert (sent(again), said(again)) == ([], [summed])
    assert member.on_down(asked(2)) == [MakeSum(asked(2))]
    assert member.summed(summed) == []  # of an earlier charge


def test_a_rank_applies_the_average_and_keeps_the_frame_that_counts() -> None:
    member = Member("a", {0: 0})
    member.on_down(opened("b", 1))
    member.made(offer("a"))
    entry = SummedRound(
        index=5,
        prev="0" * 64,
        term=0,
        fragment=0,
        version=0,
        members=(
            Counted(frame="a" * 16, weight=3, step=3, site="a"),
            Counted(frame="b" * 16, weight=3, step=3, site="b"),
        ),
        sum=SumFrame(frame=AVERAGE, coded_bytes=8, exact_bytes=1, site="b"),
        squared_norm=1.0,
        every=0,
        base=None,
    )
    needs = said(member.on_down(EntrySaid(entry=entry)))
    assert needs == [Need(fragment=0, version=0, site="b", frame=AVERAGE, bytes=9)]
    assert member.next_settled() is None
    member.arrived(0, 0, "b", AVERAGE, by_mail=True)
    settled = member.next_settled()
    assert settled is not None
    assert settled.counted == offer("a")
