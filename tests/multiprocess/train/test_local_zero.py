"""The driver's local steps over sharded and 16-bit engines: joint steps, checkpoints, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist
from torch import nn

from support.engine_sites import DTYPES, engine_values
from support.harness import Ranks, hash_of, ranks_fixture

ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
uneven = ranks_fixture({"1+2": ["b", "a", "b"]}, environment=ENVIRONMENT, trains=True)
even = ranks_fixture({"2+2": ["a", "b", "b", "a"]}, environment=ENVIRONMENT, trains=True)
JOINT = 2
SAVED = 7  # a round is in flight there
STEPS = 11
RATE = 1e-2


def _net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 40), nn.GELU(), nn.Linear(40, 40), nn.GELU(), nn.Linear(40, 3))


def _batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(8, 6, generator=generator)
    return x, x[:, :3].sin()


def _trained(stage: int, precision: str, joint: int | str, scale_power: int = 20) -> Any:
    """scale_power: of the loss scale in fp16; with 20 some steps are skipped."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import groups

    from geocomm.train.loop.engine import create_engine
    from geocomm.train.loop.shm_operator import load_operator
    from geocomm.train.loop.train_config import RunConfig

    load_operator(print)
    # CPUs compute float16; DeepSpeed refuses those that have no instructions of their own for it.
    accelerator: Any = get_accelerator()
    accelerator.is_fp16_supported = lambda: True
    deepspeed.init_distributed(dist_backend="geocomm", auto_mpi_discovery=False)
    groups.mpu = None  # that of the engine before
    sync = {"every": 4, "fragments": 2, "exact_below": 100, "joint_steps": joint}
    # In fp16 sites may skip different steps, which `deterministic` is refused for; each round is waited for there.
    sync |= {"overlap": 0} if precision == "fp16" else {"overlap": 2, "deterministic": True}
    sections = {
        "training": {"precision": precision, "zero_stage": stage, "initial_scale_power": scale_power},
        "schedule": {"warmup_steps": JOINT},
        "sync": {"mode": "local", **sync},
        # Some parameters are whole on every rank, others are not.
        "deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 100}},
    }
    net: Any = _net()
    return create_engine(RunConfig.model_validate(sections), net)


def _train(trained: Any, first: int, last: int) -> None:
    from geocomm.train.loop.engine import apply_gradients, set_learning_rate

    engine = trained.engine
    for step in range(first, last):
        trained.local.before_step(step)
        set_learning_rate(engine, RATE)
        x, target = _batch(dist.get_rank(), step)
        dtype = next(engine.module.parameters()).dtype
        if dtype == torch.float16 and step == SAVED - 2 and 0 not in trained.local.sites.ranks:
            x = x * 1e4  # one site alone skips this step and lowers its loss scale
        engine.backward((engine(x.to(dtype)).float() - target).square().mean())
        apply_gradients(trained)


def _joint(sites: list[str], stage: int, precision: str) -> tuple[torch.Tensor, list[str]]:
    """The masters after three joint steps; hashes of them, and of masters and weights once the joint steps ended."""
    from geocomm.integrations.deepspeed_seams import masters

    trained = _trained(stage, precision, 3, scale_power=12)
    _train(trained, 0, 3)
    assert not trained.engine.skipped_steps
    found, _ = engine_values(trained.engine)
    if sites[dist.get_rank()] == "b":
        for one in masters(trained.engine):
            one.mul_(1.125)
    trained.local.begin()
    after, weights = engine_values(trained.engine)
    assert torch.equal(after.to(DTYPES[precision]), weights)
    trained.local.finish()
    return found, [hash_of(found), hash_of(after), hash_of(weights)]


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (1, "fp32"), (2, "fp16")])
def test_joint_steps_keep_sites_equal_and_end_with_the_masters_of_one(even: Ranks, stage: int, precision: str) -> None:
    results = even.run(_joint, even.sites, stage, precision)
    first, hashes = results[0]
    assert all(others == hashes for _, others in results)
    assert hashes[0] == hashes[1]  # of site a, which rank 0 is at
    if precision == "fp32":
        assert torch.allclose(first, _mean_of_four(), atol=1e-5)


