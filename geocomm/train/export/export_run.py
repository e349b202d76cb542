"""`geocomm export`: from what a training saved to a folder of a format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from geocomm._version import __version__
from geocomm.core.bad_input import BadInput
from geocomm.train.export.dtypes import DTYPES
from geocomm.train.export.export_record import Dtype, ExportRecord, HeldOut
from geocomm.train.export.export_source import ExportSource, Given, find_weights, open_run, open_torch_checkpoint
from geocomm.train.export.exported_copy import copy_exported
from geocomm.train.export.folder_check import Checked, check_folder, require_run_loss
from geocomm.train.export.hf_folder import LARGEST_FILE_BYTES, HfModel, finish_folder, write_hf_files
from geocomm.train.export.new_folder import new_folder
from geocomm.train.export.original_layout import OriginalLayout
from geocomm.train.export.run_text import HeldOutText

Say = Callable[[str], None]


def export_hf(
    path: Path,
    out: Path,
    given: Given,
    dtype: Dtype | None,
    verify: int,
    say: Say,
    largest_file_bytes: int = LARGEST_FILE_BYTES,
) -> ExportRecord:
    """Make the Hugging Face folder `out` from a run, a checkpoint, a DCP folder or an exported model.

    dtype: None for that of the training. verify: sequences to compare it on after it was loaded again; 0: none.
    Raises BadInput; `out` then is as it was.
    """
    found = find_weights(path)
    if found.kind == "exported":
        say(f"copying {found.path}: there is no checkpoint to make another model from")
        return copy_exported(found.path, out, given, dtype)
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
        files = write_hf_files(folder, model, largest_file_bytes)
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
