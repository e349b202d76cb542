"""Who says what of this process's counters: readers that are registered here, so that metrics import none of them.

Also its living gradient hooks and local steps. Does not import torch.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

_readers: dict[str, Callable[[], Any]] = {}


def register(name: str, read: Callable[[], Any]) -> None:
    """`read` tells `name` from now on; called from any thread."""
    _readers[name] = read


def read(name: str, unknown: Any) -> Any:
    """What the reader of `name` says now; `unknown` where there is none yet."""
    reader = _readers.get(name)
    return unknown if reader is None else reader()


Kind = Literal["gradients", "local_steps"]
"""The place of a handle in stats()."""


class HookHandle(Protocol):
    """What a hook shows."""

    def last_stats(self) -> dict[str, Any]:
        """The counters of the last settled step; any thread may call it."""
        ...


_lock = threading.Lock()
_handles: list[tuple[Kind, weakref.ref[HookHandle]]] = []


def _after_fork() -> None:
    """The hooks stay; another thread may have had the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def register_handle(kind: Kind, handle: HookHandle) -> None:
    """Show it as long as it lives."""
    with _lock:
        _handles[:] = [(of, one) for of, one in _handles if one() is not None]
        _handles.append((kind, weakref.ref(handle)))


def handle_stats(kind: Kind) -> list[dict[str, Any]]:
    """The counters of every living handle of a kind, in the order in which they were made."""
    with _lock:
        living = [one() for of, one in _handles if of == kind]
    return [handle.last_stats() for handle in living if handle is not None]


def worst_nmse(stats: Mapping[str, Any]) -> float | None:
    """The error of a hook's codec in the last step, in the worst bucket, from its `stats()`; None: none was encoded."""
    return max((bucket["nmse"] for bucket in stats["buckets"] if "nmse" in bucket), default=None)
