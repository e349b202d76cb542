"""`geocomm export` to the formats that are made from a Hugging Face folder: ONNX and GGUF."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype, ExportRecord, Verification, read_hf_record
from geocomm.train.export.export_run import export_hf
from geocomm.train.export.export_source import Given, find_weights
from geocomm.train.export.gguf_export import write_gguf
from geocomm.train.export.hf_folder import finish_folder
from geocomm.train.export.new_folder import new_folder
from geocomm.train.export.onnx_export import write_onnx

Say = Callable[[str], None]


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
                written = wanted or made.dtype
                write_gguf(hf_folder, folder, written, verify, say)
                changes = {"dtype": written, "verify": None}  # the file was read back, but nothing ran it
        # The loss was computed with the Hugging Face folder.
        held_out = made.held_out and made.held_out.model_copy(update={"loss": None})
        return finish_folder(folder, made.model_copy(update={"format": kind, "held_out": held_out, **changes}), {})


@contextlib.contextmanager
def _hf_folder(
    path: Path, beside: Path, given: Given, dtype: Dtype | None, verify: int, say: Say
) -> Generator[tuple[Path, ExportRecord]]:
    """The Hugging Face folder that is there, or one that is made for the block."""
    found = find_weights(path)
    if found.kind == "exported":
        yield found.path, read_hf_record(found.path)
        return
    made = beside.with_name(f"{beside.name}-hf")
    shutil.rmtree(made, ignore_errors=True)
    try:
        yield made, export_hf(path, made, given, dtype, verify, say)
    finally:
        shutil.rmtree(made, ignore_errors=True)
