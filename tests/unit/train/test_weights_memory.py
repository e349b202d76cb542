"""Reading a model of many parameters takes the memory of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from geocomm.train.export.checkpoint_weights import open_checkpoint
from geocomm.train.export.dcp_weights import open_dcp

COUNT = 24
SHAPE = torch.Size([1024, 1024])
BYTES = SHAPE.numel() * 4


def _anonymous_bytes() -> int:
    """Of this process: memory that is not a file's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


def _zero_3(root: Path) -> Path:
    """As DeepSpeed lays out a model of two partitions."""
    folder = root / "step-00000001"
    (folder / "deepspeed").mkdir(parents=True)
    names = [f"weight{index}" for index in range(COUNT)]
    manifest = {"format": 1, "step": 1, "world_size": 2, "zero_stage": 3, "precision": "bf16", "shard_ranks": 2}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "sites": {"a": 2}, "model": {}}))
    model = {"module": {name: torch.empty(0, dtype=torch.bfloat16) for name in names}, "buffer_names": []}
    model |= {"param_shapes": [dict.fromkeys(names, SHAPE)], "frozen_param_shapes": {}}
    for rank in range(2):
        torch.save(model, folder / "deepspeed" / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        optimizer = {"partition_count": 2, "fp32_flat_groups": [torch.ones(COUNT * SHAPE.numel() // 2)]}
        path = folder / "deepspeed" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer}, path)
    return folder


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["zero 3", "dcp"])
def test_iteration_over_the_weights_takes_the_memory_of_one_parameter(tmp_path: Path, kind: str) -> None:
    if kind == "dcp":
        dcp.save({"model": {f"weight{index}": torch.ones(SHAPE) for index in range(COUNT)}}, checkpoint_id=tmp_path)
    folder = tmp_path if kind == "dcp" else _zero_3(tmp_path)
    before = _anonymous_bytes()
    weights = open_dcp(folder) if kind == "dcp" else open_checkpoint(folder).weights(torch.float32)
    most, seen = 0, 0
    for value in weights.values():
        most = max(most, _anonymous_bytes() - before)
        seen += value.nbytes
        assert value.shape == SHAPE
        assert bool((value == 1).all())
    assert seen == COUNT * BYTES
    assert most < 8 * BYTES  # some of it is of threads that start meanwhile
