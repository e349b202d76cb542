"""What a site of an elastic run makes of rounds that count it, and of those that do not. The test decides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from pydantic_core import SchemaValidator

from geocomm.core.errors import InvalidArgumentError
from geocomm.data import site_deals
from geocomm.data.deal_records import DealtData
from geocomm.elastic.journal.entries import Listed, Round
from geocomm.elastic.journal.member import Settled
from geocomm.elastic.journal.messages import Model, Offer, Open
from geocomm.observe.telemetry.report_rows import STATS
from geocomm.sync.local_steps.elastic.member_frames import Decided, Delta
from geocomm.sync.local_steps.elastic.member_site_rounds import MemberSiteRounds
from geocomm.sync.local_steps.local_steps import view_of
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from support.given_rounds import EVERY, Facts, GivenRounds

OUTER = Nesterov(lr=1.0, momentum=0.0)


class Site:
    """A linear model that the test moves by hand: each step adds `change` to every weight."""

    def __init__(self, settings: LocalSettings | None = None, begin_step: int = 0, facts: Facts | None = None) -> None:
        facts = facts or Facts()
        self.model = torch.nn.Linear(4, 4, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.rounds = GivenRounds(begin_step)
        given = settings or LocalSettings(every=EVERY, fragments=1, outer=OUTER, merge="carry", codec="none")
        view = view_of(self.model, facts, given)
        inner = InnerOptimizers(self.optimizer)
        inner.check(view)

        def rounds_of(fragments: Sequence[Fragment], model: Model) -> GivenRounds:
            return self.rounds

        resolved = ResolvedSettings.of(given, view.tensors, None)
        self.state = MemberSiteRounds(view, inner, facts, resolved, rounds_of)  # type: ignore[arg-type]

    @property
    def weights(self) -> torch.Tensor:
        return self.model.weight.detach().clone().reshape(-1)

    def step(self, change: float) -> None:
        with torch.no_grad():
            self.model.weight += change
        self.state.count_step()

    def open(self, version: int = 0) -> None:
        self.rounds.opened = {0: Open(fragment=0, version=version, attempt=0, peers=())}

    def decide(self, average: torch.Tensor, *, counted: Delta | None, version: int = 0) -> None:
        listed = Listed(
            site="b", frame="0" * 64, coded_bytes=0, exact_bytes=64, weight=1, step=EVERY, squared_norm=1.0, lr=1.0
        )
        entry = Round(
            index=9, prev="0" * 64, term=0, fragment=0, version=version, members=(listed,), every=0, base=None
        )
        offer = Offer(
            fragment=0, version=version, attempt=0, frame="0" * 64, coded_bytes=0, exact_bytes=64, weight=1, step=1,
            squared_norm=1.0, lr=1.0, every=0,
        )  # fmt: skip
        own = None
        if counted is not None:
            own = replace(counted.own, wire_bytes=64)
        settled = Settled(0, version, entry, offer if counted else None)
        self.rounds.next = {0: Decided(settled, average, own)}


def test_round_without_this_site_moves_its_weights_with_the_anchor() -> None:
    """anchor - own stays, to rounding: what did not count is still in the next delta, and nothing twice."""
    site = Site()
    start = site.weights
    site.state.begin()
    site.step(0.25)
    move = torch.linspace(-1, 1, 16)
    site.decide(move, counted=None)
    site.step(0.5)
    assert torch.allclose(site.weights, start - move + 0.75, atol=1e-6)
    site.open(version=1)
    site.step(0.0)
    (delta,) = site.rounds.offered
    assert torch.allclose(delta.values, torch.full((16,), -0.75), atol=1e-6)  # anchor - own
    assert delta.weight == 3


def test_round_with_this_site_carries_only_the_steps_since_its_frame() -> None:
    site = Site()
    start = site.weights
    site.state.begin()
    site.step(0.25)
    site.open()
    site.step(0.25)
    (delta,) = site.rounds.offered
    assert torch.allclose(delta.values, torch.full((16,), -0.5), atol=1e-6)
    assert delta.weight == 2
    average = torch.full((16,), -0.125)
    site.decide(average, counted=delta)
    site.step(1.0)
    assert torch.allclose(site.weights, start + 0.125 + 1.0, atol=1e-6)
    site.open(version=1)
    site.step(0.0)
    assert site.rounds.offered[-1].weight == 2  # the steps after the frame that counted
    assert torch.allclose(site.rounds.offered[-1].values, torch.full((16,), -1.0), atol=1e-6)


def test_state_is_written_each_time_that_the_frames_since_the_last_one_outweigh_it() -> None:
    site = Site()
    site.state.begin()
    begun = len(site.rounds.written)
    for version in range(6):
        site.decide(torch.zeros(16), counted=None, version=version)  # its frames have as many bytes as the state
        site.step(0.25)
    assert site.rounds.written[begun:] == [2, 4, 6]


@pytest.mark.parametrize("tokens", [0, 10])
def test_long_delta_counts_in_parts_of_five_cycles_and_none_of_it_is_lost(tokens: int) -> None:
    weights = "tokens" if tokens else "steps"
    site = Site(LocalSettings(every=EVERY, fragments=1, outer=OUTER, merge="carry", codec="none", weights=weights))
    start = site.weights
    site.state.begin()
    for step in range(8 * EVERY):
        if step == 8 * EVERY - 1:
            site.open()
        site.state.count_tokens(tokens)
        site.step(0.25)
    (first,) = site.rounds.offered
    assert torch.allclose(first.values, torch.full((16,), -0.25 * 5 * EVERY), atol=1e-5)
    assert first.squared_norm == pytest.approx(16 * (0.25 * 5 * EVERY) ** 2, rel=1e-5)
    assert first.own.step == 5 * EVERY
    assert first.own.tokens == 5 * EVERY * tokens  # what it stands for, not all that was read
    assert first.weight == 2 * EVERY * (tokens or 1)
    average = torch.full((16,), -1.0)
    site.decide(average, counted=first)
    site.open(version=1)
    site.state.count_tokens(tokens)
    site.step(0.0)  # merges
    rest = 0.25 * 3 * EVERY
    assert torch.allclose(site.weights, start + 1.0 + rest, atol=1e-5)
    site.state.count_tokens(tokens)
    site.step(0.0)
    second = site.rounds.offered[-1]
    assert torch.allclose(second.values, torch.full((16,), -rest), atol=1e-5)
    assert second.own.step == 8 * EVERY + 2
    assert second.own.tokens == (8 * EVERY + 2) * tokens
    assert second.own.weight == (8 * EVERY + 2) * (tokens or 1)


def test_long_delta_counts_whole_where_the_merge_does_not_carry() -> None:
    site = Site(LocalSettings(every=EVERY, fragments=1, outer=OUTER, merge=0.5, codec="none"))
    site.state.begin()
    for step in range(8 * EVERY):
        if step == 8 * EVERY - 1:
            site.open()
        site.step(0.25)
    (delta,) = site.rounds.offered
    assert torch.allclose(delta.values, torch.full((16,), -0.25 * 8 * EVERY), atol=1e-5)
    assert (delta.own.step, delta.weight) == (8 * EVERY, 2 * EVERY)


def test_site_that_ends_asks_for_rounds_until_the_rest_has_counted() -> None:
    site = Site()
    site.state.begin()
    for _ in range(8 * EVERY):
        site.step(0.25)
    version = 0

    def due(fragment: int) -> None:
        nonlocal version
        if not site.rounds.next and not site.rounds.opened:
            if site.rounds.offered and len(site.rounds.offered) > version:
                site.decide(torch.zeros(16), counted=site.rounds.offered[-1], version=version)
                version += 1
            else:
                site.open(version=version)

    site.rounds.due = due  # type: ignore[method-assign]
    site.rounds.leave = lambda _: None  # type: ignore[attr-defined]
    site.rounds.close = lambda: None  # type: ignore[attr-defined]
    site.state.end()
    assert [delta.own.step for delta in site.rounds.offered] == [5 * EVERY, 8 * EVERY]


@pytest.mark.parametrize("shows_anchor", [True, False])
def test_site_that_waits_for_data_merges_what_is_decided_unless_it_shows_the_anchor(
    monkeypatch: pytest.MonkeyPatch, *, shows_anchor: bool
) -> None:
    monkeypatch.setattr(site_deals, "_MEET_S", 0.0)
    site = Site()
    site.rounds.data = DealtData(set="cat", number=1, sha256="0" * 64, sequence_length=8)
    start = site.weights
    site.state.begin()
    site.decide(torch.full((16,), -1.0), counted=None)
    site.state.shows_anchor = shows_anchor
    assert site.state.deals is not None
    with pytest.raises(site_deals.SiteLeft):
        site.state.deals.reach(1)
    merged = start + 1.0
    assert torch.allclose(site.weights, start if shows_anchor else merged)
    site.state.shows_anchor = False
    site.step(0.0)
    assert torch.allclose(site.weights, merged)


class OfTwo(SiteGroup):
    """As one of two ranks, of which the other one may have failed."""

    other_failed = False

    def all_reduce(self, numbers: Sequence[int]) -> list[int]:
        found = super().all_reduce(numbers)
        return [one + self.other_failed for one in found] if len(found) == 1 else found


@pytest.mark.parametrize("here", [True, False])
def test_what_is_wrong_at_one_rank_is_raised_at_all_of_the_site(*, here: bool) -> None:
    """The others would wait for it in the next round."""
    ranks = OfTwo()
    site = Site(facts=Facts(ranks=ranks))
    site.state.begin()
    if here:
        site.model.weight.requires_grad_(requires_grad=False)
    ranks.other_failed = not here
    with pytest.raises(InvalidArgumentError, match="weight" if here else "another rank of this site"):
        site.step(0.25)


def test_report_takes_the_numbers_of_a_run_that_has_had_no_round() -> None:
    site = Site()
    site.state.begin()
    numbers = site.state.numbers()
    assert None in numbers.values()
    (told,) = SchemaValidator(STATS).validate_python({"local_steps": [numbers]})["local_steps"]
    assert {name: told[name] for name in numbers} == numbers


def test_state_in_place_of_rounds_moves_the_weights_with_the_anchor() -> None:
    """Also where one of these rounds counted the site's frame: its steps are not counted twice."""
    site = Site()
    start = site.weights
    site.state.begin()
    site.step(0.25)
    site.open()
    site.step(0.25)
    (delta,) = site.rounds.offered
    others = torch.linspace(-1, 1, 16)
    own = replace(delta.own, wire_bytes=64)
    offer = Offer(
        fragment=0, version=0, attempt=0, frame="0" * 64, coded_bytes=0, exact_bytes=64, weight=2, step=2,
        squared_norm=1.0, lr=1.0, every=0,
    )  # fmt: skip
    site.rounds.next = {0: Decided(Settled(0, 0, None, offer, 7), None, own, start + others)}
    site.step(1.0)
    assert torch.allclose(site.weights, start + others + 1.0, atol=1e-6)
    assert site.state.numbers()["rounds_void"] == 0
    site.rounds.next = {0: Decided(Settled(0, 7, None, None, 9), None, None, start)}
    site.step(1.0)
    assert torch.allclose(site.weights, start + 2.0, atol=1e-6)
    site.open(version=9)
    site.step(0.0)
    assert site.rounds.offered[-1].weight == 3
    assert torch.allclose(site.rounds.offered[-1].values, torch.full((16,), -2.0), atol=1e-6)


