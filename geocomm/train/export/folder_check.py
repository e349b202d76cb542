"""An exported Hugging Face folder, loaded as anybody would load it, against the weights that it was made from."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype, Verification
from geocomm.train.export.hf_folder import HfModel
from geocomm.train.export.run_text import HeldOutText
from geocomm.train.models.held_out_loss import held_out_sums

_LONGEST = 256
"""The tokens of a sequence whose logits are compared; more would need much disk with a large vocabulary."""
_RANDOM_SEED = 0
_LOSS_LIMITS: dict[Dtype, float] = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 2e-2}
"""How far the loss may be from the run's: what another number of threads, or a GPU, changes."""


@dataclass(frozen=True)
class Checked:
    """What the comparison found."""

    verification: Verification
    loss: float | None
    """The loss on the held-out text; None: there is none."""


def check_folder(folder: Path, model: HfModel, sequences: int, text: HeldOutText | None) -> Checked:
    """Compare logits on up to `sequences` sequences, and compute the held-out loss.

    The two models are in memory one after the other. Raises BadInput where their logits differ in any bit.
    """
    rows = _rows(sequences, text, model.hf_config)
    shape = (*rows.shape, int(model.hf_config.vocab_size))
    with tempfile.TemporaryFile(dir=folder.parent) as file:
        expected = np.memmap(file, np.float32, "w+", shape=shape)
        loaded = _load(folder)
        for index, row in enumerate(rows):
            expected[index] = _logits(loaded, row).numpy()
        loss = None if text is None else _held_out_loss(loaded, text)
        del loaded
        gc.collect()  # modules refer to each other in circles
        built = _build(model)
        worst, equal = 0.0, True
        for index, row in enumerate(rows):
            logits, other = _logits(built, row), torch.from_numpy(expected[index])
            difference = float((logits - other).abs().max())
            worst = difference if not difference <= worst else worst  # so that NaN stays
            equal = equal and bool((logits.argmax(-1) == other.argmax(-1)).all())
    if worst != 0 or not equal:
        raise BadInput(
            f"the exported model is another one when it is loaded: its logits differ by up to {worst:g} from those of "
            "the weights; please report this, with the version of transformers"
        )
    found = Verification(sequences=len(rows), held_out=text is not None, max_logit_difference=worst, argmax_equal=equal)
    return Checked(found, loss)


def require_run_loss(loss: float, run_loss: float, exported: Dtype, computed: Dtype) -> None:
    """Raises BadInput where the loss is not that of the run, for weights of one type in a run that computed in one."""
    limit = max(_LOSS_LIMITS[exported], _LOSS_LIMITS[computed])
    if not abs(loss - run_loss) <= limit:
        raise BadInput(
            f"the exported model has a held-out loss of {loss:.6f}, and the run logged {run_loss:.6f} for this step: "
            "the files of the checkpoint are not those that the run wrote, or its log is another run's"
        )


def _rows(sequences: int, text: HeldOutText | None, hf_config: PreTrainedConfig) -> NDArray[np.int64]:
    if text is not None:
        numbers = [int(number) for number in text.data.held_out(sequences)]
        return text.data.rows(numbers)[:, :_LONGEST]
    longest = min(_LONGEST, getattr(hf_config, "max_position_embeddings", None) or _LONGEST)
    return np.random.default_rng(_RANDOM_SEED).integers(0, int(hf_config.vocab_size), (sequences, longest))


def _load(folder: Path) -> PreTrainedModel:
    found: Any = AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype="auto", output_loading_info=True
    )
    model, info = found
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            raise BadInput(
                f"transformers finds {what.replace('_', ' ')} in the exported model: {min(map(str, info[what]))}"
            )
    return model.eval()


def _build(model: HfModel) -> PreTrainedModel:
    """The model with the weights put in one by one, without any conversion."""
    built = AutoModelForCausalLM.from_config(model.hf_config, dtype=torch.float32)
    state = built.state_dict(keep_vars=True)
    for tensor in state.values():  # what was drawn makes room
        tensor.data = torch.empty(0)
    for name, tensor in state.items():
        weight = model.weights[name]
        tensor.data = weight.to(model.layout.stored_type(name, weight.dtype))
    return built.eval()


@torch.no_grad()
def _logits(model: PreTrainedModel, row: NDArray[np.int64]) -> torch.Tensor:
    return model(input_ids=torch.from_numpy(row)[None]).logits[0].float()


def _held_out_loss(model: PreTrainedModel, text: HeldOutText) -> float:
    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        return model(input_ids=rows, labels=rows).loss

    sums = torch.zeros(2, dtype=torch.float64)
    for rank in range(text.ranks):
        sums += held_out_sums(loss_of, text.data, rank, text.ranks, text.limit, text.batch_size, torch.device("cpu"))
    loss_sum, count = sums.tolist()
    return loss_sum / count
