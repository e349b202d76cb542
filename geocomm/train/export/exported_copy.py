"""A copy of a Hugging Face folder that geocomm made, such as the one that a complete run leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import RECORD, Dtype, ExportRecord, FileFacts, read_hf_record
from geocomm.train.export.export_source import Given
from geocomm.train.export.new_folder import new_folder


def copy_exported(exported: Path, out: Path, given: Given, dtype: Dtype | None) -> ExportRecord:
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
