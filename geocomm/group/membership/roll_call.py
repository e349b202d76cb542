"""The roll call: every rank publishes a record, reads those of all, and comes to the same verdict.

What a record holds, and the words of a verdict, are the caller's: a process group's (`group_agreement`), the training
driver's (`job_store`, train/loop/preflight.py), the doctor's, those of a group's links
(group/backend/policy_epochs.py).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from geocomm.core.patience import Patience, pauses

if TYPE_CHECKING:
    from torch.distributed import Store

Record = dict[str, Any]
"""What JSON can hold. One with an `error` ends the roll call at once: its rank takes no further part."""


class Absent(TimeoutError):
    """Ranks that did not answer the roll call in time."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__(f"ranks {ranks} did not come")
        self.ranks = ranks


class FirstFailed(RuntimeError):
    """Rank 0 could not decide; the message is its error."""


def publish(store: Store, name: str, rank: int, record: Mapping[str, Any]) -> None:
    """Tell the other ranks, without reading theirs."""
    store.set(f"{name}/rank/{rank}", json.dumps(record))


def exchange(
    store: Store, name: str, rank: int, size: int, record: Mapping[str, Any], timeout: timedelta
) -> list[Record]:
    """Publish the record of this rank and read those of all `size` ranks, in rank order. Collective.

    `name`: of this roll call in the store. The store may hold records of processes that are gone: torchrun keeps it
    when it restarts the ranks. So each rank also says which records it has read, until all have read the same, its own
    new one among them. Raises Absent, or what the store raises when it is gone.
    """
    until = time.monotonic() + timeout.total_seconds()
    publish(store, name, rank, record)
    keys = [f"{name}/rank/{other}" for other in range(size)]
    views = [f"{name}/view/{other}" for other in range(size)]
    said, waits = "", pauses(0.01, 0.2)
    while True:
        try:
            store.wait(keys, timedelta(seconds=max(until - time.monotonic(), 0.001)))
        except Exception as error:  # each kind of store has its own
            missing = [other for other, key in enumerate(keys) if not _present(store, key)]
            if not missing:
                raise
            raise Absent(missing) from error
        texts = store.multi_get(keys)
        records = [json.loads(text) for text in texts]
        if any(each.get("error") for each in records):
            return records
        view = hashlib.sha256(b"\n".join(texts)).hexdigest()
        if view != said:
            store.set(views[rank], view)
            said = view
        # spec operations 1.1: "A rank MUST read again until all views are equal"
        if store.check(views) and all(other.decode() == view for other in store.multi_get(views)):
            return records
        if time.monotonic() > until:
            expected = view.encode()
            late = [other for other, key in enumerate(views) if not _present(store, key) or store.get(key) != expected]
            raise Absent(late)
        time.sleep(next(waits))


def gather(
    store: Store,
    name: str,
    rank: int,
    size: int,
    record: Mapping[str, Any],
    timeout: timedelta,
    waits_for: Callable[[list[int]], None],
) -> list[Record]:
    """Exchange records under a name of which the store holds nothing else: three round trips to it.

    waits_for: is called after 10 s, 30 s, 90 s and so on with the ranks whose records are missing. Raises Absent, or
    what the store raises when it is gone.
    """
    publish(store, name, rank, record)
    keys = [f"{name}/rank/{other}" for other in range(size)]
    patience, waits = Patience(), pauses(0.005, 0.2)
    while not store.check(keys):  # torch writes to stderr where its `wait` takes too long
        is_late = patience.waited_s >= timeout.total_seconds()
        if is_late or patience.left_s <= 0:
            missing = [other for other, key in enumerate(keys) if not store.check([key])]
            if missing and is_late:
                raise Absent(missing)
            if missing:
                waits_for(missing)
            patience.put_off()
        time.sleep(next(waits))
    return [json.loads(text) for text in store.multi_get(keys)]


def decided_by_first(store: Store, key: str, rank: int, decide: Callable[[], Record]) -> Record:
    """What `decide` returns at rank 0, on all ranks. Collective. It raises at rank 0 what `decide` raised, and
    FirstFailed on the others."""
    if rank == 0:
        try:
            decision = decide()
        except Exception as error:
            store.set(key, json.dumps({"error": f"{type(error).__name__}: {error}"}))
            raise
        store.set(key, json.dumps({"decision": decision}))
    document = json.loads(store.get(key))
    if "error" in document:
        raise FirstFailed(document["error"])
    return document["decision"]


@dataclass(frozen=True)
class Difference:
    """A name under which not all records have the same."""

    name: str
    sides: list[tuple[Any, list[int]]]
    """Each value (None: the records have none), and the numbers of the records that have it, in their order."""

    @property
    def usual(self) -> Any:
        """The value that most have; of several such, the first."""
        return max(self.sides, key=lambda side: len(side[1]))[0]


def differences(records: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Where the records differ, by name, in the order in which the names come."""
    found: list[Difference] = []
    for name in dict.fromkeys(name for record in records for name in record):
        sides: dict[str, tuple[Any, list[int]]] = {}
        for number, record in enumerate(records):
            value = record.get(name)
            sides.setdefault(json.dumps(value, sort_keys=True), (value, []))[1].append(number)
        if len(sides) > 1:
            found.append(Difference(name, list(sides.values())))
    return found


def _present(store: Store, key: str) -> bool:
    try:
        return store.check([key])
    except Exception:  # a store that is gone has nothing
        return False
