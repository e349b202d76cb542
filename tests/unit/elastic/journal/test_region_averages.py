"""Rounds in which the head of a region averages its frames for the aggregator, at their leader."""

from __future__ import annotations

from typing import Any

import pytest

from geocomm.elastic.journal.entries import SummedRound
from geocomm.elastic.journal.mailed_frames import mailed
from geocomm.elastic.journal.messages import Aggregator, Check, Fetch, Hold, Open, RanksGone, Sum, SumChecked, Summed
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.led_sequencer import MODEL, Led

REGIONS = (("a", "b"), ("c", "d"))
SETTINGS = MODEL.settings | {"reduce": "aggregator"}
OF_ALL, OF_REGION = "f" * 64, "e" * 64


class Regional(Led):
    """A run of two regions with a round that is due."""

    def __init__(self, sites: str = "abcd", settings: dict[str, str] = SETTINGS, **terms: Any) -> None:
        super().__init__(
            LeaderSettings(regions=REGIONS, **terms), model=MODEL.model_copy(update={"settings": settings})
        )
        self.take_part(sites)
        self.due()

    @property
    def opened(self) -> Open:
        return self.messages(Open)[-1]

    @property
    def by(self) -> Aggregator:
        assert self.opened.aggregator is not None
        return self.opened.aggregator

    @property
    def head(self) -> Aggregator:
        [head] = self.opened.adders
        return head

    @property
    def near(self) -> str:
        """The other site of the aggregator's region."""
        return ("ab" if self.by.site in "ab" else "cd").replace(self.by.site, "")

    @property
    def far(self) -> str:
        """The other site of the head's region."""
        return ("ab" if self.by.site in "cd" else "cd").replace(self.head.site, "")

    def offer_of(self, site: str) -> str:
        """A site offers, and who averages its frame has it."""
        to = self.by.site if site in (self.by.site, self.near) else self.head.site
        return self.offer(site, "" if site == to else to)

    def offer_all(self) -> None:
        for site in (self.by.site, self.near, self.head.site, self.far):
            self.offer_of(site)

    def asked(self, of: Aggregator) -> Sum | None:
        """What a site was asked for last in a charge."""
        found = [one for one in self.messages(Sum, of.site) if one.attempt == of.attempt]
        return found[-1] if found else None

    def sum(self, of: Aggregator, frame: str, counts: str | None = None) -> None:
        asked = self.asked(of)
        assert asked is not None
        named = tuple(one.site for one in asked.members) if counts is None else tuple(counts)
        self.say(of.site, Summed(**asked.named, frame=frame, coded_bytes=9, exact_bytes=1, counts=named))

    def bring(self, to: str, maker: str, frame: str, *, held: bool = True) -> None:
        """A frame lies on the disk of a site, or does no more."""
        version = self.opened.version
        self.say(to, Hold(fragment=0, version=version, site=maker, frame=frame, by_mail=held, held=held))

    def finish(self) -> SummedRound:
        self.sum(self.by, OF_ALL)
        self.bring(self.near, self.by.site, OF_ALL)
        entry = self.entries[-1]
        assert isinstance(entry, SummedRound)
        return entry


def test_a_head_averages_its_region_and_the_aggregator_that_with_its_own() -> None:
    led = Regional()
    led.offer_all()
    in_region = led.asked(led.head)
    assert in_region is not None
    assert {one.site for one in in_region.members} == {led.head.site, led.far}
    assert led.asked(led.by) is None  # it waits for the other region
    led.sum(led.head, OF_REGION)
    assert led.asked(led.by) is None  # it is on its way
    led.bring(led.by.site, led.head.site, OF_REGION)
    asked = led.asked(led.by)
    assert asked is not None
    weights = {one.site: (one.frame == OF_REGION, one.weight) for one in asked.members}
    assert weights == {led.by.site: (False, 5), led.near: (False, 5), led.head.site: (True, 10)}
    entry = led.finish()
    assert [one.site for one in entry.members] == [*"abcd"]
    assert entry.squared_norm == 1.0
    assert led.messages(Fetch) == []


def test_others_of_a_region_fetch_the_average_of_all_near_also_once_its_round_is_decided() -> None:
    led = Regional()
    led.offer_all()
    led.sum(led.head, OF_REGION)
    led.bring(led.by.site, led.head.site, OF_REGION)
    led.finish()
    assert led.messages(Fetch) == []
    region = "ab" if led.head.site in "ab" else "cd"
    [first] = [one.site for one in mailed(led.opened.peers, led.by.site, 0) if one.site in region]
    led.bring(first, led.by.site, OF_ALL)
    assert [one.frame for one in led.messages(Fetch, region.replace(first, ""))] == [OF_ALL]


def test_heads_take_turns() -> None:
    led = Regional()
    heads: set[str] = set()
    for version in range(8):
        if version:
            led.due()
        led.offer_all()
        heads.add(led.head.site)
        led.sum(led.head, OF_REGION)
        led.bring(led.by.site, led.head.site, OF_REGION)
        assert len(led.finish().members) == 4
    assert heads == {*"abcd"}


