"""Where the files of data sets and their catalogs lie: the one place that opens what a URL names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput


def folder_of(url: str) -> Path:
    """The folder that a store or a catalog names: a path, or file:. Raises BadInput for what cannot be opened yet."""
    scheme, found, rest = url.partition("://")
    if not found:
        return Path(url.removeprefix("file:")).expanduser()
    if scheme != "file":
        raise BadInput(f"{url}: {scheme} cannot be opened yet; mount it as a folder")
    return Path(rest)


@lru_cache(maxsize=64)
def mapped(path: Path, dtype: str) -> NDArray[np.unsignedinteger]:
    """The ids of a file, mapped into memory. Raises BadInput where it is not there."""
    try:
        return np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
