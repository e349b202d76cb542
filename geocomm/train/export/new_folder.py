"""A folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Generator
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import put_folder_in_place
from geocomm.train.runs.checkpoint_folder import free_bytes


@contextlib.contextmanager
def new_folder(out: Path, *, replace: bool = False) -> Generator[Path]:
    """A partial folder beside `out`, to be filled. At the end of the block it becomes `out`; after an exception it is
    removed.

    replace: `out` may hold something, which then goes. Raises BadInput where it must not, and for a full disk.
    """
    out = out.absolute()
    partial = out.with_name(f".partial-{out.name}")
    try:
        if not replace and out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"{out} exists already and is not empty; name another folder, or remove it")
        _remove(partial)
        partial.mkdir(parents=True)
        try:
            yield partial
            put_folder_in_place(partial, out)
        finally:
            _remove(partial)
    except OSError as error:
        free = free_bytes(out.parent) / 1e6
        raise BadInput(f"{out} cannot be written ({free:.0f} MB free there): {' '.join(str(error).split())}") from None


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
