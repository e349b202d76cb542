"""Collectives on CUDA tensors over two sites give what CPU tensors give. Both ranks share one GPU.

Each site has one rank, so no NCCL group is made (NCCL refuses two ranks on one GPU): what is tested is the way between
the sites, and that operations take their place on the caller's stream.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.collective_cases import data, gather_single, reduce_scatter_single
from support.harness import Ranks, ranks_fixture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU and a torch built for it")

# Elements: uncompressed at once, one chunk, several chunks of 1 MiB with a short last one.
SIZES = (37, 70_001, 600_001)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int64)
Case = Callable[[torch.Tensor, dist.ProcessGroup], list[torch.Tensor]]


ranks = ranks_fixture({"1+1": ["a", "b"]}, time_limit=120)  # the first CUDA call of a process can take long


def all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    dist.all_reduce(tensor, group=group)
    return [tensor]


def broadcast(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    dist.broadcast(tensor, 1, group=group)
    return [tensor]


def all_gather(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    outputs = [torch.zeros_like(tensor) for _ in range(2)]
    dist.all_gather(outputs, tensor, group=group)
    return outputs


def all_gather_single(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    output = tensor.new_zeros(2 * tensor.numel())
    gather_single(output, tensor, group=group)
    return [output]


def reduce_scatter(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    output = torch.zeros_like(tensor)
    reduce_scatter_single(output, torch.cat([tensor, -tensor]), group=group)
    return [output]


def send_receive(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    received = torch.zeros_like(tensor)
    if dist.get_rank() == 0:
        dist.send(tensor, 1, group=group)
        dist.recv(received, 1, group=group)
    else:
        dist.recv(received, 0, group=group)
        dist.send(tensor, 0, group=group)
    return [received]


def strided_all_reduce(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    base = torch.stack([tensor, tensor + 1], dim=1)
    dist.all_reduce(base[:, 0], group=group)
    return [base]


CASES: list[Case] = [
    all_reduce,
    broadcast,
    all_gather,
    all_gather_single,
    reduce_scatter,
    send_receive,
    strided_all_reduce,
]


def compare_devices(case: Case, codec: str, device: str, in_batches: bool) -> list[str]:
    """Runs the case on tensors of the CPU and of `device`; what differed, one line each.

    in_batches: the device takes all chunks of an operation at once, as with GEOCOMM_GPU_BATCHES.
    """
    import geocomm
    from geocomm.core.native import native

    native().use_device_batches(in_batches)
    group = dist.new_group(pg_options=geocomm.Options(codec=codec, min_compress_bytes=1024))
    wrong = []
    for dtype in DTYPES:
        for size in SIZES:
            expected = case(data(dtype, size), group)
            got = case(data(dtype, size).to(device), group)
            for index, (a, b) in enumerate(zip(expected, got, strict=True)):
                if b.device.type != device:
                    wrong.append(f"{dtype} {size} [{index}]: on {b.device}")
                elif not torch.equal(a, b.cpu()):
                    wrong.append(f"{dtype} {size} [{index}]: differs in {(a != b.cpu()).sum()} elements")
    dist.destroy_process_group(group)
    native().use_device_batches(False)
    return wrong


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_collective_of_cuda_tensors_equals_that_of_cpu_tensors(ranks: Ranks, case: Case, codec: str) -> None:
    assert ranks.run(compare_devices, case, codec, "cuda", False) == [[], []]


@pytest.mark.parametrize("codec", ["int8", "int8+huffman", "fp16", "balanced", "small", "tiny", "loco", "lossless"])
@pytest.mark.parametrize("case", [all_reduce, reduce_scatter], ids=lambda case: case.__name__)
def test_reduction_in_batches_equals_that_of_cpu_tensors(ranks: Ranks, case: Case, codec: str) -> None:
    assert ranks.run(compare_devices, case, codec, "cuda", True) == [[], []]


def reduce_behind_kernels(device: str) -> list[bool]:
    """Inputs not computed yet when the operation is issued, and results used without the host waiting for them."""
    work_first = torch.ones(2000, 2000, device=device)
    right = []
    for async_op in (False, True):
        for side_stream in (False, True):
            stream = torch.cuda.Stream() if device == "cuda" and side_stream else None
            with torch.cuda.stream(stream):
                total = work_first
                for _ in range(20):
                    total = total @ work_first / 2000
                tensor = total[0].clone().mul_(dist.get_rank() + 1)
                work = dist.all_reduce(tensor, async_op=async_op)
                if work is not None:
                    work.wait()
                right.append(bool((tensor * 2 == 6).all()))
    return right


def test_all_reduce_behind_queued_kernels_takes_their_results(ranks: Ranks) -> None:
    assert ranks.run(reduce_behind_kernels, "cuda") == [[True] * 4] * 2


def many_async_all_reduces(device: str) -> list[bool]:
    tensors = [torch.full((100_000 + i,), float(dist.get_rank() + i), device=device) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return [bool((tensor == 2 * i + 1).all()) for i, tensor in enumerate(tensors)]


def test_many_async_all_reduces_of_cuda_tensors_give_the_sums(ranks: Ranks) -> None:
    assert ranks.run(many_async_all_reduces, "cuda") == [[True] * 20] * 2


def ddp_steps(device: str) -> tuple[list[float], list[float]]:
    """Parameters after three steps of DDP over the sites, and of one process with the batches of both ranks."""

    def train(model: nn.Module, batch_of_step: Callable[[int], torch.Tensor]) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(3):
            x = batch_of_step(step).to(device)
            optimizer.zero_grad()
            (model(x) - x[:, :8].sin()).square().mean().backward()
            optimizer.step()

    def net() -> nn.Module:
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 8)).to(device)

    def batch(step: int, rank: int) -> torch.Tensor:
        return torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + rank))

    net_of_sites, net_of_one = net(), net()
    train(DistributedDataParallel(net_of_sites, bucket_cap_mb=0.02), lambda step: batch(step, dist.get_rank()))
    train(net_of_one, lambda step: torch.cat([batch(step, 0), batch(step, 1)]))
    flat = [nn.utils.parameters_to_vector(model.parameters()).detach().cpu() for model in (net_of_sites, net_of_one)]
    return flat[0].tolist(), flat[1].tolist()


def test_ddp_of_cuda_modules_learns_what_one_process_learns(ranks: Ranks) -> None:
    (first, reference), (second, _) = ranks.run(ddp_steps, "cuda")
    assert first == second
    torch.testing.assert_close(torch.tensor(first), torch.tensor(reference), rtol=1e-3, atol=1e-5)
