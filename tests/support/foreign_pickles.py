"""Pickles as other versions of Python write them, and one of an attacker."""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path, PurePath
from typing import Any


class AsOtherPythons(pickle.Pickler):
    """Writes members of enumerations as Python before 3.11.4 does, and paths as 3.13 does.

    A path needs a module `pathlib._local` whose PosixPath is PathOfPython313.
    """

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, Enum):
            return getattr, (type(value), value.name)
        if isinstance(value, PurePath):
            return PathOfPython313, value.parts
        return NotImplemented


class PathOfPython313:
    """What a pickle calls pathlib._local.PosixPath."""


PathOfPython313.__module__, PathOfPython313.__qualname__ = "pathlib._local", "PosixPath"


class Planted:
    """Would write a file if it were unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)
