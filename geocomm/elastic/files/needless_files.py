"""Which states and frames of a fragment nobody asks for any more, once there are newer states."""

from __future__ import annotations

import time

from geocomm.elastic.files.fragment_store import FragmentStore

_KEPT_S = 120.0
"""Frames are kept for at least this time."""


class NeedlessFiles:
    """Lets go of what newer states make needless. One thread at a time calls it for a fragment."""

    def __init__(self, store: FragmentStore) -> None:
        self._store = store
        self._written: dict[int, list[tuple[float, int]]] = {}
        """By fragment: when a state was written, and of which version."""

    def state_written(self, fragment: int, version: int) -> None:
        """There is a state at this version now. A site that comes back needs one, and the frames since then, for as
        long as it takes to get them."""
        now = time.monotonic()
        # What is written again is not older than itself: between two of its times it would go.
        written = [one for one in self._written.get(fragment, []) if one[1] != version] + [(now, version)]
        old = [index for index, (at, _) in enumerate(written) if now - at >= _KEPT_S]
        if old:
            self._store.remove_before(fragment, written[old[-1]][1])
            del written[: old[-1]]
        for _, between in written[1:-1]:
            self._store.remove_state(fragment, between)
        self._written[fragment] = written
