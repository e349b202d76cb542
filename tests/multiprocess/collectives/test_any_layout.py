"""However ranks lie in sites, every operation gives the same answer for every reduction and dtype, or refuses it in the
same words; and every Work has a Future."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import every_operation
from support.harness import Ranks, joined, links_of_two_regions

LAYOUTS = {
    "2": "aa",
    "1+1": "ab",
    "3": "aaa",
    "2+1": "aab",
    "4": "aaaa",
    "2+2": "aabb",
    "1+1+1+1 by regions": "abcd",
}


@pytest.fixture(scope="module", params=LAYOUTS)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    environment = {}
    if "regions" in request.param:
        # No operation is so small that another way would be faster.
        folder = tmp_path_factory.mktemp("links")
        environment["GEOCOMM_LINKS"] = links_of_two_regions(folder, near_bps=1e12, far_bps=1e3, near_s=0.0, far_s=0.0)
    with joined(list(LAYOUTS[request.param]), environment=environment) as made:
        yield made


@pytest.mark.parametrize("operation", every_operation.REDUCING)
def test_operation_that_reduces_gives_what_it_gives_in_any_layout(ranks: Ranks, operation: str) -> None:
    assert ranks.run(every_operation.reducing_differences, operation) == [[]] * ranks.size


@pytest.mark.parametrize("operation", every_operation.MOVING)
def test_operation_that_moves_gives_what_it_gives_in_any_layout(ranks: Ranks, operation: str) -> None:
    assert ranks.run(every_operation.moving_differences, operation) == [[]] * ranks.size


def test_barriers_sparse_sums_and_objects_give_what_they_give_in_any_layout(ranks: Ranks) -> None:
    assert ranks.run(every_operation.other_differences) == [[]] * ranks.size
