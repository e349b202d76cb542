"""The driver with sync.codec over two sites: DeepSpeed's stages and precisions, resume, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

import torch

from support.train_ranks import copy_checkpoint, entries, losses, require_refusal, require_success, run_ranks

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")

GEOCOMM = ("distributed.backend=geocomm", "training.steps=6", "evaluation.at_end=false")
FEEDBACK = (
    *GEOCOMM,
    "sync.codec=balanced",
    "sync.warmup_steps=1",
    "sync.exact_below=1000",
    "sync.guard_steps=2",
    "checkpoint.every_steps=3",
    "checkpoint.at_end=true",
)
ONE_EACH = ("a", "b")
TOLERANCE = 0.05
"""Of a loss that falls from 5.6 to 5.1 in these steps."""
TWO_EACH = ("a", "a", "b", "b")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """Without sync.codec, by sites."""
    folders = {}
    for sites in (ONE_EACH, TWO_EACH):
        folders[sites] = tmp_path_factory.mktemp("exact")
        require_success(run_ranks(folders[sites], list(GEOCOMM), sites=sites))
    return folders


def _model(folder: Path, step: int) -> dict[str, Any]:
    path = folder / "run" / "checkpoints" / f"step-{step:08d}" / "deepspeed" / "mp_rank_00_model_states.pt"
    return torch.load(path, weights_only=False)["module"]


def _steps(folder: Path) -> list[dict[str, Any]]:
    return entries(folder, "step")


@pytest.mark.parametrize(
    ("sites", "stage", "precision"),
    [
        (ONE_EACH, 0, "fp32"),
        pytest.param(TWO_EACH, 2, "fp32", marks=pytest.mark.slow),
        pytest.param(TWO_EACH, 0, "bf16", marks=pytest.mark.slow),
        pytest.param(TWO_EACH, 1, "fp32", marks=pytest.mark.slow),
        pytest.param(TWO_EACH, 1, "bf16", marks=pytest.mark.slow),
        pytest.param(TWO_EACH, 2, "bf16", marks=pytest.mark.slow),
        pytest.param(ONE_EACH, 1, "fp32", marks=pytest.mark.slow),
    ],
)
def test_feedback_follows_the_exact_run_sends_less_and_resumes_bit_for_bit(
    exact: dict[tuple[str, ...], Path], tmp_path: Path, sites: tuple[str, ...], stage: int, precision: str
) -> None:
    settings = [*FEEDBACK, f"training.zero_stage={stage}", f"training.precision={precision}", "sync.adaptive=false"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    require_success(run_ranks(whole, settings, sites=sites))
    assert losses(whole) == pytest.approx(losses(exact[sites]), abs=TOLERANCE)
    for entry in _steps(whole)[2:]:
        assert entry["sync"]["codec"] == "balanced"
        assert 0 < entry["sync"]["nmse"] < 1
        assert entry["wire_bytes_sent"] < _steps(exact[sites])[2]["wire_bytes_sent"] / 3

    copy_checkpoint(whole, resumed, 3)
    require_success(run_ranks(resumed, [*settings, "checkpoint.resume=required"], sites=sites))
    assert losses(resumed) == {step: loss for step, loss in losses(whole).items() if step > 3}
    first, second = _model(whole, 6), _model(resumed, 6)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("sites", "stage"), [(ONE_EACH, 0), *[pytest.param(TWO_EACH, stage, marks=pytest.mark.slow) for stage in (1, 2)]]
)
def test_exact_codec_gives_the_losses_of_deepspeed(
    exact: dict[tuple[str, ...], Path], tmp_path: Path, sites: tuple[str, ...], stage: int
) -> None:
    settings = [*GEOCOMM, "sync.codec=none", f"training.zero_stage={stage}"]
    require_success(run_ranks(tmp_path, settings, sites=sites))
    if stage == 0:
        assert losses(tmp_path) == losses(exact[sites])
    else:
        assert losses(tmp_path) == pytest.approx(losses(exact[sites]), abs=1e-5)


def test_codec_of_the_configuration_beats_that_of_the_environment(
    exact: dict[tuple[str, ...], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEOCOMM_CODEC", "none")
    require_success(run_ranks(tmp_path, [*GEOCOMM, "distributed.codec=int8"], sites=ONE_EACH))
    compressed, uncompressed = (entries(folder, "step")[-1] for folder in (tmp_path, exact[ONE_EACH]))
    assert compressed["codec"] == "int8"
    assert compressed["wire_bytes_sent"] < 0.5 * uncompressed["wire_bytes_sent"]


@pytest.mark.parametrize(
    ("before", "after", "stage", "precision"),
    [
        (("a", "b", "c"), ("a", "c"), 0, "fp32"),
        pytest.param(("a", "b"), ("a", "a", "b", "c"), 0, "bf16", marks=pytest.mark.slow),
        pytest.param(("a", "a", "b", "b", "c", "c"), ("c", "c", "b", "b"), 2, "fp32", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_other_sites(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...], stage: int, precision: str
) -> None:
    settings = [*FEEDBACK, f"training.zero_stage={stage}", f"training.precision={precision}"]
    require_success(run_ranks(tmp_path, [*settings, "training.steps=3"], sites=before))
    other = tmp_path / "other"
    copy_checkpoint(tmp_path, other, 3)
    ended = run_ranks(other, [*settings, "training.steps=4"], sites=after)
    require_success(ended)
    assert f"resuming after step 3 of {len(before)} ranks" in ended[0].out
    assert losses(other)[4] < losses(tmp_path)[3] + TOLERANCE
    assert _steps(other)[0]["sync"]["codec"] == "balanced"  # the exact steps at the beginning are over
    start = entries(other, "start")[0]
    assert (start["ranks_before"], sum(start["sites"].values())) == (len(before), len(after))


@pytest.mark.slow
def test_residuals_that_no_machine_has_are_told(tmp_path: Path) -> None:
    settings = [*FEEDBACK, "training.steps=3"]
    require_success(run_ranks(tmp_path, settings, sites=("a", "b", "c")))
    (tmp_path / "run" / "checkpoints" / "step-00000003" / "rank-00001.pt").unlink()
    ended = run_ranks(tmp_path, [*settings, "training.steps=4"], sites=("a", "c"))
    require_success(ended)
    assert "no machine has the residuals of ranks 1" in ended[0].out


@pytest.mark.slow
def test_disks_of_their_own_hold_every_shard_of_their_site(tmp_path: Path) -> None:
    own = {rank: [f"output_dir={tmp_path / f'disk{site}' / 'run'}"] for rank, site in enumerate(TWO_EACH)}
    settings = [*FEEDBACK, "training.zero_stage=2"]
    for steps in (3, 6):
        require_success(run_ranks(tmp_path, [*settings, f"training.steps={steps}"], sites=TWO_EACH, per_rank=own))
    for disk in ("diska", "diskb"):
        folder = tmp_path / disk / "run" / "checkpoints" / "step-00000006" / "deepspeed"
        assert len(list(folder.glob("*optim_states.pt"))) == 2


@pytest.mark.slow
def test_accumulated_gradients_cross_once(exact: dict[tuple[str, ...], Path], tmp_path: Path) -> None:
    settings = ["training.micro_batch_size=1", "training.gradient_accumulation_steps=2"]
    for stage in (0, 2):
        folder = tmp_path / str(stage)
        require_success(run_ranks(folder, [*FEEDBACK, *settings, f"training.zero_stage={stage}"], sites=TWO_EACH))
        assert losses(folder) == pytest.approx(losses(exact[TWO_EACH]), abs=TOLERANCE)
        for entry in _steps(folder)[2:]:
            assert entry["wire_bytes_sent"] < _steps(exact[TWO_EACH])[2]["wire_bytes_sent"] / 3


def test_codec_that_does_not_exist_is_refused_before_training(tmp_path: Path) -> None:
    require_refusal(run_ranks(tmp_path, [*FEEDBACK, "sync.codec=int9"], sites=ONE_EACH), "int9")
