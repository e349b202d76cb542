"""How `geocomm run` ends where ranks have failed: with the first error of any site, in one line, the last.

torchrun's own end tells less in twenty lines: that of this node alone, and without what the rank has said.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from geocomm.core.message_log import printable, tell
from geocomm.core.rank_error import cause_in_callback
from geocomm.group.membership.rank_record import ranks_text

WAIT_S = 5.0
"""How long a site whose ranks failed because others had waits to hear of their failure."""
_POLL_S = 0.1
_LONGEST = 1500
_FOLLOWS = (
    *("PeerLostError", "AbortedError", "NetworkError", "OperationTimeoutError"),
    *("DistNetworkError", "DistStoreError", "DistBackendError", "ConnectionError"),
)
"""Errors that a rank has where another one has failed."""
_FOLLOW_WORDS = ("failed earlier", "could not join the process group")


@dataclass(frozen=True)
class RankFailure:
    """The error of a rank, as another node can read it."""

    rank: int
    site: str
    told: str
    follows: bool
    """Another rank's error is probably its cause."""

    def __str__(self) -> str:
        shown = printable(f"rank {self.rank} (site {self.site}): {self.told}")  # another site has said it
        return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} …"


_FAILURE = TypeAdapter(RankFailure)


def tell_failure(error: ChildFailedError, site: str, store: dist.Store | None = None, nodes: int = 1) -> None:
    """Say on stderr which ranks of this node have failed, and last, the first error of any site.

    store: of all `nodes` nodes; without it, what this node's ranks have said is all.
    """
    failures = cast(Mapping[int, ProcessFailure], error.failures)
    for status, ranks in _by_status(failures).items():
        tell("run", f"{ranks_text(ranks)} of this node ended with {status}")
    in_order = sorted(failures.items(), key=lambda each: each[1].timestamp)
    found = _first([_failure(rank, failure, site) for rank, failure in in_order])
    if store is not None and nodes > 1:
        with contextlib.suppress(dist.DistError):  # the hub is gone, and with it what others have said
            found = _first_of_all(store, found, nodes)
    tell("run", f"first error: {found}")


def hide_torchruns_lines() -> None:
    """torchrun logs each failed rank, and each that it ends; `tell_failure` says the same."""
    api = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
    api.addFilter(lambda record: not str(record.msg).startswith(("failed (exitcode", "Sending process")))


def _first_of_all(store: dist.Store, own: RankFailure, nodes: int) -> RankFailure:
    """Tell the others; the first error that is known. Waits for another one's where this one only follows it."""
    number = store.add("failures/count", 1)
    store.set(f"failures/{number}", json.dumps(asdict(own)))
    end = time.monotonic() + WAIT_S
    while True:
        known = [own, *_read(store, nodes)]
        found = _first(known)
        if not found.follows or len(known) > nodes or time.monotonic() > end:
            return found
        time.sleep(_POLL_S)


def _read(store: dist.Store, nodes: int) -> Iterator[RankFailure]:
    for number in range(1, min(store.add("failures/count", 0), nodes) + 1):
        if store.check([key := f"failures/{number}"]):
            with contextlib.suppress(ValidationError):
                yield _FAILURE.validate_json(store.get(key))


def _first(failures: Sequence[RankFailure]) -> RankFailure:
    return min(failures, key=lambda failure: failure.follows)  # of equals, the first one


def _failure(rank: int, failure: ProcessFailure, site: str) -> RankFailure:
    message: Any = failure.message
    if isinstance(message, dict):
        told = str(cast(dict[str, Any], message).get("message", ""))
    elif failure.exitcode < 0:
        told = _status(failure)
    elif os.path.isfile(failure.error_file):
        told = str(message)
    else:
        told = f"it ended with {_status(failure)}; its last lines say why"
    told = cause_in_callback(told.removeprefix("RuntimeError: ")) or told
    told = " ".join(told.split())[:_LONGEST]
    follows = told.startswith(_FOLLOWS) or any(word in told for word in _FOLLOW_WORDS)
    return RankFailure(rank, site, told, follows)


def _by_status(failures: Mapping[int, ProcessFailure]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank, failure in sorted(failures.items()):
        found.setdefault(_status(failure), []).append(rank)
    return found


def _status(failure: ProcessFailure) -> str:
    if failure.exitcode >= 0:
        return f"exit status {failure.exitcode}"
    return f"signal {failure.signal_name()}"
