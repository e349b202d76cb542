"""Sites in one process: who waits for whom, and what becomes of one that fails."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, PeerLostError, ReplicaMismatchError
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.outer.rounds import Coding, Rounds, SiteOffer, Terms

FRAGMENT = Fragment(0, (Range("a", 0, 256), Range("b", 0, 3, exact=True)))
INT4 = Coding("int4", 1.0, "mean")


def offer(number: int, weight: int = 1) -> SiteOffer:
    return SiteOffer(number, 0, number, number, weight)


def delta_of(site: str) -> torch.Tensor:
    return torch.randn(FRAGMENT.numel, generator=torch.Generator().manual_seed(ord(site)))


def test_results_are_in_the_order_of_the_names() -> None:
    assert SimulatedSites(["b", "a", "c"]).run(lambda rounds: rounds.site) == ["b", "a", "c"]


@pytest.mark.parametrize("names", [[], ["a", "a"]])
def test_names_that_cannot_be_are_refused(names: list[str]) -> None:
    with pytest.raises(InvalidArgumentError, match="sites are"):
        SimulatedSites(names)


def test_several_rounds_may_be_under_way_and_exact_elements_lose_nothing() -> None:
    def run(rounds: Rounds) -> list[torch.Tensor]:
        rounds.agree(Terms({}, {}, {}))
        under_way = []
        for number in range(3):
            under_way.append(rounds.reduce(offer(number), FRAGMENT, delta_of(rounds.site), torch.zeros(256), INT4))
        averages = [one.wait().values for one in under_way]
        for number in range(3):
            rounds.commit(number, "same")
        assert all(values is not None for values in averages)
        return [values for values in averages if values is not None]

    one, other = SimulatedSites(["x", "y"]).run(run)
    expected = (delta_of("x") + delta_of("y")) / 2
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine, theirs)
        torch.testing.assert_close(mine[256:], expected[256:])
        assert 0 < (mine[:256] - expected[:256]).norm() < 0.2 * expected.norm()


def _averages(coding: Coding) -> list[torch.Tensor]:
    def run(rounds: Rounds) -> torch.Tensor:
        values = rounds.reduce(offer(0), FRAGMENT, delta_of(rounds.site), torch.zeros(256), coding).wait().values
        assert values is not None
        return values

    return SimulatedSites(["x", "y", "z"]).run(run)


def test_aggregator_averages_as_all_do_and_compresses_the_average_once_more() -> None:
    exact = Coding("none", 1.0, "mean")
    for mine, theirs in zip(_averages(replace(exact, reduce="aggregator")), _averages(exact), strict=True):
        assert torch.equal(mine, theirs)
    expected = _averages(INT4)[0]
    mine, *others = _averages(replace(INT4, reduce="aggregator"))
    assert all(torch.equal(mine, theirs) for theirs in others)
    assert torch.equal(mine[256:], expected[256:])
    assert 0 < (mine[:256] - expected[:256]).norm() < 0.2 * expected.norm()


def test_sites_take_turns_to_aggregate_over_the_rounds() -> None:
    coding = replace(INT4, reduce="aggregator")
    assert [coding.aggregator(["x", "y"], number) for number in range(3)] == ["x", "y", "x"]
    assert coding.of_last.aggregator(["x", "y"], 1) == "y"
    assert INT4.aggregator(["x", "y"], 1) is None


def test_each_sites_averages_are_looked_at_by_each_other_site_now_and_then() -> None:
    sites = "wxyz"
    coding = replace(INT4, reduce="aggregator")
    checks = [(coding.aggregator(sites, number), coding.checker(sites, number)) for number in range(4000)]
    found = Counter(pair for pair in checks if pair[1] is not None)
    assert sum(found.values()) == pytest.approx(4000 / 32, rel=0.3)
    assert found.keys() == {(one, other) for one in sites for other in sites if one != other}
    assert all(INT4.checker(sites, number) is None for number in range(100))
    in_regions = replace(coding, regions=(("w", "x"), ("y", "z")))
    assert all(in_regions.checker(sites, number) is None for number in range(100))


def test_residual_is_what_the_codec_lost_and_the_old_one_is_not_touched() -> None:
    def run(rounds: Rounds) -> None:
        before = torch.full((256,), 0.01)
        average = rounds.reduce(offer(0), FRAGMENT, delta_of("x"), before, INT4).wait()
        assert before.eq(0.01).all()
        assert average.values is not None
        assert average.residual is not None
        torch.testing.assert_close(average.values[:256] + average.residual, delta_of("x")[:256] + before)

    SimulatedSites(["x"]).run(run)


def test_site_of_weight_zero_keeps_its_residual() -> None:
    def run(rounds: Rounds) -> None:
        average = rounds.reduce(offer(0, weight=0), FRAGMENT, torch.zeros(259), torch.full((256,), 0.5), INT4).wait()
        assert average.values is None
        assert average.residual is not None
        assert average.residual.eq(0.5).all()

    SimulatedSites(["x"]).run(run)


def test_first_failure_is_raised_and_the_others_do_not_hang() -> None:
    def run(rounds: Rounds) -> None:
        if rounds.site == "b":
            raise ZeroDivisionError
        with pytest.raises(PeerLostError, match="'b'"):
            rounds.agree(Terms({}, {}, {}))

    with pytest.raises(ZeroDivisionError):
        SimulatedSites(["a", "b"]).run(run)


def test_sites_that_wait_for_different_things_run_into_the_deadline() -> None:
    def run(rounds: Rounds) -> None:
        if rounds.site == "a":
            rounds.agree(Terms({}, {}, {}))
        rounds.reduce(offer(0), FRAGMENT, delta_of("a"), torch.zeros(256), INT4).wait()

    with pytest.raises(OperationTimeoutError, match="nothing from sites"):
        SimulatedSites(["a", "b"], timeout_s=0.1).run(run)


def test_states_that_differ_after_a_round_are_refused() -> None:
    def run(rounds: Rounds) -> None:
        rounds.reduce(offer(0), FRAGMENT, delta_of("a"), torch.zeros(256), INT4).wait()
        rounds.commit(0, f"digest of {rounds.site}")

    with pytest.raises(ReplicaMismatchError, match="round 0"):
        SimulatedSites(["a", "b"]).run(run)
