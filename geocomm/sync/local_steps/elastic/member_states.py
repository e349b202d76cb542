"""The states of fragments in the run folder of a site: written for sites that join and for snapshots, and let go of."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import torch

from geocomm.core.errors import CorruptDataError
from geocomm.core.message_log import logger
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.needless_files import NeedlessFiles
from geocomm.elastic.files.snapshots import Layout, Snapshots
from geocomm.elastic.journal.entries import Snapshot
from geocomm.metrics.events import events
from geocomm.sync.local_steps.model.fragments import BYTES_PER_ELEMENT
from geocomm.sync.local_steps.model.host_memory import bytes_of


class MemberStates:
    """The states of the fragments that a rank owns. One thread calls `keep`, `joined` and `take_snapshot`."""

    def __init__(self, store: FragmentStore, fragments: Iterable[int]) -> None:
        self._store = store
        self._snapshots = Snapshots(store)
        self._fragments = frozenset(fragments)
        self._needless = NeedlessFiles(store)
        self._lock = threading.Lock()
        self._for_joiner: set[int] = set()
        self._for_snapshots: dict[tuple[int, int], list[Snapshot]] = {}
        """By fragment and version: those that lack the state."""
        self._named: set[tuple[int, int]] = set()
        """Those of these that `wants` has said: `keep` follows."""

    def joined(self) -> None:
        """Another site has joined, which would have to replay long: a state of each fragment is wanted."""
        with self._lock:
            self._for_joiner |= self._fragments

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """The states that the entry names are wanted."""
        with self._lock:
            for index in self._fragments:
                self._for_snapshots.setdefault((index, snapshot.versions[index]), []).append(snapshot)

    def wants(self, fragment: int, version: int) -> bool:
        """Whether the state of the fragment at this version is to be kept. Said once. From any thread, which asks
        before the fragment goes on to another version."""
        key = (fragment, version)
        with self._lock:
            wanted = fragment in self._for_joiner or (key in self._for_snapshots and key not in self._named)
            if wanted:
                self._for_joiner.discard(fragment)
                self._named.add(key)
        return wanted

    def keep(self, fragment: int, version: int, parts: Sequence[torch.Tensor]) -> None:
        """Write a state, also into the snapshots that lack it, and let go of what it makes needless. OSError: no
        room."""
        key = (fragment, version)
        with self._lock:
            snapshots = self._for_snapshots.pop(key, [])
            self._named.discard(key)
        try:
            self._store.write_state(fragment, version, [bytes_of(part) for part in parts])
            for snapshot in snapshots:
                self._snapshots.keep_state(snapshot.index, fragment, version)
        except OSError as error:
            for snapshot in snapshots:
                _tell_lost(snapshot, fragment, error.strerror or str(error))
            raise
        self._needless.state_written(fragment, version)

    def passed(self, fragment: int, version: int) -> None:
        """The fragment is at this version now: a snapshot of an earlier one does not get its state any more."""
        with self._lock:
            late = [key for key in self._for_snapshots if key[0] == fragment and key[1] < version]
            lost = [snapshot for key in late if key not in self._named for snapshot in self._for_snapshots.pop(key)]
        for snapshot in lost:
            _tell_lost(snapshot, fragment, "this site took a later state of another one in place of its own rounds")

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


def _tell_lost(snapshot: Snapshot, fragment: int, reason: str) -> None:
    """Tell who looks after the run: its other sites may have the snapshot, and this one does not."""
    logger().warning(f"local steps: this site cannot keep snapshot {snapshot.index} of the run: {reason}")
    events.record("snapshot_lost", snapshot=snapshot.index, fragment=fragment, reason=reason)
