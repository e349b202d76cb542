"""Error feedback for gradients on a GPU: what the hooks and `all_reduce_compressed` give is what CPU tensors give.

As in test_cuda_backend.py two sites of one rank share a GPU. The codec works on the host, or in batches on the GPU,
with the same bits; and the scales are learned by operations that round once, so results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support import planned_gradients as planned
from support import sharded_gradients as sharded
from support.harness import Ranks
from support.planned_gradients import assert_same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it")

ELEMENTS = 600_001
KINDS = {"ddp": planned, "fsdp": sharded}
Results = list[dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    # The first CUDA call of a process can take long.
    with Ranks(["a", "b"], time_limit=120, environment={"GEOCOMM_MIN_COMPRESS_BYTES": "1024"}) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


def compressed_all_reduces(dtype: torch.dtype, device: str, in_batches: bool = False) -> list[list[torch.Tensor]]:
    """Results, and residuals after each: kept in one memory, then in two with scales, then of a spoiled operation.

    in_batches: residuals stay on the device, as with GEOCOMM_GPU_BATCHES.
    """
    from geocomm.core.native import native
    from geocomm.group.backend.runtime import runtime

    native().use_device_batches(in_batches)
    backend = runtime.group_of(dist.group.WORLD).backend
    start, stop = backend.encoded_range(ELEMENTS, dtype)
    generator = torch.Generator().manual_seed(dist.get_rank())
    scale = torch.logspace(0, 8, 9, base=2.0)[torch.arange(start, stop) % 9].to(device)
    residual = torch.zeros(stop - start, device=device)
    other = torch.empty_like(residual)
    found = []
    for step in range(5):
        tensor = torch.randn(ELEMENTS, generator=generator).to(dtype).to(device)
        if step == 4:
            tensor[::1000] = float("inf")
        if step < 2:
            work = backend.all_reduce_compressed(tensor, "balanced", residual, True)
        else:
            work = backend.all_reduce_compressed(tensor, "balanced", residual, True, 0.9, other, scale)
        work.wait()
        committed = work.feedback()["committed"]
        assert work.succeeded()
        assert committed == (step < 4)
        if step >= 2 and committed:
            residual, other = other, residual
        found.append([tensor.cpu(), residual.cpu().clone()])  # later calls write where it is
    native().use_device_batches(False)
    return found


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_compressed_all_reduce_of_cuda_tensors_equals_that_of_cpu_tensors(
    ranks: Ranks, dtype: torch.dtype, in_batches: bool
) -> None:
    on_host = ranks.run(compressed_all_reduces, dtype, "cpu")
    on_device = ranks.run(compressed_all_reduces, dtype, "cuda", in_batches)
    for expected, got in zip(on_host, on_device, strict=True):
        for (tensor, residual), (other_tensor, other_residual) in zip(expected, got, strict=True):
            assert torch.equal(tensor.nan_to_num(), other_tensor.nan_to_num())
            assert torch.equal(residual, other_residual)


def refused_devices() -> list[str]:
    from geocomm.group.backend.runtime import runtime

    backend = runtime.group_of(dist.group.WORLD).backend
    start, stop = backend.encoded_range(ELEMENTS, torch.float32)
    raised = []
    for tensor_device, residual_device in (("cuda", "cpu"), ("cpu", "cuda")):
        tensor = torch.zeros(ELEMENTS, device=tensor_device)
        residual = torch.zeros(stop - start, device=residual_device)
        try:
            backend.all_reduce_compressed(tensor, "balanced", residual, True)
        except ValueError as error:
            raised.append(type(error).__name__)
    return raised


def test_residual_on_another_device_is_refused(ranks: Ranks) -> None:
    assert ranks.run(refused_devices) == [["InvalidArgumentError"] * 2] * 2


def steps_of_hook(
    hook: str, codec: str, device: str, side_stream: bool, in_batches: bool = False
) -> tuple[Results, dict[str, Any], int]:
    """Gradients of steps of which one is spoiled, the state in the end, and how many steps were skipped."""
    from geocomm.core.native import native

    native().use_device_batches(in_batches)
    kind: Any = KINDS[hook]
    kind.make(codec, device=device, adaptive=True, warmup_steps=1)
    with torch.cuda.stream(torch.cuda.Stream() if side_stream else None):
        results = kind.run_steps(0, 3)
        kind.step(3, spoiled=(1, "two"))
        results += kind.run_steps(4, 3)
        found = results, kind.state(), kind.handle().stats()["skipped_steps"]
    native().use_device_batches(False)
    return found


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("side_stream", [False, True])
@pytest.mark.parametrize("codec", ["none", "balanced", "topk:k=64"])
@pytest.mark.parametrize("hook", KINDS)
def test_hook_gives_the_gradients_and_the_state_of_cpus(
    ranks: Ranks, hook: str, codec: str, side_stream: bool, in_batches: bool
) -> None:
    on_host = ranks.run(steps_of_hook, hook, codec, "cpu", False)
    on_device = ranks.run(steps_of_hook, hook, codec, "cuda", side_stream, in_batches)
    assert_same_bits([results for results, _, _ in [*on_host, *on_device]])
    for (_, state, skipped), (_, other, other_skipped) in zip(on_host, on_device, strict=True):
        assert skipped == other_skipped == 1
        assert state["residual"].keys() == other["residual"].keys()
        for name, pieces in state["residual"].items():
            for (start, values), (other_start, other_values) in zip(pieces, other["residual"][name], strict=True):
                assert other_values.device.type == "cpu"
                assert start == other_start
                assert torch.equal(values, other_values)


@pytest.mark.parametrize(("saved_on", "loaded_on"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_state_goes_on_where_another_device_saved_it(ranks: Ranks, saved_on: str, loaded_on: str) -> None:
    """Without scales, which are not in the state, and without a change of buckets."""

    def go_on(device: str) -> list[Results]:
        ranks.run(make_plain, device)
        ranks.run(planned.run_steps, 0, 2)
        ranks.run(planned.load, states)
        return ranks.run(planned.run_steps, 5, 3)

    ranks.run(make_plain, saved_on)
    ranks.run(planned.run_steps, 0, 5)
    states = ranks.run(planned.state)
    assert_same_bits([*go_on(saved_on), *go_on(loaded_on)])


def make_plain(device: str) -> None:
    planned.make("int4", device=device, adaptive=False)


def train(hook: str | None) -> tuple[list[float], int]:
    """Parameters after steps of which all backwards but the first two run where torch refuses to wait for the GPU."""
    import geocomm

    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(40, 300), nn.GELU(), nn.LayerNorm(300), nn.Linear(300, 40)).cuda()
    model = DistributedDataParallel(net, bucket_cap_mb=0.02, gradient_as_bucket_view=True)
    if hook is not None:
        handle = geocomm.ddp_hook(
            model, geocomm.HookSettings(codec=hook, warmup_steps=1, exact_below=500, guard_steps=2)
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(8):
        x = torch.randn(16, 40, generator=generator).cuda()
        optimizer.zero_grad()
        loss = (model(x) - x.sin()).square().mean()
        torch.cuda.set_sync_debug_mode("error" if step > 1 else "default")
        try:
            loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        optimizer.step()
    geocomm.check_replicas(model)
    steps = handle.stats()["steps"] if hook is not None else 8
    return nn.utils.parameters_to_vector(net.parameters()).detach().cpu().tolist(), steps


def test_ddp_hook_that_compresses_nothing_changes_nothing(ranks: Ranks) -> None:
    assert ranks.run(train, None) == ranks.run(train, "none")


def test_ddp_hook_trains_without_waiting_for_the_gpu_in_backward(ranks: Ranks) -> None:
    (exact, _), _ = ranks.run(train, None)
    (first, steps), (second, _) = ranks.run(train, "balanced")
    assert steps == 8
    assert first == second
    torch.testing.assert_close(torch.tensor(first), torch.tensor(exact), rtol=0.05, atol=0.02)
