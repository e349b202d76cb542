"""All-reduce with the caller's codec and residual: nothing is lost, replicas are equal, a failure changes nothing."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks, hash_of, joined, ranks_fixture

LAYOUTS = {"1+1": ["a", "b"], "2+1": ["a", "b", "a"], "1+1+1": ["a", "b", "c"], "2+2+1": ["a", "b", "a", "b", "c"]}
CODECS = ["int8", "int4", "balanced", "topk", "tiny", "loco", "bit1", "fp16"]
ELEMENTS = 60_013
OPERATIONS = 4


ranks = ranks_fixture(LAYOUTS)


def _backend(group: dist.ProcessGroup | None = None) -> Any:
    return (group or dist.distributed_c10d._get_default_group())._get_backend(torch.device("cpu"))


def _input(rank: int, step: int, dtype: torch.dtype, elements: int = ELEMENTS) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(1000 * step + rank)).to(dtype)


def _reduce_often(
    codec: str, dtype: torch.dtype, average: bool
) -> tuple[str, list[dict[str, Any]], torch.Tensor, torch.Tensor, float]:
    """Hash of all results; reports; sums of exact results less the results; this rank's residual where it encodes;
    the largest result."""
    backend, size = _backend(), dist.get_world_size()
    start, stop = backend.encoded_range(ELEMENTS, dtype)
    residual = torch.zeros(stop - start)
    missing = torch.zeros(ELEMENTS, dtype=torch.float64)
    results, reports, largest = [], [], 0.0
    for step in range(OPERATIONS):
        inputs = [_input(rank, step, dtype) for rank in range(size)]
        tensor = inputs[dist.get_rank()].clone()
        work = backend.all_reduce_compressed(tensor, codec, residual, average)
        work.get_future().wait()
        reports.append(work.feedback())
        results.append(tensor)
        scaled = tensor.double() * (size if average else 1)
        missing += torch.stack([t.double() for t in inputs]).sum(0) - scaled
        largest = max(largest, scaled.abs().max().item())
    lost = torch.zeros(ELEMENTS, dtype=torch.float64)
    lost[start:stop] = residual.double()
    return hash_of(*results), reports, missing, lost, largest


@pytest.mark.parametrize("codec", CODECS)
def test_results_are_equal_and_with_the_residuals_of_all_ranks_nothing_is_lost(ranks: Ranks, codec: str) -> None:
    for dtype, average in ((torch.float32, False), (torch.float32, True), (torch.bfloat16, True)):
        outcomes = ranks.run(_reduce_often, codec, dtype, average)
        assert len({hashed for hashed, *_ in outcomes}) == 1
        _, _, missing, _, largest = outcomes[0]
        lost = torch.stack([outcome[3] for outcome in outcomes]).sum(0)
        # A site's sum and the result are rounded to the dtype.
        bound = 1e-4 if dtype == torch.float32 else OPERATIONS * (1 + len(ranks.sites)) * largest / 256
        assert (missing - lost).abs().max().item() <= bound
        if codec != "fp16":
            assert lost.abs().max().item() > 1e-3  # there was something to lose
        for _, reports, _, own, _ in outcomes:
            assert all(report["committed"] for report in reports)
            assert reports[-1]["residual_square"] == pytest.approx(own.square().sum().item(), rel=1e-5)
            assert reports[-1]["input_square"] > reports[-1]["residual_square"]
            assert 0 < reports[-1]["wire_bytes"] < 2 * 4 * ELEMENTS * len(ranks.sites)


def _ranges(sizes: list[int]) -> list[tuple[int, int]]:
    return [_backend().encoded_range(size, torch.float32) for size in sizes]


def test_encoded_ranges_of_a_site_cover_the_tensor_once(ranks: Ranks) -> None:
    sizes = [0, 1, 2, 63, 100, 1000, ELEMENTS]
    ranges = ranks.run(_ranges, sizes)
    for site in set(ranks.sites):
        members = [ranges[rank] for rank in range(ranks.size) if ranks.sites[rank] == site]
        for index, size in enumerate(sizes):
            ends = [member[index] for member in members]
            assert sorted(e for start, stop in ends for e in range(start, stop)) == list(range(size))


def _flush(codec: str, elements: int, sites: int) -> tuple[bool, float]:
    """Whether the residual is gone, and the error of a sum that has it."""
    backend = _backend()
    start, stop = backend.encoded_range(elements, torch.float32)
    residual = torch.full((stop - start,), 0.125)
    tensor = torch.full((elements,), float(dist.get_rank()))
    backend.all_reduce_compressed(tensor, codec, residual, False).wait()
    exact = sum(range(dist.get_world_size())) + 0.125 * sites
    return not residual.any(), (tensor - exact).abs().max().item()


@pytest.mark.parametrize(("codec", "elements"), [("none", ELEMENTS), ("lossless", ELEMENTS), ("int8", 1000)])
def test_exact_operation_lets_the_residual_go(ranks: Ranks, codec: str, elements: int) -> None:
    """int8: too small to be compressed."""
    assert ranks.run(_flush, codec, elements, len(set(ranks.sites))) == [(True, 0.0)] * ranks.size


def _into_next(codec: str) -> tuple[bool, bool, bool, bool]:
    """Whether result and new residual are those of the call in place, the old one kept its bits, and what it says."""
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    in_place = _input(dist.get_rank(), 99, torch.float32, stop - start)
    old, new = in_place.clone(), torch.full((stop - start,), math.nan)
    tensor = _input(dist.get_rank(), 1, torch.float32)
    other = tensor.clone()
    backend.all_reduce_compressed(tensor, codec, in_place, True).wait()
    before = old.clone()
    work = backend.all_reduce_compressed(other, codec, old, True, next_residual=new)
    work.wait()
    said = work.feedback()
    square = other.double().square().sum().item()
    honest = said["committed"] and math.isclose(said["result_square"], square, rel_tol=1e-9)
    return torch.equal(other, tensor), torch.equal(new, in_place), torch.equal(old, before), honest


@pytest.mark.parametrize("codec", ["int8", "small", "none"])
def test_new_residual_goes_to_memory_of_its_own(ranks: Ranks, codec: str) -> None:
    assert ranks.run(_into_next, codec) == [(True, True, True, True)] * ranks.size


def _scaled(codec: str) -> tuple[bool, bool, bool]:
    """Whether it is the call on tensors divided by the scale, multiplied again: result, residual, report."""
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    scale = torch.exp2(torch.arange(ELEMENTS) % 17 - 8)
    own = scale[start:stop]
    tensor = _input(dist.get_rank(), 1, torch.float32)
    residual = _input(dist.get_rank(), 99, torch.float32, stop - start)
    divided, small = tensor / scale, residual / own
    new = torch.empty_like(residual)
    plain = backend.all_reduce_compressed(divided, codec, small, True)
    plain.wait()
    work = backend.all_reduce_compressed(tensor, codec, residual, True, next_residual=new, scale=own.contiguous())
    work.wait()
    said, expected = work.feedback(), plain.feedback()
    squares = divided[start:stop].double().square().sum().item()
    alike = all(said[key] == expected[key] for key in ("committed", "input_square", "residual_square", "wire_bytes"))
    return (
        torch.equal(tensor, divided * scale),
        torch.equal(new, small * own),
        alike and math.isclose(said["scaled_square"], squares, rel_tol=1e-9),
    )


@pytest.mark.parametrize("codec", ["int8", "small", "none"])
def test_scale_divides_what_is_encoded(ranks: Ranks, codec: str) -> None:
    assert ranks.run(_scaled, codec) == [(True, True, True)] * ranks.size


def _commit_state(codec: str, poison: float, poisoned_rank: int) -> tuple[bool, bool, bool]:
    """Whether a residual kept its bits and was committed, and whether the result is finite."""
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    residual = _input(dist.get_rank(), 99, torch.float32, stop - start)
    before = residual.clone()
    tensor = _input(dist.get_rank(), 1, torch.float32)
    if dist.get_rank() == poisoned_rank:
        tensor[7] = poison
    work = backend.all_reduce_compressed(tensor, codec, residual, True)
    work.wait()
    return torch.equal(residual, before), work.feedback()["committed"], bool(tensor.isfinite().all())


@pytest.mark.parametrize("codec", ["int8", "topk", "none"])
def test_nan_or_inf_on_one_rank_leaves_the_residuals_of_all(ranks: Ranks, codec: str) -> None:
    for poison in (math.nan, math.inf):
        outcomes = ranks.run(_commit_state, codec, poison, ranks.size - 1)
        assert outcomes == [(True, False, False)] * ranks.size
    assert ranks.run(_commit_state, codec, 1.0, 0) == [(False, True, True)] * ranks.size


def _refused() -> list[str]:
    """The classes of what is raised, with the group whole afterwards."""
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    good, tensor = torch.zeros(stop - start), torch.ones(ELEMENTS)
    calls = [
        lambda: backend.all_reduce_compressed(tensor, "tiny", None, True),
        lambda: backend.all_reduce_compressed(tensor, "no such codec", good, True),
        lambda: backend.all_reduce_compressed(tensor, "int8", good[1:], True),
        lambda: backend.all_reduce_compressed(tensor, "int8", good.double(), True),
        lambda: backend.all_reduce_compressed(tensor, "int8", good.view(1, -1), True),
        lambda: backend.all_reduce_compressed(tensor.long(), "int8", None, True),
        lambda: backend.all_reduce_compressed(tensor, "int8", good, True, math.inf),
        lambda: backend.all_reduce_compressed(tensor, "int8", good, True, next_residual=good),
        lambda: backend.all_reduce_compressed(tensor, "int8", None, True, next_residual=good),
        lambda: backend.all_reduce_compressed(tensor, "int8", good, True, next_residual=good[1:]),
        lambda: backend.all_reduce_compressed(tensor, "int8", good, True, scale=good[1:]),
        lambda: backend.all_reduce_compressed(tensor, "int8", None, True, scale=good),
        lambda: backend.encoded_range(ELEMENTS, torch.float64),
    ]
    raised = []
    for call in calls:
        try:
            call()
        except Exception as error:
            raised.append(type(error).__name__)
    backend.all_reduce_compressed(tensor, "int8", None, True).wait()
    assert torch.allclose(tensor, torch.ones(ELEMENTS), atol=0.01)
    return raised


def test_what_it_cannot_do_is_refused_at_the_call(ranks: Ranks) -> None:
    invalid, unsupported = "InvalidArgumentError", "UnsupportedError"
    expected = [unsupported, *[invalid] * 4, unsupported, *[invalid] * 6, unsupported]
    assert ranks.run(_refused) == [expected] * ranks.size


def _other_codec() -> None:
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    codec = "int8" if dist.get_rank() == 0 else "int4"
    backend.all_reduce_compressed(torch.ones(ELEMENTS), codec, torch.zeros(stop - start), True).wait()


def test_another_codec_on_one_rank_is_an_error_on_all() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        for outcome in ranks.outcomes(_other_codec):
            assert "InvalidArgument" in outcome.require("DistBackendError").message


def _one_site() -> tuple[float, bool, tuple[int, int]]:
    backend = _backend()
    tensor = torch.full((ELEMENTS,), float(dist.get_rank()))
    work = backend.all_reduce_compressed(tensor, "tiny", torch.zeros(0), True)
    work.wait()
    return tensor[5].item(), work.feedback()["committed"], backend.encoded_range(ELEMENTS, torch.float32)


def test_one_site_takes_the_plain_mean() -> None:
    with joined(["a", "a"]) as ranks:
        assert ranks.run(_one_site) == [(0.5, True, (0, 0))] * 2


def _subgroup() -> float:
    group = dist.new_group([0, 1, 3])
    if dist.get_rank() == 2:
        return 0.0
    backend = _backend(group)
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    residual = torch.zeros(stop - start)
    tensor = _input(dist.get_rank(), 0, torch.float32)
    exact = sum(_input(rank, 0, torch.float32) for rank in (0, 1, 3))
    backend.all_reduce_compressed(tensor, "int4", residual, False).wait()
    lost = torch.zeros(ELEMENTS)
    lost[start:stop] = residual
    dist.all_reduce(lost, group=group)
    return (tensor + lost - exact).abs().max().item()


def test_subgroup_has_ranges_of_its_own() -> None:
    with joined(["a", "b", "b", "a"]) as ranks:
        assert max(ranks.run(_subgroup)) < 1e-4


def _fail_in_flight(way: str, folder: str) -> tuple[bool, bool | None]:
    """Whether the residual kept its bits, and what feedback() says; the operation must fail."""
    backend = _backend()
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    residual = _input(dist.get_rank(), 5, torch.float32, stop - start)
    before = residual.clone()
    work = backend.all_reduce_compressed(_input(dist.get_rank(), 0, torch.float32), "int8", residual, True)
    Path(folder, str(dist.get_rank())).touch()
    if way == "abort":
        _wait_for_survivors(folder)
        threading.Timer(0.3, backend.abort).start()
    try:
        work.wait()
    except Exception:
        return torch.equal(residual, before), work.feedback()["committed"]
    return False, None


def _wait_for_survivors(folder: str) -> None:
    """They have issued the operation."""
    end = time.monotonic() + 60
    while len(os.listdir(folder)) < 3:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("way", ["abort", "killed"])
def test_operation_that_fails_leaves_the_residual(way: str, tmp_path: Path) -> None:
    with Ranks(["a", "b", "b", "c"]) as ranks:
        ranks.init(timeout=timedelta(seconds=120))
        ranks.run(_commit_state, "int8", 1.0, 0)
        survivors = [0, 1, 2]
        ranks.begin(_fail_in_flight, way, str(tmp_path), ranks=survivors)
        if way == "killed":
            _wait_for_survivors(str(tmp_path))
            time.sleep(0.3)
            ranks.signal(3, signal.SIGKILL)
        outcomes = ranks.finish(ranks=survivors)
        assert [outcome.value for outcome in outcomes] == [(True, False)] * 3
