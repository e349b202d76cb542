"""What a site of an elastic run makes of rounds that count it, and of those that do not. The test decides them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch
from pydantic_core import SchemaValidator

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.records import line_of
from geocomm.data import site_deals
from geocomm.data.deal_records import DealtData, SiteDeal
from geocomm.elastic.journal.admission import difference
from geocomm.elastic.journal.entries import Genesis, Listed, Round
from geocomm.elastic.journal.member import Settled
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES
from geocomm.elastic.journal.messages import Beat, Model, Offer, Open, RankWelcome
from geocomm.group.planning.link_table import Links
from geocomm.observe.telemetry.report_rows import STATS
from geocomm.sync.local_steps.elastic.member_frames import Delta
from geocomm.sync.local_steps.elastic.member_rounds import Decided
from geocomm.sync.local_steps.elastic.member_site_rounds import MemberSiteRounds
from geocomm.sync.local_steps.local_steps import view_of
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.site_group import SiteGroup
from geocomm.sync.local_steps.outer.anchor import AnchoredFragment
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.outer.schedule import LineClock
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov

EVERY = 4
OUTER = Nesterov(lr=1.0, momentum=0.0)


@dataclass
class Facts:
    """A site of one rank."""

    site: str = "a"
    site_count: int | None = None
    ranks: SiteGroup = field(default_factory=SiteGroup)
    links: Links | None = None

    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return (self.site,)


class GivenRounds:
    """Rounds that the test opens and decides."""

    def __init__(self, begin_step: int = 0) -> None:
        self.line = LineClock()
        self.opened: dict[int, Open] = {}
        self.next: dict[int, Decided] = {}
        self.offered: list[Delta] = []
        self.passed: list[Open] = []
        self.asked: list[int] = []
        self.written: list[int] = []
        """Versions of states that go to the run folder."""
        self._begin_step = begin_step
        self.data: DealtData | None = None
        self.leader = "the leader"
        self.heard = 0
        """How often it was looked whether anything was dealt."""

    def take_dealt(self) -> list[SiteDeal]:
        self.heard += 1
        self.has_left = self.heard > 5
        return []

    def begin(self, digests: dict[int, str]) -> RankWelcome:
        return RankWelcome(
            site="a", run="0" * 32, versions={0: 0}, head=0, head_hash="0" * 64, states={}, every=EVERY,
            step=self._begin_step, data=self.data,
        )  # fmt: skip

    def go(self, held: dict[int, AnchoredFragment], head: int) -> None:
        """Nothing is replayed."""

    def decided(self) -> dict[int, Decided]:
        return dict(self.next)

    def to_begin(self) -> dict[int, Open]:
        return dict(self.opened)

    def due(self, fragment: int) -> None:
        self.asked.append(fragment)

    def offer(self, opened: Open, delta: Delta) -> None:
        self.opened.clear()
        self.offered.append(delta)

    def give_nothing(self, opened: Open) -> None:
        self.opened.clear()
        self.passed.append(opened)

    def applied(self, decided: Decided, held: AnchoredFragment) -> None:
        self.next.clear()

    def write_layout(self, layout: object) -> None:
        """Nobody takes a snapshot."""

    is_leaving = False
    has_left = False

    def say_leave(self) -> None:
        self.has_left = True

    def write_state(self, held: AnchoredFragment) -> None:
        self.written.append(held.version)

    def wants_state(self, fragment: int, version: int) -> bool:
        return False

    def tell(self, beat: Beat) -> None:
        """Nobody listens."""

    def kept_weights(self) -> list[tuple[int, torch.Tensor | None]]:
        return []


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


def terms_of(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Model:
    """What a site with this model says of it."""
    said: list[Model] = []
    given = LocalSettings(every=EVERY, fragments=1, codec="none")
    view, inner = view_of(model, Facts(), given), InnerOptimizers(optimizers)
    inner.check(view)

    def rounds_of(fragments: Sequence[Fragment], model: Model) -> GivenRounds:
        said.append(model)
        return GivenRounds()

    resolved = ResolvedSettings.of(given, view.tensors, None)
    MemberSiteRounds(view, inner, Facts(), resolved, rounds_of).begin()  # type: ignore[arg-type]
    return said[0]


def refused(model: Model, of_run: Model) -> str:
    """Why a run of sites with `of_run` does not take a site with `model` in; empty: it does."""
    begun = Genesis(
        index=0, prev="0" * 64, term=0, run="1" * 32, settings=of_run.settings, layout=of_run.layout,
        digests=("0" * 32,), every=of_run.every,
    )  # fmt: skip
    return difference(begun, model, "b")


def test_sites_compare_the_model_in_words_and_leave_learning_rates_to_the_rounds() -> None:
    model = torch.nn.Linear(4, 4, bias=False)
    terms = terms_of(model, [torch.optim.SGD(model.parameters(), lr=1.0)]).settings
    assert terms["model"] == "1 trained parameters with 16 elements"
    assert terms["optimizer weight_decay"] == "0"
    assert not [name for name in terms if name.endswith("lr")]


def layers(count: int, decay: Callable[[int], float]) -> Model:
    """A model with as many groups of parameters as layers, and a scheduler, which adds settings to each."""
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count)))
    groups = [
        {"params": layer.parameters(), "lr": 0.9**index, "weight_decay": decay(index)}
        for index, layer in enumerate(model)
    ]
    optimizer = torch.optim.AdamW(groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    return terms_of(model, [optimizer])


@pytest.mark.parametrize("count", [1, 5, 20, 400])
def test_optimizer_of_any_number_of_groups_is_compared_group_by_group(count: int) -> None:
    here, same = layers(count, lambda index: index % 2), layers(count, lambda index: index % 2)
    other = layers(count, lambda index: 0.5 if index == count - 1 else index % 2)
    assert refused(same, here) == ""
    assert "optimizer weight_decay: b has" in refused(other, here)
    assert len(line_of(here)) < MAX_LINE_BYTES // 8


def test_groups_with_settings_of_their_own_are_compared_however_many_and_long() -> None:
    def with_settings(last: int) -> Model:
        model = torch.nn.Linear(4, 4)
        own = {f"{index} {'of a long name' * 9}": index for index in range(200)} | {"z": last}
        return terms_of(model, [torch.optim.SGD([{"params": model.parameters(), **own}], lr=1.0)])

    assert refused(with_settings(1), with_settings(1)) == ""
    assert "other settings: b has" in refused(with_settings(2), with_settings(1))


def adapted(base: float, buffer: float) -> Model:
    """A frozen base with a buffer, and an adapter that is trained."""
    frozen, adapter = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    frozen.requires_grad_(requires_grad=False)
    torch.nn.init.constant_(frozen.weight, base)
    torch.nn.init.zeros_(frozen.bias)
    model = torch.nn.Sequential(frozen, adapter)
    model.register_buffer("scale", torch.tensor(buffer))
    return terms_of(model, [torch.optim.SGD(adapter.parameters(), lr=1.0)])


def test_frozen_weights_and_buffers_that_differ_are_refused_and_trained_ones_are_not() -> None:
    run = adapted(0.5, 1.0)
    assert refused(adapted(0.5, 1.0), run) == ""  # the adapters begin with other values
    for other in (adapted(0.25, 1.0), adapted(0.5, 2.0)):
        told = refused(other, run)
        assert told.startswith(
            "frozen parameters and buffers (load the same ones at all sites): b has 3 from 0.bias on"
        )


def test_slower_site_takes_the_step_of_the_run_from_what_counts() -> None:
    site = Site()
    site.state.begin()
    site.step(0.25)
    site.decide(torch.zeros(16), counted=None)  # it lists a frame of step EVERY
    site.step(0.25)
    assert (site.state.step, site.state.run_step) == (2, EVERY)
    site.step(0.25)
    assert site.state.run_step == EVERY + 1
