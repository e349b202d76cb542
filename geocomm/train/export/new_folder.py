"""A folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Generator
from pathlib import Path

from geocomm.core.bad_input import BadInput
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
            _sync_all(partial)
            _publish(partial, out)
        finally:
            _remove(partial)
    except OSError as error:
        free = free_bytes(out.parent) / 1e6
        raise BadInput(f"{out} cannot be written ({free:.0f} MB free there): {' '.join(str(error).split())}") from None


def _publish(partial: Path, out: Path) -> None:
    if not out.exists() or not any(out.iterdir()):
        partial.rename(out)  # onto an empty folder, too
        return
    stale = out.with_name(f".stale-{out.name}")
    _remove(stale)
    out.rename(stale)
    partial.rename(out)
    _remove(stale)


def _sync_all(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
