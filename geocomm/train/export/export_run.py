"""`geocomm export`: from what a training saved to a folder of a format.

ONNX and GGUF are made from a Hugging Face folder.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

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
from geocomm.train.export.folder_check import Checked, check_folder, require_run_loss
from geocomm.train.export.hf_folder import HfModel, finish_folder, write_hf_files
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.run_text import HeldOutText
from geocomm.train.export.weights import DTYPES
from geocomm.train.export.weights_found import find_weights

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


def export_converted(
    path: Path, out: Path, given: Given, kind: Literal["onnx", "gguf"], dtype: Dtype | None, verify: int, say: Say
) -> ExportRecord:
    """Write `kind` as `export_hf` does; `path` may also be a Hugging Face folder of geocomm, or a run that has one.

    Raises BadInput; `out` then is as it was.
    """
    if kind == "onnx" and dtype not in (None, "fp32"):
        raise BadInput(f"--format onnx has weights of fp32, not {dtype}: leave out --dtype")
    with new_folder(out) as folder:
        wanted: Dtype | None = "fp32" if kind == "onnx" else dtype
        with _hf_folder(path, folder, given, wanted, verify, say) as (hf_folder, made):
            if kind == "onnx":
                need_packages(kind, "onnx", "onnxscript", "onnxruntime")
                from geocomm.train.export.onnx_export import write_onnx

                facts = write_onnx(hf_folder, folder, verify, say)
                changes: dict[str, Any] = {"dtype": "fp32", "verify": None}
                if verify:
                    changes["verify"] = Verification(
                        sequences=facts.sequences,
                        held_out=False,
                        max_logit_difference=facts.largest_difference,
                        argmax_equal=facts.positions_argmax_equal == facts.positions,
                    )
            else:
                need_packages(kind, "gguf")
                from geocomm.train.export.gguf_file import write_gguf

                written = wanted or made.dtype
                write_gguf(hf_folder, folder, written, verify, say)
                changes = {"dtype": written, "verify": None}  # the file was read back, but nothing ran it
        # The loss was computed with the Hugging Face folder.
        held_out = made.held_out and made.held_out.model_copy(update={"loss": None})
        return finish_folder(folder, made.model_copy(update={"format": kind, "held_out": held_out, **changes}), {})


def need_packages(format_: str, *packages: str) -> None:
    """Raises BadInput that names those of `packages` which cannot be imported, and how to install them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise BadInput(f"--format {format_} needs {', '.join(missing)}: {install_command('export')}")


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
def _hf_folder(
    path: Path, beside: Path, given: Given, dtype: Dtype | None, verify: int, say: Say
) -> Generator[tuple[Path, ExportRecord]]:
    """The Hugging Face folder that is there, or one that is made for the block."""
    found = find_weights(path)
    if found.kind == "exported":
        yield found.path, read_hf_record(found.path)
        return
    with tempfile.TemporaryDirectory(prefix=f"{beside.name}-hf", dir=beside.parent) as made:
        yield Path(made), export_hf(path, Path(made), given, dtype, verify, say)


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
