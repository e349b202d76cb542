"""Sums of sparse tensors over sites: Gloo's, the same on every rank, and an error where ranks do not fit together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks, gloo_group, meet, ranks_fixture

LAYOUTS = {
    "1+1": ["a", "b"],
    "2+1": ["a", "a", "b"],
    "1+1+1": ["a", "b", "c"],
    "3+2 shuffled": ["b", "a", "b", "a", "b"],
}
LIMIT = 50
ranks = ranks_fixture(LAYOUTS)

Case = Callable[[int], torch.Tensor]


def _drawn(rank: int, shape: tuple[int, ...], sparse_dims: int, entries: int, dtype: torch.dtype) -> torch.Tensor:
    """Uncoalesced: indices repeat and are in no order."""
    generator = torch.Generator().manual_seed(rank)
    rows = [torch.randint(0, size, (entries,), generator=generator) for size in shape[:sparse_dims]]
    values = 8 * torch.randn(entries, *shape[sparse_dims:], generator=generator, dtype=torch.float64)
    return torch.sparse_coo_tensor(torch.stack(rows), values.to(dtype), shape, check_invariants=True)


CASES: dict[str, Case] = {
    "embedding": lambda rank: _drawn(rank, (50, 7), 1, 40, torch.float32),
    "many entries": lambda rank: _drawn(rank, (20_000, 5), 1, 6_000 + 500 * rank, torch.float32),
    "scalars": lambda rank: _drawn(rank, (30, 11), 2, 90, torch.float64),
    "three sparse dimensions of four": lambda rank: _drawn(rank, (5, 6, 7, 3), 3, 60, torch.float32),
    "integers": lambda rank: _drawn(rank, (12, 4), 1, 9, torch.int64),
    "bfloat16": lambda rank: _drawn(rank, (12, 4), 1, 9, torch.bfloat16),
    "coalesced": lambda rank: _drawn(rank, (50, 7), 1, 40, torch.float32).coalesce(),
    "one entry of one value": lambda rank: _drawn(rank, (9,), 1, 1, torch.float32),
    "empty but for one rank": lambda rank: _drawn(rank, (50, 7), 1, 30 if rank == 1 else 0, torch.float32),
    "empty": lambda rank: _drawn(rank, (50, 7), 1, 0, torch.float32),
}


def _sums(name: str) -> list[np.ndarray]:
    """Indices and values of the sum over sites, then of Gloo's."""
    parts = []
    for group in (None, gloo_group()):
        tensor = CASES[name](dist.get_rank())
        dist.all_reduce(tensor, group=group)
        assert tensor.is_coalesced()
        values = tensor.values()  # numpy has no bfloat16; its values are float32's
        parts += [tensor.indices().numpy(), (values.float() if values.dtype == torch.bfloat16 else values).numpy()]
    return parts


@pytest.mark.parametrize("name", CASES)
def test_sparse_sum_over_sites_equals_gloo(ranks: Ranks, name: str) -> None:
    """Bit for bit where the sites' sums are in order of rank; everywhere the same on all ranks."""
    results = ranks.run(_sums, name)
    in_order = ranks.sites == sorted(ranks.sites) and ranks.sites.count("b") == 1
    for indices, values, expected_indices, expected in results:
        assert indices.tobytes() == expected_indices.tobytes()
        assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
        if in_order:
            assert values.tobytes() == expected.tobytes()
        else:
            allowed = (2e-2 if name == "bfloat16" else 1e-6) * np.abs(expected).max(initial=0)
            assert np.abs(values - expected).max(initial=0) <= allowed
    assert len({values.tobytes() for _, values, *_ in results}) == 1


def _sent_for_the_same_entries() -> int:
    """Bytes that this rank sends for a sum to which all ranks bring the same 1000 entries, of 28 bytes each."""
    import geocomm

    before = geocomm.stats()["raw_bytes_sent"]
    dist.all_reduce(_drawn(0, (1_000_000, 5), 1, 1000, torch.float32).coalesce())
    return geocomm.stats()["raw_bytes_sent"] - before


