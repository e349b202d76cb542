"""Values kept by parameter name across layouts of buckets: nothing is lost, nothing counts twice."""

from __future__ import annotations

import random

import pytest
import torch

from geocomm.sync.gradients.named_values import NamedValues, Pieces, Slice

NUMEL = {"a": 7, "b": 1, "c": 20, "d": 13, "e": 5}


def total_of(pieces: Pieces) -> dict[str, torch.Tensor]:
    total = {name: torch.zeros(numel) for name, numel in NUMEL.items()}
    for name, held in pieces.items():
        for start, values in held:
            total[name][start : start + values.numel()] += values
    return total


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in NUMEL)


def random_layout(rng: random.Random, exact: bool) -> list[tuple[Slice, ...]]:
    """All parameters, in some order, in some buckets."""
    names = rng.sample(list(NUMEL), len(NUMEL))
    buckets: list[tuple[Slice, ...]] = []
    while names:
        mine, names = names[: (count := rng.randint(1, len(names)))], names[count:]
        offset, parts = 0, []
        for name in mine:
            parts.append(Slice(name, offset, NUMEL[name], exact and name in ("b", "e")))
            offset += NUMEL[name]
        buckets.append(tuple(parts))
    return buckets


def random_span(rng: random.Random, layout: tuple[Slice, ...]) -> tuple[int, int]:
    start = rng.randint(0, sum(part.numel for part in layout))
    return start, rng.randint(start, sum(part.numel for part in layout))


@pytest.mark.parametrize("seed", range(30))
def test_steps_over_changing_layouts_conserve_what_goes_in(seed: int) -> None:
    """Whole numbers, so that sums are exact: what is held and what came out is what was put in."""
    rng = random.Random(seed)
    store = NamedValues()
    went_in = {name: torch.zeros(numel) for name, numel in NUMEL.items()}
    for step in range(8):
        if step % 3 == 0:
            buckets = [(layout, random_span(rng, layout)) for layout in random_layout(rng, exact=step > 3)]
        undone = rng.random() < 0.3
        before = total_of(store.pieces())
        store.begin_step()
        for index, (layout, (start, stop)) in enumerate(buckets):
            old, values = store.take(index, layout, (start, stop))
            values.copy_(old)
            for at, piece in store.leftovers(index):
                for part in layout:
                    if part.offset <= at < part.offset + part.numel and not undone:
                        went_in[part.name][at - part.offset : at - part.offset + piece.numel()] -= piece
            for part in layout:
                begin, end = max(start, part.offset), min(stop, part.offset + part.numel)
                if begin < end and not part.exact:
                    added = torch.randint(-9, 9, (end - begin,)).float()
                    values[begin - start : end - start] += added
                    if not undone:
                        went_in[part.name][begin - part.offset : end - part.offset] += added
        if undone:
            store.undo_step()
            assert same(total_of(store.pieces()), before)
        assert same(total_of(store.pieces()), went_in)


def test_values_of_a_layout_that_stays_change_places_between_two_memories() -> None:
    store = NamedValues()
    layout = (Slice("a", 0, 7, False),)
    store.begin_step()
    first, second = store.take(0, layout, (2, 7))
    second.fill_(3.0)
    store.begin_step()
    old, new = store.take(0, layout, (2, 7))
    assert torch.equal(old, torch.full((5,), 3.0))
    assert (old.data_ptr(), new.data_ptr()) == (second.data_ptr(), first.data_ptr())
    assert list(store.leftovers(0)) == []


def test_loaded_pieces_go_to_the_span_and_the_rest_is_left_over() -> None:
    store = NamedValues()
    store.load({"c": [(5, torch.arange(10.0))], "b": [(0, torch.ones(1))]})
    store.begin_step()
    layout = (Slice("b", 0, 1, True), Slice("c", 1, 20, False))
    values, _ = store.take(0, layout, (8, 12))  # of c: 7 to 11
    assert torch.equal(values, torch.tensor([2.0, 3.0, 4.0, 5.0]))
    left = sorted((at, piece.tolist()) for at, piece in store.leftovers(0))
    assert left == [(0, [1.0]), (6, [0.0, 1.0]), (12, [6.0, 7.0, 8.0, 9.0])]


def test_a_step_on_a_device_reads_nothing_from_it() -> None:
    """On the device whose values nobody can read: also where what was loaded is placed, and buckets change."""
    meta = torch.device("meta")
    store = NamedValues()
    store.load({"c": [(5, torch.arange(10.0))], "b": [(0, torch.ones(1))]})
    layouts = [(Slice("b", 0, 1, True), Slice("c", 1, 20, False)), (Slice("c", 0, 20, False), Slice("b", 20, 1, False))]
    for step in range(4):
        store.begin_step()
        kept, new = store.take(0, layouts[step // 2], (8, 12), meta)
        assert (kept.device, new.device) == (meta, meta)
        assert all(values.device == meta for _, values in store.leftovers(0))
        if step == 1:
            store.undo_step()
        store.scale(0.5)


def test_scale_reaches_everything_also_what_a_step_may_give_back() -> None:
    store = NamedValues()
    store.load({"a": [(0, torch.ones(7))], "d": [(0, torch.ones(13))]})
    store.begin_step()
    store.take(0, (Slice("a", 0, 7, False),), (0, 3))
    list(store.leftovers(0))
    store.scale(2.0)
    store.undo_step()
    total = total_of(store.pieces())
    assert torch.equal(total["a"], torch.full((7,), 2.0))
    assert torch.equal(total["d"], torch.full((13,), 2.0))