def test_site_asks_for_a_round_when_its_own_schedule_says_so() -> None:
    site = Site()
    site.state.begin()
    for _ in range(EVERY - 1):
        site.step(0.1)
    assert not site.rounds.asked
    site.step(0.1)
    assert site.rounds.asked == [0]


def test_site_that_is_asked_to_end_offers_at_once_and_leaves_when_its_steps_have_counted() -> None:
    site = Site()
    site.state.begin()
    site.step(0.25)
    site.rounds.is_leaving = True
    site.step(0.25)
    assert site.rounds.asked == [0]
    site.open()
    site.step(0.25)
    (delta,) = site.rounds.offered
    assert delta.weight == 3
    assert not site.rounds.has_left
    site.decide(torch.zeros(16), counted=delta)
    site.step(0.25)
    assert site.rounds.has_left


def test_site_that_joins_does_not_offer_its_first_cycle_and_loses_none_of_it() -> None:
    """Its optimizer has no moments yet. Steps count on from those of the run."""
    site = Site(begin_step=100)
    site.state.begin()
    assert site.state.step == 100
    site.open()
    site.step(0.25)
    assert len(site.rounds.passed) == 1
    for _ in range(EVERY):
        site.step(0.25)
    site.open()
    site.step(0.25)
    (delta,) = site.rounds.offered
    assert delta.own.step == 106
    assert torch.allclose(delta.values, torch.full((16,), -1.5), atol=1e-6)


def test_weights_that_are_not_finite_are_not_offered_and_the_site_takes_the_anchor() -> None:
    site = Site()
    start = site.weights
    site.state.begin()
    site.open()
    site.step(float("nan"))
    assert not site.rounds.offered
    assert len(site.rounds.passed) == 1
    assert torch.equal(site.weights, start)
    assert site.state.numbers()["rounds_not_finite"] == 1


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (LocalSettings(every=EVERY, deterministic=True), "deterministic"),
        (LocalSettings(every=EVERY, overlap=0), "overlap"),
    ],
)
def test_settings_that_wait_for_other_sites_are_refused(settings: LocalSettings, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        Site(settings)


def test_anchor_of_all_sites_together_is_refused() -> None:
    site = Site()
    site.state.begin()
    with pytest.raises(InvalidArgumentError, match="together"):
        site.state.meet()


def test_slower_site_takes_the_step_of_the_run_from_what_counts() -> None:
    site = Site()
    site.state.begin()
    site.step(0.25)
    site.decide(torch.zeros(16), counted=None)  # it lists a frame of step EVERY
    site.step(0.25)
    assert (site.state.step, site.state.run_step) == (2, EVERY)
    site.step(0.25)
    assert site.state.run_step == EVERY + 1
