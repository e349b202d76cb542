"""However ranks lie in sites, every operation gives the same answer for every reduction and dtype, or refuses it in the
same words; and every Work has a Future."""

from __future__ import annotations

import pytest

from support import every_operation
from support.harness import Ranks, ranks_fixture

ranks = ranks_fixture(
    {
        "2": ["a", "a"],
        "1+1": ["a", "b"],
        "3": ["a", "a", "a"],
        "2+1": ["a", "a", "b"],
        "4": ["a", "a", "a", "a"],
        "2+2": ["a", "a", "b", "b"],
    }
)


@pytest.mark.parametrize("operation", every_operation.REDUCING)
def test_operation_that_reduces_gives_what_it_gives_in_any_layout(ranks: Ranks, operation: str) -> None:
    assert ranks.run(every_operation.reducing_differences, operation) == [[]] * ranks.size


@pytest.mark.parametrize("operation", every_operation.MOVING)
def test_operation_that_moves_gives_what_it_gives_in_any_layout(ranks: Ranks, operation: str) -> None:
    assert ranks.run(every_operation.moving_differences, operation) == [[]] * ranks.size


def test_barriers_sparse_sums_and_objects_give_what_they_give_in_any_layout(ranks: Ranks) -> None:
    assert ranks.run(every_operation.other_differences) == [[]] * ranks.size
