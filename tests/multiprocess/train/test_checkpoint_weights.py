"""Weights that are read from the driver's checkpoints are those of its engines, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch
import torch.distributed as dist
from torch import nn

from geocomm.core.bad_input import BadInput
from geocomm.train.export.checkpoint_weights import open_checkpoint
from support.engine_sites import DTYPES
from support.harness import Ranks, ranks_fixture

ENVIRONMENT = {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1"}
even = ranks_fixture({"2+2": ["a", "b", "b", "a"]}, environment=ENVIRONMENT, trains=True)
uneven = ranks_fixture({"1+2": ["b", "a", "b"]}, environment=ENVIRONMENT, trains=True)
STEPS = 3
PLAIN: dict[str, Any] = {}
CODEC: dict[str, Any] = {"codec": "int4", "warmup_steps": 1, "exact_below": 50}
LOCAL: dict[str, Any] = {"mode": "local", "every": 2, "fragments": 2, "overlap": 1, "exact_below": 50, "joint_steps": 0}
LOCAL |= {"deterministic": True}
Values = dict[str, tuple[torch.Tensor, torch.Tensor | None]]
"""Weight and master by the name of the parameter; no master where the optimizer has none."""


class Net(nn.Module):
    """Odd sizes, so that no part is full; shared and frozen parameters; buffers of two kinds, and one not saved."""

    count: torch.Tensor
    scale: torch.Tensor
    cache: torch.Tensor

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(6, 37), nn.GELU(), nn.Linear(37, 37, bias=False), nn.GELU(), nn.Linear(37, 6)
        )
        self.first = nn.Linear(6, 6, bias=False)
        self.last = nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.shift = nn.Parameter(torch.randn(7, 3), requires_grad=not frozen)
        self.register_buffer("count", torch.tensor([1 << 40]))
        self.register_buffer("scale", torch.rand(5))
        self.register_buffer("cache", torch.rand(5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(self.first(x))) + self.shift.sum() * self.scale.sum()


def _trained(stage: int, precision: str, sync: dict[str, Any], frozen: bool) -> Any:
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import groups

    from geocomm.train.loop.engine import create_engine
    from geocomm.train.loop.shm_operator import load_operator
    from geocomm.train.loop.train_config import RunConfig

    load_operator(print)
    accelerator: Any = get_accelerator()
    accelerator.is_fp16_supported = lambda: True  # torch computes it on any CPU
    deepspeed.init_distributed(dist_backend="geocomm", auto_mpi_discovery=False)
    groups.mpu = None  # that of the engine before
    torch.manual_seed(5)
    net: Any = Net(frozen)
    sections = {
        "training": {"precision": precision, "zero_stage": stage, "initial_scale_power": 8},
        "schedule": {"warmup_steps": 1},
        "sync": sync,
        # Some parameters are whole on every rank, others are not, and there are more groups than the optimizer's.
        "deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 50, "sub_group_size": 300}},
    }
    return create_engine(RunConfig.model_validate(sections), net)


def _values(engine: Any) -> Values:
    """Collective."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param

    optimizer = engine.optimizer
    copies: dict[int, torch.Tensor] = {}
    for own, group in zip(getattr(optimizer, "fp16_groups", ()), getattr(optimizer, "fp32_groups", ()), strict=False):
        copies |= {id(parameter): one for parameter, one in zip(own, group, strict=True)}
    found: Values = {}
    for name, parameter in engine.module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            weight = parameter.detach().clone()
        master = copies.get(id(parameter))
        if master is None and parameter.requires_grad:
            master = safe_get_full_fp32_param(parameter)
        found[name] = (weight, None if master is None else master.detach().clone())
    return found


def _saved(
    sites: list[str], stage: int, precision: str, sync: dict[str, Any], roots: list[str], frozen: bool
) -> tuple[Values, dict[str, torch.Tensor]]:
    """Train and write a checkpoint below each rank's root; what the engine held, and its buffers."""
    import contextlib

    from geocomm.core.place import Place
    from geocomm.train.loop.engine import apply_gradients, set_learning_rate
    from geocomm.train.loop.train_checkpoint import Progress, RunCheckpoints

    rank, world = dist.get_rank(), len(sites)
    trained = _trained(stage, precision, sync, frozen)
    engine, local = trained.engine, trained.local
    own = sites.count(sites[rank])
    in_site = local is not None if stage == 0 or stage == 3 else bool(sync)
    manifest = {
        "model": {"hidden_size": 37},
        "world_size": world,
        "zero_stage": stage,
        "precision": precision,
        "shard_ranks": own if stage and in_site else world,
        "sync_mode": sync.get("mode", "gradients"),
        "sites": {site: sites.count(site) for site in sorted(set(sites), key=sites.index)},
        "site_of_rank": sites,
    }
    place = Place(rank, world, local_rank=rank, local_world_size=world, site=sites[rank])
    checkpoints = RunCheckpoints(trained, place, Path(roots[rank]), 2, manifest)
    for step in range(STEPS):
        if local is not None:
            local.before_step(step)
        set_learning_rate(engine, 1e-2)
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(8, 6, generator=generator).to(DTYPES[precision])
        engine.backward((engine(x).float() - x.float().sin()).square().mean())
        apply_gradients(trained)
    assert not engine.skipped_steps
    checkpoints.save(Progress(STEPS, 0))
    with contextlib.nullcontext() if local is None else local.anchor():
        values = _values(engine)
    if local is not None:
        local.finish()
    return values, {name: one.clone() for name, one in engine.module.named_buffers()}


