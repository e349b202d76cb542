"""The roll call over a real store: who is heard, who is missed, what differs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from geocomm.group.membership.roll_call import (
    Absent,
    FirstFailed,
    Record,
    decided_by_first,
    differences,
    exchange,
    publish,
)

LONG = timedelta(seconds=20)


def all_exchange(store: dist.Store, name: str, records: list[Record]) -> list[list[Record]]:
    """What each rank reads."""
    size = len(records)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: exchange(store, name, rank, size, records[rank], LONG), range(size)))


def test_every_rank_reads_the_records_of_all_in_rank_order() -> None:
    records = [{"rank": rank, "colours": ["red", rank]} for rank in range(3)]
    assert all_exchange(dist.HashStore(), "one", records) == [records] * 3


def test_roll_calls_of_other_names_do_not_hear_each_other() -> None:
    store = dist.HashStore()
    first, second = [{"n": 1}, {"n": 2}], [{"n": 3}, {"n": 4}]
    assert all_exchange(store, "first", first) == [first] * 2
    assert all_exchange(store, "second", second) == [second] * 2


# spec operations 1.1: "A rank MUST read again until all views are equal"
def test_records_of_ranks_that_are_gone_are_not_taken_for_those_of_now() -> None:
    store = dist.HashStore()
    all_exchange(store, "one", [{"try": 1}, {"try": 1}])
    assert all_exchange(store, "one", [{"try": 2}, {"try": 2}]) == [[{"try": 2}] * 2] * 2


def test_ranks_that_do_not_come_are_absent() -> None:
    store = dist.HashStore()
    publish(store, "one", 2, {})
    with pytest.raises(Absent) as caught:
        exchange(store, "one", 0, 4, {}, timedelta(milliseconds=50))
    assert caught.value.ranks == [1, 3]


def test_rank_with_an_error_is_heard_though_it_takes_no_further_part() -> None:
    store = dist.HashStore()
    publish(store, "one", 1, {"error": "no disk"})
    assert exchange(store, "one", 0, 2, {"error": None}, LONG) == [{"error": None}, {"error": "no disk"}]


def test_what_the_first_rank_decides_is_followed_by_all() -> None:
    store = dist.HashStore()

    def take_part(rank: int) -> Record:
        return decided_by_first(store, "verdict", rank, lambda: {"by": rank})

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(take_part, range(3))) == [{"by": 0}] * 3


def test_what_the_first_rank_cannot_decide_fails_on_all() -> None:
    store = dist.HashStore()

    def decide() -> Record:
        raise ZeroDivisionError("nothing to divide by")

    with pytest.raises(ZeroDivisionError):
        decided_by_first(store, "verdict", 0, decide)
    with pytest.raises(FirstFailed, match="ZeroDivisionError: nothing to divide by"):
        decided_by_first(store, "verdict", 1, decide)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], []),
        ([{"a": 1}], []),
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], []),
        ([{"a": 1}, {"a": 2}, {"a": 1}], [("a", [(1, [0, 2]), (2, [1])])]),
        ([{"a": 1}, {}], [("a", [(1, [0]), (None, [1])])]),
        ([{"a": {"x": 1}, "b": 0}, {"a": {"x": 2}, "b": 0}], [("a", [({"x": 1}, [0]), ({"x": 2}, [1])])]),
    ],
)
def test_differences_say_who_has_what(records: list[Record], expected: list[tuple[str, Any]]) -> None:
    assert [(difference.name, difference.sides) for difference in differences(records)] == expected


def test_usual_value_is_what_most_have() -> None:
    (difference,) = differences([{"a": 1}, {"a": 2}, {"a": 2}])
    assert difference.usual == 2
