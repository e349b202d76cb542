"""Checkpoints of whole runs of the driver, read as DeepSpeed's own tool reads them, and as the model is loaded."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from transformers import AutoModelForCausalLM, DeepseekV3Config

from geocomm.core.bad_input import BadInput
from geocomm.train.export.checkpoint_weights import open_checkpoint
from support.train_ranks import require_success, run_ranks

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")

STEP = 2
RUN = [f"training.steps={STEP}", f"checkpoint.every_steps={STEP}", "evaluation.max_sequences=2"]
GEOCOMM = "distributed.backend=geocomm"
LOCAL = ("sync.mode=local", "sync.every=1", "sync.overlap=0")
TIED = (
    "model.overrides={num_hidden_layers: 2, hidden_size: 64, intermediate_size: 64, moe_intermediate_size: 32, "
    "tie_word_embeddings: true}"
)


def _run(folder: Path, sites: list[str], *settings: str) -> list[Path]:
    """The checkpoints of a run whose ranks have a disk each."""
    disks = [folder / f"disk{rank}" for rank in range(len(sites))]
    own = {rank: [f"output_dir={disk}"] for rank, disk in enumerate(disks)}
    require_success(run_ranks(folder, [*RUN, *settings], sites=sites, per_rank=own))
    return [disk / "checkpoints" / f"step-{STEP:08d}" for disk in disks]


def _by_deepspeed(folder: Path, copies: list[Path]) -> dict[str, torch.Tensor]:
    """What DeepSpeed's tool makes of the files of all disks in one folder; where several have one, of the first."""
    for copy in reversed(copies):
        shutil.copytree(copy, folder, dirs_exist_ok=True)
    return dict(get_fp32_state_dict_from_zero_checkpoint(str(folder), tag="deepspeed"))


def _require_model(copies: list[Path]) -> None:
    """What is read is all that the model of the manifest has, and nothing else."""
    opened = open_checkpoint(copies[0], copies[1:])
    model = AutoModelForCausalLM.from_config(DeepseekV3Config(**opened.manifest["model"]))
    model.load_state_dict(dict(opened.weights(torch.float32)), strict=True)


@pytest.mark.parametrize(
    ("sites", "settings"),
    [
        pytest.param(["a", "b"], [TIED, "training.zero_stage=3"], id="zero3-fp32-tied"),
        pytest.param(
            ["a", "a", "b", "b"],
            [TIED, GEOCOMM, "training.zero_stage=2", "training.precision=bf16", "sync.codec=int4"],
            id="zero2-bf16-tied-codec",
        ),
        pytest.param(
            ["a", "b", "b"],
            [GEOCOMM, "training.zero_stage=3", "training.precision=bf16", *LOCAL],
            id="zero3-bf16-local",
        ),
    ],
)
def test_weights_of_a_run_equal_those_of_deepspeeds_tool(tmp_path: Path, sites: list[str], settings: list[str]) -> None:
    copies = _run(tmp_path, sites, *settings)
    of_last_site = [copy for copy, site in zip(copies, sites, strict=True) if site == sites[-1]]
    enough = of_last_site if GEOCOMM in settings else copies
    expected = _by_deepspeed(tmp_path / "whole", enough)
    opened = open_checkpoint(enough[0], enough[1:])
    weights = opened.weights(torch.float32)
    assert opened.manifest["sites"] == {site: sites.count(site) for site in dict.fromkeys(sites)}
    missing = set(weights) - set(expected)  # the tool knows tied names from rank 0 alone
    assert missing <= {"lm_head.weight"}
    assert set(expected) <= set(weights)
    for name in set(expected):
        assert torch.equal(weights[name], expected[name]), name
    if TIED in settings:
        assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    _require_model(enough)


def test_checkpoint_of_a_run_without_zero_is_read_from_any_disk(tmp_path: Path) -> None:
    copies = _run(tmp_path, ["a", "b"], "training.precision=bf16")
    for copy in copies:
        opened = open_checkpoint(copy)
        module = torch.load(copy / "deepspeed" / "mp_rank_00_model_states.pt", weights_only=False)["module"]
        computed, masters = opened.weights(), opened.weights(torch.float32)
        assert list(computed) == list(module)
        for name, value in module.items():
            assert torch.equal(computed[name], value)
            assert torch.equal(masters[name].bfloat16(), value)
    assert any(not torch.equal(masters[name], value.float()) for name, value in module.items())
    _require_model([copies[0]])


@pytest.mark.slow
def test_checkpoint_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    copies = _run(tmp_path, ["a", "b"], "training.zero_stage=3")
    with pytest.raises(BadInput, match=r"rank 1 of site b"):
        open_checkpoint(copies[0])