def _require_equal(folders: list[Path], values: Values, buffers: dict[str, torch.Tensor], precision: str) -> None:
    opened = open_checkpoint(folders[0], folders[1:])
    assert opened.manifest["step"] == STEPS
    computed, masters = opened.weights(), opened.weights(torch.float32)
    names = [*Net(frozen=False).state_dict()]
    assert list(computed) == list(masters) == names
    for name, (weight, master) in values.items():
        _require_same(computed[name], weight)
        _require_same(masters[name], weight.float() if master is None else master)
        if master is not None:  # what the trainer computes with is its master, rounded
            _require_same(masters[name].to(DTYPES[precision]), weight)
    _require_same(computed["scale"], buffers["scale"])
    _require_same(masters["scale"], buffers["scale"].float())
    for weights in (computed, masters):
        _require_same(weights["last.weight"], weights["first.weight"])
        _require_same(weights["count"], buffers["count"])
    assert not any(torch.equal(weight.float(), one.detach()) for (weight, _), one in _trained_pairs(values))


def _trained_pairs(values: Values) -> list[Any]:
    """Each parameter that was trained, beside what it was initialized to."""
    torch.manual_seed(5)
    before = dict(Net(frozen=False).named_parameters())
    return [(values[name], before[name]) for name in values if values[name][1] is not None]


def _require_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.is_contiguous()
    assert found.untyped_storage().nbytes() == found.nbytes  # of its own
    assert torch.equal(found, expected)


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("stage", "precision", "sync"),
    [
        pytest.param(0, "fp32", PLAIN, id="zero0-fp32-gradients"),
        pytest.param(0, "bf16", PLAIN, id="zero0-bf16-gradients"),
        pytest.param(1, "bf16", PLAIN, id="zero1-bf16-gradients"),
        pytest.param(2, "fp16", PLAIN, id="zero2-fp16-gradients"),
        pytest.param(3, "fp32", PLAIN, id="zero3-fp32-gradients"),
        pytest.param(3, "bf16", PLAIN, id="zero3-bf16-gradients"),
        pytest.param(0, "fp32", CODEC, id="zero0-fp32-codec", marks=slow),
        pytest.param(1, "fp32", CODEC, id="zero1-fp32-codec", marks=slow),
        pytest.param(1, "fp16", CODEC, id="zero1-fp16-codec"),
        pytest.param(2, "bf16", CODEC, id="zero2-bf16-codec"),
        pytest.param(0, "bf16", LOCAL, id="zero0-bf16-local"),
        pytest.param(0, "fp32", LOCAL, id="zero0-fp32-local", marks=slow),
        pytest.param(1, "bf16", LOCAL, id="zero1-bf16-local"),
        pytest.param(2, "fp32", LOCAL, id="zero2-fp32-local", marks=slow),
        pytest.param(2, "bf16", LOCAL, id="zero2-bf16-local", marks=slow),
        pytest.param(3, "fp32", LOCAL, id="zero3-fp32-local", marks=slow),
        pytest.param(3, "bf16", LOCAL, id="zero3-bf16-local"),
    ],
)
def test_weights_of_a_checkpoint_are_the_engines_bit_for_bit(
    even: Ranks, tmp_path: Path, stage: int, precision: str, sync: dict[str, Any]
) -> None:
    frozen = stage > 0 or precision == "fp32"
    results = even.run(_saved, even.sites, stage, precision, sync, [str(tmp_path)] * even.size, frozen)
    for values, buffers in results:  # all ranks hold the same
        _require_equal([tmp_path / f"step-{STEPS:08d}"], values, buffers, precision)


@pytest.mark.parametrize(
    ("stage", "precision", "sync"),
    [
        pytest.param(2, "bf16", PLAIN, id="zero2-bf16-gradients"),
        pytest.param(3, "fp32", PLAIN, id="zero3-fp32-gradients"),
        pytest.param(1, "bf16", CODEC, id="zero1-bf16-codec"),
        pytest.param(3, "bf16", LOCAL, id="zero3-bf16-local", marks=slow),
    ],
)
def test_weights_of_a_checkpoint_on_a_disk_for_each_rank_need_one_copy_of_each_shard(
    even: Ranks, tmp_path: Path, stage: int, precision: str, sync: dict[str, Any]
) -> None:
    results = even.run(
        _saved, even.sites, stage, precision, sync, [str(tmp_path / str(rank)) for rank in range(even.size)], True
    )
    folders = [tmp_path / str(rank) / f"step-{STEPS:08d}" for rank in range(even.size)]
    of_site_b = folders[1:3]
    enough = folders if sync == PLAIN else of_site_b
    _require_equal(enough, *results[0], precision)
    _require_equal(enough[::-1], *results[0], precision)
    lacking = enough[:-1]
    with pytest.raises(BadInput) as caught:
        open_checkpoint(lacking[0], lacking[1:]).weights(torch.float32)
    missing = len(lacking)  # ranks write the shards of their number, in the world or in their site
    said = str(caught.value)
    assert f"zero_pp_rank_{missing}_" in said
    assert str(lacking[0]) in said
    assert "--shards" in said
    assert ("rank 3 of site" if sync == PLAIN else "rank 1 of those at site a or b") in said


@pytest.mark.slow  # test_export_of_runs.py has one such run
@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16"), (3, "fp32"), (3, "bf16")])
def test_weights_of_sites_of_unequal_size_come_from_any_site(
    uneven: Ranks, tmp_path: Path, stage: int, precision: str
) -> None:
    roots = [str(tmp_path / site) for site in uneven.sites]
    results = uneven.run(_saved, uneven.sites, stage, precision, LOCAL, roots, True)
    a, b = (tmp_path / site / f"step-{STEPS:08d}" for site in "ab")
    for folders in ([a], [b], [a, b], [b, a]):
        _require_equal(folders, *results[0], precision)
    for file in b.glob("deepspeed/*zero_pp_rank_1_*"):
        file.unlink()
    _require_equal([b, a], *results[0], precision)
