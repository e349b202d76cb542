"""`geocomm export`: from what a training saved to a folder of a format, which is loaded again and compared.

ONNX is made from a Hugging Face folder.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from geocomm._version import __version__
from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import new_folder
from geocomm.core.installation import install_command
from geocomm.train.export.export_record import (
    RECORD,
    Dtype,
    ExportRecord,
    FileFacts,
    HeldOut,
    Verification,
    read_hf_record,
)
from geocomm.train.export.export_source import ExportSource, Given, open_run, open_torch_checkpoint
from geocomm.train.export.hf_folder import HfModel, finish_folder, write_hf_files
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.run_text import HeldOutText
from geocomm.train.export.weights import DTYPES
from geocomm.train.export.weights_found import find_weights
from geocomm.train.models.model_factory import held_out_sums

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


Say = Callable[[str], None]


def export_hf(path: Path, out: Path, given: Given, dtype: Dtype | None, verify: int, say: Say) -> ExportRecord:
    """Make the Hugging Face folder `out` from a run, a checkpoint, a DCP folder or an exported model.

    dtype: None for that of the training. verify: sequences to compare it on after it was loaded again; 0: none.
    Raises BadInput; `out` then is as it was.
    """
    found = find_weights(path)
    if found.kind == "exported":
        say(f"copying {found.path}: there is no checkpoint to make another model from")
        return _copy_exported(found.path, out, given, dtype)
    source = (open_run if found.kind == "checkpoint" else open_torch_checkpoint)(found.path, given)
    if source.tokenizer is None:
        raise BadInput(f"{path} does not say which tokenizer it was trained with: give --tokenizer byte, or a folder")
    exported = dtype or source.precision
    torch_dtype = DTYPES[exported]
    layout = OriginalLayout(source.hf_config, torch_dtype)
    weights = source.open_weights(torch_dtype)
    model = HfModel(source.hf_config, weights, layout, torch_dtype, source.tokenizer)
    say(f"exporting {source.trained_by.path}: {layout.parameters / 1e6:.2f}M parameters, {exported}")
    with new_folder(out) as folder:
        files = write_hf_files(folder, model)
        text, no_text = _text(source, say) if verify else (None, "nobody asked for it")
        checked = check_folder(folder, model, verify, text) if verify else None
        record = ExportRecord(
            format="hf",
            geocomm=__version__,
            source=source.trained_by,
            model_type=source.hf_config.model_type,
            dtype=exported,
            parameters=layout.parameters,
            data=source.data,
            held_out=_held_out(source, text, checked, exported),
            held_out_reason=no_text,
            verify=None if checked is None else checked.verification,
            files={},
        )
        return finish_folder(folder, record, files)


def export_onnx(path: Path, out: Path, given: Given, dtype: Dtype | None, verify: int, say: Say) -> ExportRecord:
    """As `export_hf`, for ONNX; `path` may also be a Hugging Face folder of geocomm, or a run that has one.

    Raises BadInput; `out` then is as it was.
    """
    if dtype not in (None, "fp32"):
        raise BadInput(f"--format onnx has weights of fp32, not {dtype}: leave out --dtype")
    need_packages("onnx", "onnxscript", "onnxruntime")
    with new_folder(out) as folder, _hf_folder(path, folder, given, verify, say) as (hf_folder, made):
        from geocomm.train.export.onnx_export import write_onnx

        facts = write_onnx(hf_folder, folder, verify, say)
        verified = Verification(
            sequences=facts.sequences,
            held_out=False,
            max_logit_difference=facts.largest_difference,
            argmax_equal=facts.positions_argmax_equal == facts.positions,
        )
        changes: dict[str, Any] = {
            "format": "onnx",
            "dtype": "fp32",
            "verify": verified if verify else None,
            # The loss was computed with the Hugging Face folder.
            "held_out": made.held_out and made.held_out.model_copy(update={"loss": None}),
        }
        return finish_folder(folder, made.model_copy(update=changes), {})


def need_packages(*packages: str) -> None:
    """Raises BadInput that names those of `packages` which cannot be imported, and how to install them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise BadInput(f"--format onnx needs {', '.join(missing)}: {install_command('export')}")


def _copy_exported(exported: Path, out: Path, given: Given, dtype: Dtype | None) -> ExportRecord:
    """Copy the folder to `out`, file by file as its record lists them; each must have its SHA-256.

    Raises BadInput where a file is another one, and for what a copy cannot change; `out` then is as it was.
    """
    record = read_hf_record(exported)
    if given != Given():
        raise BadInput(
            f"{exported} has its configuration and tokenizer; leave out --model, --preset, --tokenizer, --shards"
        )
    if dtype not in (None, record.dtype):
        raise BadInput(
            f"{exported} has weights of {record.dtype}, and the run has no checkpoint to make others from: leave out "
            f"--dtype, or train with checkpoint.at_end=true"
        )
    with new_folder(out) as folder:
        for name, facts in record.files.items():
            if Path(name).name != name:
                raise BadInput(
                    f"{exported / RECORD} lists {name!r}, which is no file of this folder; export the model again"
                )
            try:
                shutil.copyfile(exported / name, folder / name)
            except FileNotFoundError:
                raise BadInput(f"{exported / name} is missing; export the model again") from None
            if FileFacts.of(folder / name) != facts:
                raise BadInput(
                    f"{exported / name} is not the file that geocomm wrote: its SHA-256 is another one; export the "
                    f"model again, or copy the folder as it is: cp -r {exported} {out}"
                )
        (folder / RECORD).write_text(record.text(), encoding="utf-8")
    return record


@contextlib.contextmanager
def _hf_folder(path: Path, beside: Path, given: Given, verify: int, say: Say) -> Generator[tuple[Path, ExportRecord]]:
    """The Hugging Face folder that is there, or one of fp32 that is made for the block."""
    found = find_weights(path)
    if found.kind == "exported":
        yield found.path, read_hf_record(found.path)
        return
    with tempfile.TemporaryDirectory(prefix=f"{beside.name}-hf", dir=beside.parent) as made:
        yield Path(made), export_hf(path, Path(made), given, "fp32", verify, say)


def _text(source: ExportSource, say: Say) -> tuple[HeldOutText | None, str | None]:
    """The held-out text of the run, or why it is not here."""
    if source.open_text is None:
        return None, "the checkpoint does not say on what text it was trained"
    try:
        return source.open_text(), None
    except BadInput as error:
        say(f"without the text of the run ({error}) the model is compared on random tokens")
        return None, str(error)


def _held_out(
    source: ExportSource, text: HeldOutText | None, checked: Checked | None, exported: Dtype
) -> HeldOut | None:
    """The loss of the exported model beside what the run logged. Raises BadInput where they are not of one model."""
    logged = source.held_out
    if text is None or checked is None or checked.loss is None:
        return logged
    if logged is None or logged.run_loss is None:
        return HeldOut(sequences=text.sequences, loss=checked.loss)
    require_run_loss(checked.loss, logged.run_loss, exported, source.precision)
    return HeldOut(sequences=text.sequences, loss=checked.loss, run_loss=logged.run_loss)
