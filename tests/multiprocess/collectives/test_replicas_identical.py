"""After an all-reduce every rank holds the same bits, whatever the codec and the shape of the sites."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks, hash_of, ranks_fixture

LAYOUTS = {
    "1": ["a", "a"],
    "2+1": ["a", "b", "a"],
    "1+1+1": ["a", "b", "c"],
    "1+2+1+1": pytest.param(["a", "b", "b", "c", "d"], marks=pytest.mark.slow),
    "1+1+2+1+1": pytest.param(["a", "b", "c", "d", "e", "c"], marks=pytest.mark.slow),
}
# Codec and the error that it may make, relative to the largest input, with up to five sites (two roundings).
CODECS = {
    "none": 1e-6,
    "fp16": 3e-3,
    "bf16": 3e-2,
    "int8": 3e-2,
    "int8:round=stochastic": 6e-2,
    "int4": 1.0,
    "int4:round=nearest": 0.6,
    "lossless": 1e-6,
    "int8+huffman": 3e-2,
    "bf16+zstd": 3e-2,
    "balanced": 1.5,
    "small": 3.0,
    # What these clip is of the order of the largest input.
    "bit2": 3.0,
    "bit1": 3.0,
}
_groups: dict[str, dist.ProcessGroup] = {}  # of the rank process


ranks = ranks_fixture(LAYOUTS)


def _reduce(codec: str, dtype: torch.dtype, elements: int) -> tuple[list[str], float]:
    """Hashes of sum and mean, and the worst error of the sum relative to the largest input."""
    import geocomm

    if codec not in _groups:
        _groups[codec] = dist.new_group(pg_options=geocomm.Options(codec=codec, min_compress_bytes=1024))
    size = dist.get_world_size()
    inputs = [
        torch.randn(elements, generator=torch.Generator().manual_seed(rank), dtype=torch.float64).to(dtype)
        for rank in range(size)
    ]
    total, mean = inputs[dist.get_rank()].clone(), inputs[dist.get_rank()].clone()
    dist.all_reduce(total, group=_groups[codec])
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=_groups[codec])
    exact = torch.stack([t.double() for t in inputs]).sum(0)
    largest = max(t.double().abs().max().item() for t in inputs)
    return [hash_of(total), hash_of(mean)], (total.double() - exact).abs().max().item() / largest


# spec operations 5.1: "All receivers MUST end with the same bits."
@pytest.mark.parametrize("codec", CODECS)
def test_all_reduce_with_any_codec_leaves_replicas_identical(ranks: Ranks, codec: str) -> None:
    sites = len(set(ranks.sites))
    for dtype, elements in ((torch.float32, 1_000), (torch.float32, 300_017), (torch.bfloat16, 300_017)):
        results = ranks.run(_reduce, codec, dtype, elements)
        assert all(hashes == results[0][0] for hashes, _ in results)
        own_rounding = {torch.float32: 1e-6, torch.bfloat16: 2e-2}[dtype] * ranks.size
        bound = own_rounding if sites == 1 else CODECS[codec] * sites + own_rounding
        assert results[0][1] <= bound


def _many_at_once() -> list[str]:
    import geocomm

    group = dist.new_group(pg_options=geocomm.Options(codec="int8", min_compress_bytes=1024))
    tensors = [torch.randn(20_000 + 1000 * i, generator=torch.Generator().manual_seed(i)) for i in range(12)]
    works = [dist.all_reduce(t.mul_(dist.get_rank() + 1), group=group, async_op=True) for t in tensors]
    for work in works:
        work.wait()
    return [hash_of(t) for t in tensors]


def test_many_compressed_all_reduces_in_flight_leave_replicas_identical(ranks: Ranks) -> None:
    results = ranks.run(_many_at_once)
    assert all(hashes == results[0] for hashes in results)


def _wire_bytes(codec: str) -> tuple[int, int]:
    import geocomm

    before = geocomm.stats()
    group = dist.new_group(pg_options=geocomm.Options(codec=codec))
    dist.all_reduce(torch.randn(1_000_000), group=group)
    dist.barrier(group)
    after = geocomm.stats()
    return (after["raw_bytes_sent"] - before["raw_bytes_sent"], after["wire_bytes_sent"] - before["wire_bytes_sent"])


@pytest.mark.parametrize(("codec", "ratio"), [("none", 1.0), ("bf16", 2.0), ("int8", 3.9), ("int4", 7.5)])
def test_codec_of_a_group_decides_the_bytes_on_the_wire(ranks: Ranks, codec: str, ratio: float) -> None:
    counted = ranks.run(_wire_bytes, codec)
    raw, wire = sum(c[0] for c in counted), sum(c[1] for c in counted)
    if len(set(ranks.sites)) == 1:
        assert raw == wire == 0
    else:
        assert raw / wire == pytest.approx(ratio, rel=0.05)


def _sums_of_subnormals(codec: str, elements: int, op: str) -> tuple[list[int], bool]:
    """The bits of the result, and whether this thread flushes subnormals before and after; rank 1 does."""
    import geocomm

    flushes = torch.set_flush_denormal(dist.get_rank() == 1)
    if codec not in _groups:
        _groups[codec] = dist.new_group(pg_options=geocomm.Options(codec=codec, min_compress_bytes=1024))
    generator = torch.Generator().manual_seed(dist.get_rank())
    # By bits, since this thread's own arithmetic may flush: exponents from subnormal to a few above.
    bits = torch.randint(0, 1 << 25, (elements,), generator=generator, dtype=torch.int32)
    bits[::7] >>= 5  # whose sums are subnormal, too
    values = bits.view(torch.float32).clone()
    dist.all_reduce(values, getattr(dist.ReduceOp, op), group=_groups[codec])
    product = torch.tensor([2.0**-126]) * 0.5
    kept_setting = (product.view(torch.int32).item() == 0) == (dist.get_rank() == 1)
    torch.set_flush_denormal(False)
    return values.view(torch.int32).tolist(), flushes and kept_setting


@pytest.mark.parametrize("op", ["SUM", "AVG"])
@pytest.mark.parametrize("elements", [3_000, 300_017])
@pytest.mark.parametrize("codec", ["none", "int8"])
def test_rank_that_flushes_subnormals_gets_the_bits_of_the_others(
    ranks: Ranks, codec: str, elements: int, op: str
) -> None:
    """The smaller size is reduced on the thread of the caller, the larger one in the codec pool."""
    if op == "AVG" and len(set(ranks.sites)) == 1:
        pytest.skip("inside one site it is Gloo that divides, on each rank by itself")
    results = ranks.run(_sums_of_subnormals, codec, elements, op)
    assert all(kept_setting for _, kept_setting in results)
    assert all(values == results[0][0] for values, _ in results)
    if codec == "none":  # int8's scales are normal, and sums are multiples of them
        assert any(0 < bits < 1 << 23 for bits in results[0][0]), "no subnormal among the results"
