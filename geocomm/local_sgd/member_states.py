"""The states of fragments in the run folder of a site: written for sites that join and for snapshots, and let go of."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

import torch

from geocomm.core.errors import CorruptDataError
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.snapshots import Layout, Snapshots
from geocomm.journal.entries import Snapshot
from geocomm.local_sgd.fragments import BYTES_PER_ELEMENT
from geocomm.local_sgd.host_memory import bytes_of

_KEPT_S = 120.0
"""Frames are kept for at least so long."""


class MemberStates:
    """Those of the fragments that a rank owns. One thread calls `keep`, `joined` and `take_snapshot`."""

    def __init__(self, store: FragmentStore, fragments: Iterable[int]) -> None:
        self._store = store
        self._snapshots = Snapshots(store)
        self._fragments = frozenset(fragments)
        self._snapshot: Snapshot | None = None
        self._written: dict[int, list[tuple[float, int]]] = {}
        """By fragment: when a state was written, and of which version."""
        self._lock = threading.Lock()
        self._for_joiner: set[int] = set()
        self._for_snapshot: dict[int, int] = {}
        """By fragment: the version."""

    def joined(self) -> None:
        """Another site has joined, which would have to replay long: a state of each fragment is wanted."""
        with self._lock:
            self._for_joiner |= self._fragments

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """The states that the entry names are wanted."""
        self._snapshot = snapshot
        with self._lock:
            self._for_snapshot = {index: snapshot.versions[index] for index in self._fragments}

    def wants(self, fragment: int, version: int) -> bool:
        """Whether the state of the fragment at this version is to be kept. Said once. From any thread."""
        with self._lock:
            wanted = fragment in self._for_joiner or self._for_snapshot.get(fragment) == version
            if wanted:
                self._for_joiner.discard(fragment)
                self._for_snapshot.pop(fragment, None)
        return wanted

    def keep(self, fragment: int, version: int, parts: Sequence[torch.Tensor]) -> bool:
        """Write a state, and let go of what it makes needless; whether the last snapshot has it. OSError: no room."""
        self._store.write_state(fragment, version, [bytes_of(part) for part in parts])
        self._let_go(fragment, version)
        snapshot = self._snapshot
        if snapshot is None or snapshot.versions[fragment] != version:
            return False
        self._snapshots.keep_state(snapshot.index, fragment, version)
        return True

    def read(self, fragment: int, version: int, numel: int) -> torch.Tensor:
        """A state, float32. numel: of all its parts. CorruptDataError: it has another size."""
        content = self._store.read_state(fragment, version)
        if len(content) != numel * BYTES_PER_ELEMENT:
            raise CorruptDataError(
                f"local steps: {self._store.state_path(fragment, version)} has {len(content)} bytes, and fragment "
                f"{fragment} has {numel * BYTES_PER_ELEMENT}; remove the file"
            )
        return torch.frombuffer(bytearray(content), dtype=torch.float32)

    def write_layout(self, layout: Layout) -> None:
        """Keep where the parameters lie in the fragments. OSError: no room."""
        self._snapshots.write_layout(layout)

    def _let_go(self, fragment: int, version: int) -> None:
        """Remove what nobody asks for any more: a site that comes back needs a state, and the frames since then, for
        as long as it takes to get them."""
        now, written = time.monotonic(), self._written.setdefault(fragment, [])
        written.append((now, version))
        old = [index for index, (at, _) in enumerate(written) if now - at >= _KEPT_S]
        if old:
            self._store.remove_before(fragment, written[old[-1]][1])
            del written[: old[-1]]
        for _, between in written[1:-1]:
            self._store.state_path(fragment, between).unlink(missing_ok=True)
