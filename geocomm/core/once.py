"""A function that does its work once in a process, whichever of its threads calls it first."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_R = TypeVar("_R")


class Once(Generic[_R]):
    """A decorator as `functools.cache`, for what must not happen twice.

    That one lets a second thread call the function while a first call runs: both would load a module, warn a user, or
    make a name that is meant to be one. Here the others wait. After an error the next call tries again.
    """

    def __init__(self, function: Callable[..., _R]) -> None:
        self._function = function
        self._lock = threading.RLock()  # the function may come back to itself, as a module that loads may log
        self._results: dict[tuple[object, ...], _R] = {}
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: object) -> _R:
        if arguments in self._results:  # all calls but the first wait for no lock
            return self._results[arguments]
        with self._lock:
            if arguments not in self._results:
                self._results[arguments] = self._function(*arguments)
            return self._results[arguments]

    def forget(self) -> None:
        """The next call does the work again."""
        with self._lock:
            self._results.clear()