def test_a_region_with_one_site_and_one_without_frames_are_not_waited_for() -> None:
    led = Regional("abc")
    assert led.opened.adders == (() if led.by.site in "ab" else (led.head,))
    for site in "abc":
        led.offer_of(site) if led.opened.adders else led.offer(site, "" if site == led.by.site else led.by.site)
    if led.opened.adders:
        led.sum(led.head, OF_REGION)
        led.bring(led.by.site, led.head.site, OF_REGION)
    assert led.asked(led.by) is not None
    led = Regional()
    led.offer_of(led.by.site)
    led.wait(2.5, "abcd")  # the grace
    asked = led.asked(led.by)
    assert asked is not None
    assert [one.site for one in asked.members] == [led.by.site]


def test_a_head_that_is_late_with_its_average_is_not_waited_for_beyond_the_grace() -> None:
    led = Regional()
    led.offer_all()
    led.wait(1.5, "abcd")
    assert led.asked(led.by) is None
    led.wait(1, "abcd")
    asked = led.asked(led.by)
    assert asked is not None
    assert {one.site for one in asked.members} == {led.by.site, led.near}
    led.sum(led.head, OF_REGION)  # too late
    assert len(led.finish().members) == 2


@pytest.mark.parametrize("is_asked", [False, True], ids=["before it is asked", "while it averages"])
def test_where_a_head_is_gone_others_average_the_same_frames(is_asked: bool) -> None:
    led = Regional()
    gone, before = led.head, led.opened
    if is_asked:
        led.offer_all()
    led.say(gone.site, RanksGone(why="killed"))
    assert led.opened.aggregator != before.aggregator
    assert led.opened.attempt == before.attempt  # no frame is made anew
    rest = "abcd".replace(gone.site, "")
    assert all(one.site in rest for one in led.opened.adders)


def test_an_average_of_a_region_that_the_mail_does_not_bring_is_fetched() -> None:
    led = Regional(fetch_again_s=0.5)
    led.offer_all()
    led.sum(led.head, OF_REGION)
    led.wait(1.5, "abcd")
    fetches = led.messages(Fetch, led.by.site)
    assert {one.frame for one in fetches} == {OF_REGION}
    assert all(f"{led.head.site}:1" in one.sources for one in fetches)
    led.bring(led.by.site, led.head.site, OF_REGION)
    assert len(led.finish().members) == 4


def test_an_average_of_a_region_that_the_aggregator_has_lost_is_fetched_again_or_left_out() -> None:
    led = Regional(fetch_again_s=0.5)
    led.offer_all()
    led.sum(led.head, OF_REGION)
    led.bring(led.by.site, led.head.site, OF_REGION)
    led.bring(led.by.site, led.head.site, OF_REGION, held=False)
    led.wait(2, "abcd")
    assert led.messages(Fetch, led.by.site)[-1].frame == OF_REGION
    asked = led.asked(led.by)
    assert asked is not None
    assert {one.site for one in asked.members} == {led.by.site, led.near}


def test_frames_that_are_no_deltas_do_not_count_and_who_averages_them_to_nonsense_does_so_no_more() -> None:
    led = Regional()
    led.offer_all()
    led.sum(led.head, OF_REGION, counts=led.head.site)
    led.bring(led.by.site, led.head.site, OF_REGION)
    asked = led.asked(led.by)
    assert asked is not None
    assert next(one.weight for one in asked.members if one.frame == OF_REGION) == 5
    assert {one.site for one in led.finish().members} == {*"abcd"} - {led.far}
    assert any(text.startswith(f"{led.far}: its frame of fragment 0 in round 0 is no delta") for text in led.logged)

    led.due()
    led.offer_all()
    liar, other = led.head.site, led.far
    led.sum(led.head, OF_REGION)
    led.bring(led.by.site, liar, OF_REGION)
    led.sum(led.by, OF_ALL, counts=led.by.site + led.near)
    led.bring(led.near, led.by.site, OF_ALL)
    entry = led.entries[-1]
    assert isinstance(entry, SummedRound)
    assert {one.site for one in entry.members} == {led.by.site, led.near}
    assert any(text.startswith(f"{liar}: its average of its region's frames") for text in led.logged)
    for _ in range(4):
        led.due()
        assert liar not in {led.by.site, *(one.site for one in led.opened.adders)}
        led.offer_all()
        led.sum(led.head, OF_REGION)
        led.bring(led.by.site, led.head.site, OF_REGION)
        led.finish()
        if other in {led.by.site, *(one.site for one in led.opened.adders)}:
            break
    else:
        pytest.fail("nobody averages in its place")


def test_averages_of_regions_are_checked_too() -> None:
    led = Regional()
    checked: set[bool] = set()
    for version in range(400):
        if version:
            led.due()
        led.offer_all()
        led.sum(led.head, OF_REGION)
        led.bring(led.by.site, led.head.site, OF_REGION)
        before = len(led.messages(Check))
        led.finish()
        if len(led.messages(Check)) > before:
            check = led.messages(Check)[-1]
            of_region = check.attempt == led.head.attempt
            assert (OF_REGION in {one.frame for one in check.members}) != of_region
            checked.add(of_region)
            site = next(one.site for one in reversed(led.sent) if getattr(one, "message", None) is check)
            led.say(site, SumChecked(**check.named, frame=OF_REGION if of_region else OF_ALL))
    assert checked == {False, True}
    assert not any("wrong" in text for text in led.logged)


def test_other_averages_than_means_are_made_by_the_aggregator_alone() -> None:
    assert Regional(settings=SETTINGS | {"averaging": "radial"}).opened.adders == ()
