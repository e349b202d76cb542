"""The model dealt to fragments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.model.fragments import Tensor, automatic_count, make_fragments

tensor_lists = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 12), st.booleans(), st.booleans()), min_size=1, max_size=20
).map(
    lambda rows: [
        Tensor(f"t{index}", numel=rows_ * width, row_numel=width, table=table, exact=exact)
        for index, (rows_, width, table, exact) in enumerate(rows)
    ]
)


@given(tensors=tensor_lists, count=st.integers(1, 12))
def test_fragments_have_every_element_once_and_are_balanced(tensors: list[Tensor], count: int) -> None:
    try:
        fragments = make_fragments(tensors, count)
    except InvalidArgumentError:
        assert count > sum(1 for tensor in tensors if tensor.numel)
        return
    assert len(fragments) == count
    found = {tensor.name: [] for tensor in tensors}
    for fragment in fragments:
        assert fragment.ranges
        for part in fragment.ranges:
            found[part.name].append((part.start, part.stop))
    for tensor in tensors:
        end = 0
        for start, stop in sorted(found[tensor.name]):
            assert start == end
            assert stop > start
            assert stop % tensor.row_numel == 0
            end = stop
        assert end == tensor.numel
        assert len(found[tensor.name]) <= 1 or tensor.table
    largest_piece = max(part.numel for fragment in fragments for part in fragment.ranges)
    mean = sum(tensor.numel for tensor in tensors) / count
    assert max(fragment.numel for fragment in fragments) <= mean + largest_piece


@given(tensors=tensor_lists)
def test_fragment_has_its_exact_ranges_behind_the_coded_ones(tensors: list[Tensor]) -> None:
    if not any(tensor.numel for tensor in tensors):
        return
    (fragment,) = make_fragments(tensors, 1)
    for part, span in fragment.spans():
        assert (span.stop <= fragment.coded_elems) != part.exact
    assert fragment.spans()[-1][1].stop == fragment.numel


def test_table_larger_than_the_mean_is_cut_between_rows() -> None:
    tensors = [Tensor("table", 1000, row_numel=10, table=True), Tensor("a", 100), Tensor("b", 100)]
    fragments = make_fragments(tensors, 4)
    parts = [part for fragment in fragments for part in fragment.ranges if part.name == "table"]
    assert len(parts) == 4
    assert all(part.start % 10 == 0 and part.table for part in parts)
    assert max(fragment.numel for fragment in fragments) <= 350


@pytest.mark.parametrize("count", [0, -1, 3])
def test_number_of_fragments_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="fragments is"):
        make_fragments([Tensor("a", 4), Tensor("b", 4)], count)


def test_name_that_comes_twice_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="twice: a"):
        make_fragments([Tensor("a", 4), Tensor("a", 4)], 1)


@pytest.mark.parametrize(("numel", "expected"), [(1, 1), (1 << 20, 1), (3 << 20, 3), (1 << 30, 24)])
def test_automatic_number_has_four_mib_each_and_at_most_24(numel: int, expected: int) -> None:
    tensors = [Tensor(f"t{index}", numel // 32 + 1) for index in range(32)]
    assert automatic_count(tensors) == expected