def test_site_sends_its_sum_once_to_each_other_site(ranks: Ranks) -> None:
    entries = _drawn(0, (1_000_000, 5), 1, 1000, torch.float32).coalesce().indices().shape[1]
    sent = ranks.run(_sent_for_the_same_entries)
    others = len(set(ranks.sites)) - 1
    for site in set(ranks.sites):
        bytes_sent = sum(sent[rank] for rank in range(ranks.size) if ranks.sites[rank] == site)
        summaries = 160 * sum(1 for other in ranks.sites if other != site)
        assert bytes_sent == 28 * entries * others + summaries


def test_sparse_sums_in_flight_beside_dense_ones_end_in_any_order(ranks: Ranks) -> None:
    assert ranks.run(_mixed) == [[]] * ranks.size


def _mixed() -> list[int]:
    ranks = range(dist.get_world_size())
    inputs = [_drawn(100 * i + dist.get_rank(), (40, 3), 1, 5 * i, torch.int64) for i in range(20)]
    dense = [torch.full((i + 1,), dist.get_rank(), dtype=torch.int64) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for pair in zip(inputs, dense, strict=True) for tensor in pair]
    for work in reversed(works[10:]):
        work.wait()
    futures = [work.get_future() for work in works[:10:2]]
    for i, future in enumerate(futures):
        assert future.wait()[0].is_coalesced(), i
    for work in works:
        work.wait()
    expected = [
        sum(_drawn(100 * i + rank, (40, 3), 1, 5 * i, torch.int64).to_dense() for rank in ranks) for i in range(20)
    ]
    wrong = [i for i, tensor in enumerate(inputs) if not torch.equal(tensor.to_dense(), expected[i])]
    return wrong + [i for i, tensor in enumerate(dense) if not torch.equal(tensor, torch.full_like(tensor, sum(ranks)))]


def _reduce_eye(op: dist.ReduceOp) -> None:
    dist.all_reduce(torch.eye(3).to_sparse(), op)


@pytest.mark.parametrize(
    "op", [dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT], ids=["avg", "max", "product"]
)
def test_sparse_reduction_other_than_sum_is_refused(ranks: Ranks, op: dist.ReduceOp) -> None:
    for outcome in ranks.outcomes(_reduce_eye, op):
        outcome.require("UnsupportedError")


def _broadcast() -> None:
    dist.broadcast(torch.eye(3).to_sparse(), 0)


def _reduce_rows() -> None:
    dist.all_reduce(torch.eye(3).to_sparse_csr())


@pytest.mark.parametrize("call", [_broadcast, _reduce_rows])
def test_other_collective_or_layout_is_refused(ranks: Ranks, call: Callable[[], None]) -> None:
    for outcome in ranks.outcomes(call):
        assert outcome.failure is not None


USUAL = _drawn(0, (50, 7), 1, 40, torch.float32)
UNFIT = {
    "shape": _drawn(0, (51, 7), 1, 40, torch.float32),
    "dense shape": _drawn(0, (50, 8), 1, 40, torch.float32),
    "dtype": _drawn(0, (50, 7), 1, 40, torch.float64),
    "sparse dimensions": _drawn(0, (50, 7), 2, 40, torch.float32),
    "dimensions": _drawn(0, (50,), 1, 40, torch.float32),
    "too many dimensions": torch.ones([1] * 17).to_sparse(),
}


def _reduce_usual() -> None:
    dist.all_reduce(USUAL.clone())


def _reduce_unfit(rank: int, name: str) -> None:
    dist.all_reduce((UNFIT[name] if dist.get_rank() == rank else USUAL).clone())


@pytest.mark.parametrize(
    ("unfit", "name"),
    [
        *[(0, name) for name in ("shape", "dtype", "sparse dimensions")],
        *[(2, name) for name in ("shape", "dense shape", "dtype", "dimensions", "too many dimensions")],
    ],
)
def test_ranks_that_disagree_get_an_error_on_every_rank(unfit: int, name: str) -> None:
    """Rank 0 against its own site, rank 2 against the other."""
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        for outcome in ranks.outcomes(_reduce_unfit, unfit, name):
            assert {"InvalidArgumentError", "UnsupportedError"} & set(outcome.require("DistBackendError").kinds)


