"""A gradient that overflows at one rank: every rank sees it, in the same bits, whatever the codec."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from geocomm.codecs.codec_facts import FACTS
from support.harness import Ranks, hash_of, ranks_fixture

ELEMENTS = 60_013
POISONS = (math.inf, -math.inf, math.nan)
HUGE = 3e38
_groups: dict[str, dist.ProcessGroup] = {}  # of the rank process

ranks = ranks_fixture({"1+1": ["a", "b"], "2+1": ["a", "b", "a"], "1+1+1": ["a", "b", "c"]})


def reduce(codec: str, value: float, place: int, rank: int, dtype: torch.dtype) -> tuple[bool, str]:
    """Whether the sum is finite here, and its hash. One rank has `value` at one place, with the codec's residuals."""
    backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    start, stop = backend.encoded_range(ELEMENTS, dtype)
    tensor = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
    if dist.get_rank() == rank:
        tensor[place] = value
    backend.all_reduce_compressed(tensor, codec, torch.zeros(stop - start), True).wait()
    return bool(tensor.isfinite().all()), hash_of(tensor)


@pytest.mark.parametrize("codec", FACTS)
def test_overflow_at_one_rank_is_seen_by_all_under_every_codec(ranks: Ranks, codec: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for number, value in enumerate((*POISONS, *POISONS)):
            place = (7, ELEMENTS - 1)[number % 2]
            outcomes = ranks.run(reduce, codec, value, place, number % ranks.size, dtype)
            assert outcomes == [(False, outcomes[0][1])] * ranks.size, (dtype, value, place)


@pytest.mark.parametrize("codec", FACTS)
def test_value_at_the_end_of_the_range_leads_to_the_same_bits_at_all(ranks: Ranks, codec: str) -> None:
    for place in (7, ELEMENTS - 1):
        outcomes = ranks.run(reduce, codec, HUGE, place, 1, torch.float32)
        assert outcomes == [outcomes[0]] * ranks.size


def reduce_plainly(codec: str, value: float) -> tuple[bool, str]:
    """The same by dist.all_reduce in a group of that codec."""
    import geocomm

    if codec not in _groups:
        _groups[codec] = dist.new_group(pg_options=geocomm.Options(codec=codec, min_compress_bytes=1024))
    tensor = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(dist.get_rank()))
    if dist.get_rank() == 1:
        tensor[7] = value
    dist.all_reduce(tensor, group=_groups[codec])
    return bool(tensor.isfinite().all()), hash_of(tensor)


@pytest.mark.parametrize("codec", [name for name, facts in FACTS.items() if not facts.needs_feedback])
def test_overflow_at_one_rank_is_seen_by_all_in_a_group_of_the_codec(ranks: Ranks, codec: str) -> None:
    for value in POISONS:
        outcomes = ranks.run(reduce_plainly, codec, value)
        assert outcomes == [(False, outcomes[0][1])] * ranks.size, value