def _mean_of_four() -> torch.Tensor:
    """What one process computes of the batches of all four ranks."""
    net = _net()
    matrices = [one for one in net.parameters() if one.dim() > 1]
    vectors = [one for one in net.parameters() if one.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95))
    for step in range(3):
        pairs = [_batch(rank, step) for rank in range(4)]
        x, target = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        optimizer.zero_grad()
        (net(x) - target).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return torch.cat([one.detach().reshape(-1) for one in net.parameters()])


def _checkpoints(trained: Any, sites: list[str], root: str, *, renamed: str = "") -> Any:
    """renamed: what the sites' names begin with, for other sites."""
    from geocomm.core.place import Place
    from geocomm.train.loop.train_checkpoint import RunCheckpoints

    rank, world = dist.get_rank(), len(sites)
    manifest = {"world_size": world, "sites": {renamed + site: sites.count(site) for site in sites}}
    place = Place(rank, world, local_rank=rank, local_world_size=world, site=renamed + sites[rank])
    return RunCheckpoints(trained, place, Path(root), 2, manifest)


def _resumed(sites: list[str], stage: int, precision: str, roots: dict[str, str]) -> list[list[str]]:
    """Masters, weights and loss scale when a run saves, before it ends and after; of that run, of one that took over
    its checkpoint, and of other sites that began with its anchor."""
    from geocomm.train.loop.engine import loss_scale
    from geocomm.train.loop.train_checkpoint import Progress

    results = []
    for resumes in ("", "same sites", "other sites"):
        trained = _trained(stage, precision, "auto")
        root = roots[sites[dist.get_rank()]]
        checkpoints = _checkpoints(trained, sites, root, renamed="other-" if resumes == "other sites" else "")
        if resumes:
            restored = checkpoints.restore(SAVED)
            assert restored.anchor_only == (resumes == "other sites")
        else:
            _train(trained, 0, SAVED)
            assert (trained.engine.skipped_steps > 0) == (precision == "fp16")
            checkpoints.save(Progress(SAVED, 0))
        seen = [f"{hash_of(*engine_values(trained.engine))} {loss_scale(trained.engine)}"]
        _train(trained, SAVED, STEPS)
        seen.append(hash_of(*engine_values(trained.engine)))
        trained.local.finish()
        results.append([*seen, hash_of(*engine_values(trained.engine))])
    return results


def _require_resumed(ranks: Ranks, stage: int, precision: str, roots: dict[str, str]) -> None:
    found = ranks.run(_resumed, ranks.sites, stage, precision, roots)
    for whole, resumed, _ in found:
        assert whole == resumed
    at_save, before_end, ended = zip(*(whole for whole, _, _ in found), strict=True)
    assert len(set(at_save)) == len(set(before_end)) == 2  # each site's own
    assert len(set(ended)) == 1
    anchor, before_end, ended = zip(*(others for _, _, others in found), strict=True)
    assert len({values.split()[0] for values in anchor}) == len(set(ended)) == 1
    assert len(set(before_end)) == 2


@pytest.mark.parametrize(
    ("stage", "precision"), [(1, "fp32"), (2, "fp16"), pytest.param(3, "fp16", marks=pytest.mark.slow)]
)
def test_run_resumes_with_equal_bits_from_one_disk_for_sites_of_equal_size(
    even: Ranks, tmp_path: Path, stage: int, precision: str
) -> None:
    _require_resumed(even, stage, precision, dict.fromkeys("ab", str(tmp_path)))


@pytest.mark.parametrize(("stage", "precision"), [(0, "bf16"), (1, "bf16"), (3, "bf16")])
def test_run_resumes_with_equal_bits_from_a_disk_for_each_site(
    uneven: Ranks, tmp_path: Path, stage: int, precision: str
) -> None:
    _require_resumed(uneven, stage, precision, {site: str(tmp_path / site) for site in "ab"})


def _refused(sites: list[str], root: str) -> str:
    from geocomm.core.bad_input import BadInput

    trained = _trained(1, "fp32", "auto")
    try:
        _checkpoints(trained, sites, root)
    except BadInput as error:
        return str(error)
    return ""


def test_sites_of_unequal_size_need_disks_of_their_own_for_shards(uneven: Ranks, tmp_path: Path) -> None:
    for said in uneven.run(_refused, uneven.sites, str(tmp_path)):
        assert "unequal size (ranks: b: 2, a: 1)" in said
        assert "output_dir of its own" in said
