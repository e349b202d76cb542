"""When rounds begin."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.outer.schedule import Schedule


def begin_step(schedule: Schedule, number: int) -> int:
    """The step after which round `number` begins."""
    return next(step for step in itertools.count(1) if schedule.begun_by(step) > number)


@given(every=st.integers(1, 60), fragments=st.integers(1, 30), data=st.data())
def test_every_fragment_is_due_once_in_every_steps_and_rounds_are_in_order(
    every: int, fragments: int, data: st.DataObject
) -> None:
    schedule = Schedule(every, fragments, data.draw(st.integers(0, every)))
    begins = [begin_step(schedule, number) for number in range(4 * fragments)]
    assert begins == sorted(begins)
    assert begins[0] >= 1
    assert begins[fragments - 1] == every
    for number, step in enumerate(begins):
        assert schedule.fragment_of(number) == number % fragments
        assert begin_step(schedule, number + fragments) == step + every
    gaps = [later - earlier for earlier, later in itertools.pairwise(begins)]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1
    assert max(map(begins.count, begins)) == schedule.most_in_a_step


@given(every=st.integers(1, 60), fragments=st.integers(1, 30), cycles=st.integers(0, 5), then=st.integers(1, 60))
def test_renewed_schedule_goes_on_where_the_old_cycle_ends(every: int, fragments: int, cycles: int, then: int) -> None:
    old = Schedule(every, fragments, 0).renewed(fragments, every)  # as after a change to what it was
    assert [begin_step(old, number) for number in range(fragments, 3 * fragments)] == [
        begin_step(Schedule(every, fragments, 0), number) for number in range(fragments, 3 * fragments)
    ]
    first = (1 + cycles) * fragments
    new = old.renewed(first, then)
    end = (1 + cycles) * every
    assert begin_step(new, first + fragments - 1) == end + then
    assert begin_step(new, first) > end
    assert new.begun_by(end) == first
    assert new.begun_by(end + then) == first + fragments
    assert new.fragment_of(first) == 0


@pytest.mark.parametrize("overlap", [6, -1])
def test_overlap_that_does_not_fit_is_refused(overlap: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^overlap is {overlap}; it must be from 0 to every .5"):
        Schedule(5, 1, overlap)
