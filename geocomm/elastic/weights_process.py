"""The process that publishes the weights of an elastic run, at one site: each snapshot that is kept becomes a version
of a stream. `geocomm run --elastic --publish` starts it on the site's first node.

So it takes no time of the ranks, and publishes nothing that only this site has.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

import torch

from geocomm.core.errors import DataError
from geocomm.core.message_log import CalmLog, log
from geocomm.core.typed_torch import from_numpy
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshot_copies import newest_kept
from geocomm.elastic.files.snapshots import SnapshotError, Snapshots
from geocomm.elastic.journal.journal import NoJournalError, RunReader
from geocomm.elastic.supervisor import PublishConfig
from geocomm.weights.publisher import WeightPublisher

_LOOK_S = 2.0
_AGAIN_S = 30.0
"""After a failure."""
_CALM_S = 300.0


class SnapshotPublisher:
    """Publishes the kept snapshots of a run folder, the newest first where several came meanwhile."""

    def __init__(self, config: PublishConfig) -> None:
        self._config = config
        self._store = FragmentStore(Path(config.run_dir))
        self._run = RunReader(self._store.files.journal)
        self._tensors: dict[str, torch.Tensor] = {}
        self._publisher: WeightPublisher | None = None
        self._done = -1
        """The snapshot that was published last."""

    def publish(self) -> int | None:
        """Publish the newest kept snapshot, if it is not out; the version. Raises what says why it cannot be."""
        kept = newest_kept(self._store, self._run)
        if kept is None or kept.snapshot <= self._done:
            return None
        for name, values in Snapshots(self._store).weights(kept.snapshot):
            read = from_numpy(values)
            if self._publisher is None:
                self._tensors[name] = read
            else:
                self._tensors[name].copy_(read)
        if self._publisher is None:
            self._publisher = WeightPublisher(
                self._config.place,
                self._tensors,
                dtype=getattr(torch, self._config.dtype),
                keys=self._config.keys,
                readers=self._config.readers,
            )
        self._publisher.publish(step=kept.snapshot, wait=True)
        self._done = kept.snapshot
        return self._publisher.last()

    def close(self) -> None:
        """Let go of the stream."""
        if self._publisher is not None:
            self._publisher.close()


def main() -> None:
    """Publish until a signal comes."""
    config, stop = PublishConfig.model_validate_json(sys.argv[1]), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    published, complain = SnapshotPublisher(config), CalmLog(log, _CALM_S)
    log(f"the weights go to {config.place} with each snapshot that is kept (--snapshot-every at the leader)")
    pause_s = _LOOK_S
    while not stop.wait(pause_s):
        pause_s, begun = _LOOK_S, time.monotonic()
        try:
            if (number := published.publish()) is not None:
                log(f"version {number} of the weights is at {config.place}, {time.monotonic() - begun:.1f} s")
        except NoJournalError:
            pass  # it is being made
        except (DataError, SnapshotError, OSError) as error:
            complain(f"the weights are not published ({error}); it is tried again in {_AGAIN_S:g} s")
            pause_s = _AGAIN_S
    published.close()


if __name__ == "__main__":
    main()