def _reduce_halves() -> None:
    dist.all_reduce(_drawn(0, (50, 7), 1, 40, torch.float16))


def test_dtype_that_torch_does_not_add_is_refused_and_the_group_lives() -> None:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        for outcome in ranks.outcomes(_reduce_halves):
            assert "UnsupportedError" in outcome.require("NotImplementedError").kinds
        ranks.run(_reduce_usual)


def _marked_coalesced(indices: list[int]) -> torch.Tensor:
    """Of USUAL's shape, as torch takes it from those who say that they have checked."""
    values = torch.ones(len(indices), 7)
    return torch.sparse_coo_tensor([indices], values, (50, 7), is_coalesced=True, check_invariants=False)


FORGED = {
    "index beyond the shape": _marked_coalesced([3, 50]),
    "huge index": _marked_coalesced([3, 1 << 60]),
    "negative index": _marked_coalesced([-1, 3]),
    "more entries than the shape has": _marked_coalesced([*range(50), 49]),
}


def _reduce_forged(rank: int, name: str) -> None:
    tensor = (FORGED[name] if dist.get_rank() == rank else USUAL).clone()
    try:
        dist.all_reduce(tensor)
    finally:
        if dist.get_rank() != rank:
            assert torch.equal(tensor.to_dense(), USUAL.to_dense())


@pytest.mark.parametrize("name", FORGED)
def test_rows_from_another_site_that_cannot_be_are_an_error_and_go_nowhere(name: str) -> None:
    """Of two ranks, which each get a part of the rows, one sees it, and tells the other."""
    with Ranks(["a", "b", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        _, *victims = ranks.outcomes(_reduce_forged, 0, name)
        for victim in victims:
            assert "sparse tensor with" in victim.require("CorruptDataError").message


def _reduce_dense(rank: int) -> None:
    dist.all_reduce(USUAL.to_dense() if dist.get_rank() == rank else USUAL.clone())


def test_dense_tensor_at_one_site_is_an_error_on_every_rank() -> None:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        for outcome in ranks.outcomes(_reduce_dense, 2):
            assert "sparse_all_reduce" in outcome.require("InvalidArgumentError").message


@pytest.mark.parametrize("lost", [1, 2], ids=["of the own site", "of the other site"])
def test_rank_that_dies_is_named_by_every_survivor(lost: int) -> None:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        ranks.run(_reduce_usual)
        survivors = [rank for rank in range(3) if rank != lost]
        ranks.begin(_reduce_usual, ranks=survivors)
        time.sleep(0.2)
        ranks.signal(lost, signal.SIGKILL)
        for outcome in ranks.finish(ranks=survivors):
            assert f"rank {lost} (site " in outcome.require("PeerLostError").message


def test_rank_that_does_not_call_times_out_and_leaves_the_inputs() -> None:
    with Ranks(["a", "b", "b"], time_limit=LIMIT) as ranks:
        ranks.init()
        ranks.set_timeout(3)
        for outcome in ranks.outcomes(_reduce_and_look, ranks=[0, 1]):
            assert outcome.value is True


def _reduce_and_look() -> bool:
    tensor = USUAL.clone()
    with pytest.raises(dist.DistNetworkError):
        dist.all_reduce(tensor)
    return not tensor.is_coalesced() and torch.equal(tensor.to_dense(), USUAL.to_dense())


def _abort_in_flight() -> None:
    work = dist.all_reduce(USUAL.clone(), async_op=True)
    meet("in flight", 2)
    time.sleep(0.2)
    dist.group.WORLD._get_backend(torch.device("cpu")).abort()
    work.wait()


def test_abort_ends_a_sum_in_flight() -> None:
    with Ranks(["a", "a", "b"], time_limit=LIMIT) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        for outcome in ranks.outcomes(_abort_in_flight, ranks=[0, 1]):
            outcome.require("AbortedError")
