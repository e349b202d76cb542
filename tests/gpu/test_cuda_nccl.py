"""Two sites of two ranks, whose stages inside a site run on NCCL, give what CPU tensors over Gloo give.

Where there are fewer than four GPUs the ranks share them: NCCL takes two ranks on one GPU if it believes that they are
on two machines. A kernel that waits for the other rank's then takes turns with it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from test_cuda_backend import CASES, DTYPES, SIZES, Case
from torch import nn

from support.collective_cases import data
from support.harness import Ranks

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and dist.is_nccl_available()), reason="needs a CUDA GPU and a torch built for it"
)


def take_gpu() -> None:
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    shared = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_MAX_CTAS": "2"}
    own = {rank: {"NCCL_HOSTID": f"r{rank}"} for rank in range(4)} if torch.cuda.device_count() < 4 else {}
    sites = ["a", "a", "b", "b"]
    with Ranks(sites, time_limit=180, environment=shared if own else {}, environment_of=own) as ranks:
        ranks.init()
        ranks.run(take_gpu)
        yield ranks
        ranks.destroy()


def compare_devices(case: Case, codec: str) -> list[str]:
    """Runs the case on tensors of the CPU and of the GPU; what differed, one line each."""
    import geocomm

    group = dist.new_group(pg_options=geocomm.Options(codec=codec, min_compress_bytes=1024))
    wrong = []
    for dtype in DTYPES:
        for size in SIZES:
            expected = case(data(dtype, size), group)
            got = case(data(dtype, size).cuda(), group)
            for index, (a, b) in enumerate(zip(expected, got, strict=True)):
                if not torch.equal(a, b.cpu()):
                    wrong.append(f"{dtype} {size} [{index}]: differs in {(a != b.cpu()).sum()} elements")
    dist.destroy_process_group(group)
    return wrong


def all_gather_of_four(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    outputs = [torch.zeros_like(tensor) for _ in range(4)]
    dist.all_gather(outputs, tensor, group=group)
    return outputs


NCCL_CASES = [case for case in CASES if case.__name__ in ("all_reduce", "broadcast")] + [all_gather_of_four]


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("case", NCCL_CASES, ids=lambda case: case.__name__)
def test_collective_over_nccl_equals_that_of_cpu_tensors(ranks: Ranks, case: Case, codec: str) -> None:
    assert ranks.run(compare_devices, case, codec) == [[]] * 4


def test_many_async_all_reduces_over_nccl_give_the_sums(ranks: Ranks) -> None:
    sums = ranks.run(sums_of_four)
    assert sums == [[True] * 20] * 4


def sums_of_four() -> list[bool]:
    tensors = [torch.full((100_000 + i,), float(dist.get_rank() + i), device="cuda") for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return [bool((tensor == 6 + 4 * i).all()) for i, tensor in enumerate(tensors)]


def ddp_of_four() -> list[float]:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 8)).cuda()
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        x = torch.randn(16, 40, generator=generator).cuda()
        optimizer.zero_grad()
        (model(x) - x[:, :8].sin()).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters()).detach().cpu().tolist()


def test_ddp_over_nccl_ends_with_the_same_parameters_on_all_ranks(ranks: Ranks) -> None:
    first, *others = ranks.run(ddp_of_four)
    assert others == [first] * 3


def fsdp_of_four() -> tuple[list[float], str]:
    """Sharded inside each site over NCCL, replicated between the sites."""
    from torch.distributed.fsdp import fully_shard

    import geocomm

    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 8)).cuda()
    mesh = geocomm.device_mesh()
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        x = torch.randn(16, 40, generator=generator).cuda()
        optimizer.zero_grad()
        (net(x) - x[:, :8].sin()).square().mean().backward()
        optimizer.step()
    full = [parameter.full_tensor().detach().flatten().cpu() for parameter in net.parameters()]
    return torch.cat(full).tolist(), mesh.device_type


def test_fsdp_over_nccl_ends_with_the_same_parameters_on_all_ranks(ranks: Ranks) -> None:
    (first, device), *others = ranks.run(fsdp_of_four)
    assert device == "cuda"
    assert others == [(first, device)] * 3
