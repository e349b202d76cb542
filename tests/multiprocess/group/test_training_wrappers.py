"""DDP, FSDP2, DTensor and distributed checkpoints run over sites unmodified, and learn what they learn over Gloo."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.harness import Ranks, hash_of, ranks_fixture

LAYOUTS = {"2+1": ["a", "a", "b"], "2+2 shuffled": ["a", "b", "b", "a"]}
STEPS = 4


ranks = ranks_fixture(LAYOUTS)


def _net() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(40, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 8))


def _batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(16, 40, generator=generator)
    return x, x[:, :8].sin()


def _ddp(group: dist.ProcessGroup | None, kind: str) -> tuple[list[float], str]:
    """Losses of rank 0's batches and the hash of the parameters after `STEPS`."""
    net = _net()
    # PowerSGD issues collectives from callbacks: with several buckets their order would differ between ranks, over
    # Gloo as over geocomm.
    bucket_cap_mb = 25 if kind == "powersgd" else 0.1
    model = DistributedDataParallel(
        net, process_group=group, bucket_cap_mb=bucket_cap_mb, find_unused_parameters=kind == "unused"
    )
    if kind == "fp16 hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(group, fp16_compress_hook)
    if kind == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, y = _batch(step, dist.get_rank())
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, hash_of(*net.parameters())


@pytest.mark.parametrize("kind", ["plain", "unused", "fp16 hook", "powersgd"])
def test_ddp_over_sites_learns_like_gloo(ranks: Ranks, kind: str) -> None:
    results = ranks.run(_ddp_twice, kind)
    assert len({result[1] for result in results}) == 1
    for losses, _, reference in results:
        assert losses == pytest.approx(reference, rel=2e-2 if kind == "fp16 hook" else 1e-3)


def _ddp_twice(kind: str) -> tuple[list[float], str, list[float]]:
    reference, _ = _ddp(dist.new_group(backend="gloo"), kind)
    losses, digest = _ddp(dist.group.WORLD, kind)
    return losses, digest, reference


def _ddp_compressed() -> tuple[list[float], str, list[float]]:
    import geocomm

    losses, digest = _ddp(dist.new_group(pg_options=geocomm.Options(codec="int8", min_compress_bytes=1024)), "plain")
    return losses, digest, _ddp(dist.group.WORLD, "plain")[0]


def test_ddp_with_int8_between_sites_keeps_replicas_identical(ranks: Ranks) -> None:
    results = ranks.run(_ddp_compressed)
    assert len({digest for _, digest, _ in results}) == 1
    for losses, _, exact in results:
        assert losses != exact
        assert losses == pytest.approx(exact, rel=0.1)


def _fsdp(shape: str) -> tuple[list[float], list[float]]:
    """Losses sharded over the ranks, and of the same net on Gloo without sharding."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    reference, _ = _ddp(dist.new_group(backend="gloo"), "plain")
    size = dist.get_world_size()
    dimensions = (2, size // 2) if shape == "hybrid" else (size,)
    names = ("replicate", "shard") if shape == "hybrid" else ("shard",)
    mesh = init_device_mesh("cpu", dimensions, mesh_dim_names=names)
    net = _net()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        x, y = _batch(step, dist.get_rank())
        loss = (net(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1e9)
        optimizer.step()
        losses.append(loss.item())
    return losses, reference


@pytest.mark.parametrize("shape", ["full", "hybrid"])
def test_fsdp2_over_sites_learns_like_ddp_over_gloo(ranks: Ranks, shape: str) -> None:
    if shape == "hybrid" and ranks.size % 2:
        shape = "full"  # three ranks: no two equal replicas
    for losses, reference in ranks.run(_fsdp, shape):
        assert losses == pytest.approx(reference, rel=1e-3)


def _dtensor() -> list[bool]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.experimental import local_map

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(3)
    whole, other = torch.randn(10, 12), torch.randn(12, 9)
    left = distribute_tensor(whole, mesh, [Shard(1)])
    right = distribute_tensor(other, mesh, [Shard(0)])
    product = (left @ right).redistribute(mesh, [Replicate()]).to_local()
    moved = distribute_tensor(whole, mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
    summed = local_map(lambda t: t + 1, [Partial()])(distribute_tensor(whole, mesh, [Replicate()])).full_tensor()
    return [
        torch.allclose(product, whole @ other, atol=1e-5),
        torch.equal(moved.full_tensor(), whole),
        torch.allclose(summed, (whole + 1) * dist.get_world_size(), atol=1e-5),
    ]


def test_dtensor_redistributions_over_sites_keep_the_values(ranks: Ranks) -> None:
    assert ranks.run(_dtensor) == [[True] * 3] * ranks.size


def _checkpoint(folder: str) -> bool:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    values = torch.arange(77.0).view(11, 7)
    dcp.save({"sharded": distribute_tensor(values, mesh, [Shard(0)]), "plain": values + 1}, checkpoint_id=folder)
    loaded = {"sharded": distribute_tensor(torch.zeros(11, 7), mesh, [Shard(1)]), "plain": torch.zeros(11, 7)}
    dcp.load(loaded, checkpoint_id=folder)
    return torch.equal(loaded["sharded"].full_tensor(), values) and torch.equal(loaded["plain"], values + 1)


def test_distributed_checkpoint_over_sites_loads_what_was_saved(
    ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    assert ranks.run(_checkpoint, str(folder)) == [True] * ranks.size
