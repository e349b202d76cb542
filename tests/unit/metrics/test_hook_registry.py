"""Which hooks `geocomm.stats()` shows."""

from __future__ import annotations

import gc
from typing import Any

from geocomm.metrics.sources import handle_stats, register_handle


class _Hook:
    def __init__(self, kind: str) -> None:
        self._kind = kind

    def last_stats(self) -> dict[str, Any]:
        return {"kind": self._kind}


def test_living_handles_are_shown_in_order_and_dead_ones_are_not() -> None:
    hooks = [_Hook("first"), _Hook("second"), _Hook("third")]
    for hook in hooks:
        register_handle("gradients", hook)
    del hooks[1], hook
    gc.collect()
    assert [row["kind"] for row in handle_stats("gradients") if row["kind"] in ("first", "second", "third")] == [
        "first",
        "third",
    ]
    assert not [row for row in handle_stats("local_steps") if row.get("kind") in ("first", "third")]
