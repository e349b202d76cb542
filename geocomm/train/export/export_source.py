"""What `geocomm export` is pointed at: a run, a checkpoint, or an exported model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PreTrainedConfig

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.train.export.checkpoint_weights import open_checkpoint
from geocomm.train.export.dcp_weights import open_dcp
from geocomm.train.export.export_record import Dtype, HeldOut, TrainedBy
from geocomm.train.export.run_text import HeldOutText, held_out_text, read_log, read_run_config
from geocomm.train.export.weights import DTYPE_NAMES, DTYPES, Weights
from geocomm.train.models.model_factory import folder_config, preset_config
from geocomm.train.runs.run_folder import MANIFEST, RunFolder


@dataclass(frozen=True)
class ExportSource:
    """Weights, and what is known about them."""

    hf_config: PreTrainedConfig
    open_weights: Callable[[torch.dtype], Weights]
    """Opens the weights from which a model of this type is made; finer ones are left to be rounded."""
    precision: Dtype
    """The type that the training computed with."""
    trained_by: TrainedBy
    tokenizer: str | None
    """The tokenizer, as `data.tokenizer` names it; None: not known."""
    data: str | None = None
    """The fingerprint of the training's data."""
    open_text: Callable[[], HeldOutText] | None = None
    """Reads the held-out text of the run, which may take long; BadInput where it is not here. None: nobody knows it."""
    held_out: HeldOut | None = None
    """The losses that the run logged."""


@dataclass(frozen=True)
class Given:
    """What the user says beside the folder."""

    shards: Sequence[Path] = ()
    model: Path | None = None
    preset: str | None = None
    tokenizer: str | None = None


def open_run(checkpoint: Path, given: Given) -> ExportSource:
    """A checkpoint of `geocomm train`, with what its run's folder tells. Raises BadInput."""
    if given.model is not None or given.preset is not None:
        raise BadInput(f"{checkpoint} says itself which model it is; leave out --model and --preset")
    opened = open_checkpoint(checkpoint, given.shards)
    manifest = opened.manifest
    run = RunFolder(checkpoint.absolute().parent.parent)
    config = read_run_config(run)
    precision: Dtype = manifest["precision"]
    logged = read_log(run, manifest["step"])
    sync: dict[str, Any] = config.get("sync", {})

    def weights(dtype: torch.dtype) -> Weights:
        return opened.weights(None if dtype == DTYPES[precision] else torch.float32)

    return ExportSource(
        hf_config=_config_of(manifest["model"], checkpoint),
        open_weights=weights,
        precision=precision,
        trained_by=TrainedBy(
            path=str(checkpoint),
            step=manifest["step"],
            world_size=manifest["world_size"],
            sites=manifest["sites"],
            zero_stage=manifest["zero_stage"],
            precision=precision,
            sync_mode=manifest.get("sync_mode"),
            sync_preset=sync.get("preset") if manifest.get("sync_mode") == "local" else None,
            sync_codec=sync.get("codec"),
            codec=logged.codec,
        ),
        tokenizer=given.tokenizer or config.get("data", {}).get("tokenizer"),
        data=manifest["data"],
        open_text=partial(held_out_text, config, manifest),
        held_out=logged.held_out,
    )


def open_torch_checkpoint(folder: Path, given: Given) -> ExportSource:
    """A folder of torch.distributed.checkpoint, which does not say of which model it is. Raises BadInput."""
    if given.shards:
        raise BadInput("--shards is for checkpoints of geocomm train; put all files of this one into one folder")
    if (given.model is None) == (given.preset is None):
        raise BadInput(f"{folder} does not say of which model it is: give --model with a config.json, or --preset")
    weights = open_dcp(folder)
    first = weights[next(iter(weights))].dtype
    if given.model is not None:
        hf_config = folder_config(given.model, "--model")
    else:
        hf_config = preset_config(given.preset or "", load_tokenizer(given.tokenizer or "byte"), "--preset")
    return ExportSource(
        hf_config=hf_config,
        open_weights=lambda dtype: weights,
        precision=DTYPE_NAMES.get(first, "fp32"),
        trained_by=TrainedBy(path=str(folder)),
        tokenizer=given.tokenizer,
    )


def _config_of(fields: dict[str, Any], checkpoint: Path) -> PreTrainedConfig:
    """The configuration that a checkpoint's manifest holds."""
    more = dict(fields)
    try:
        return AutoConfig.for_model(more.pop("model_type"), **more)
    except (KeyError, ValueError, TypeError) as error:
        raise BadInput(
            f"{checkpoint / MANIFEST} describes no model that this transformers knows: {' '.join(str(error).split())}"
        ) from None
