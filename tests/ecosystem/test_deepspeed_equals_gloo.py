"""DeepSpeed over two sites, unmodified, learns what it learns over Gloo."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("deepspeed")

import deepspeed_cases as cases
from worlds import Worlds, assert_equal

pytestmark = pytest.mark.slow

OF_TWO_RANKS = {
    "ZeRO 0": functools.partial(cases.zero, 0),
    "ZeRO 1": functools.partial(cases.zero, 1),
    "ZeRO 2": functools.partial(cases.zero, 2),
    "ZeRO 3": functools.partial(cases.zero, 3),
    "ZeRO 2 offload": functools.partial(cases.zero, 2, offload_optimizer={"device": "cpu"}),
    "ZeRO 3 offload": functools.partial(
        cases.zero, 3, offload_optimizer={"device": "cpu"}, offload_param={"device": "cpu"}
    ),
}
# Sums of four ranks, which Gloo adds up in another order.
ROUNDED = {
    "ZeRO 1": functools.partial(cases.zero, 1),
    "ZeRO 3": functools.partial(cases.zero, 3),
    "ZeRO 3 partitions inside a site (hpZ)": functools.partial(cases.zero, 3, zero_hpz_partition_size=2),
    "experts inside a site": cases.experts_of_a_site,
}


@pytest.mark.parametrize("name", OF_TWO_RANKS)
def test_deepspeed_over_two_ranks_equals_gloo_bit_for_bit(two: Worlds, name: str) -> None:
    assert_equal(*two.both(OF_TWO_RANKS[name]))


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a", "b", "b"]], ids=["1+1", "2+2"])
def test_deepspeed_pipeline_over_sites_equals_gloo_bit_for_bit(sites: list[str]) -> None:
    with Worlds(sites) as worlds:  # DeepSpeed keeps the grid of a pipeline for all later engines of the process
        assert_equal(*worlds.both(cases.pipeline))


@pytest.mark.parametrize("name", ROUNDED)
def test_deepspeed_over_four_ranks_equals_gloo_but_for_rounding(four: Worlds, name: str) -> None:
    over_sites, over_gloo = four.both(ROUNDED[name])
    for here, there in zip(over_sites, over_gloo, strict=True):
        assert here.losses == pytest.approx(there.losses, rel=1e-4)
