"""What happened in this process, as lines that are the same in every file: a checkpoint, a codec that was given up.

Whoever does such a thing records it here. Reports, metrics.jsonl and events.jsonl take the events from here, each
through a reader of its own.
"""

from __future__ import annotations

import collections
import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from geocomm.core.message_log import printable
from geocomm.metrics import sources

CAPACITY = 1000
"""How many events are kept for readers that come late; older ones are dropped."""

KINDS = {
    "checkpoint": {"step": "steps done", "path": "", "seconds": "that writing took"},
    "codec_fallback": {
        "hook": "its kind",
        "step": "first step with the finer codec",
        "before": "codec until then",
        "codec": "codec from then on",
        "reason": "what the guard saw",
    },
    "replicas_differ": {"message": "which tensor, and which ranks have which values"},
    "policy_epoch": {
        "epoch": "number of the policy from now on",
        "ranks": "of the group",
        "sites": "",
        "links": "where the rates of links come from",
        "codecs": "pairs of least bytes and codec",
    },
    "link_resumed": {
        "peer": "",
        "peer_rank": "null: in no living group",
        "peer_site": "",
        "outages": "since the last such event of this peer",
        "seconds": "of these outages",
        "connections": "made again in that time",
    },
    "operation_failed": {
        "code": "",
        "message": "",
        "peer": "",
        "op": "",
        "seq": "",
        "errno": "",
    },
    "snapshot_lost": {
        "snapshot": "of an elastic run: the index of its entry",
        "fragment": "whose state this site cannot keep",
        "reason": "",
    },
    "events_dropped": {"count": "before they could be written here"},
}
"""The fields of each kind of event, besides kind, time (Unix seconds), and the site and global rank of the process that
saw it. Those of operation_failed are the record of geocomm.last_error()."""


_TEXTS = {
    "checkpoint": "checkpoint of step {step}, {path}",
    "codec_fallback": "gradients take {codec} in place of {before} from step {step} on: {reason}",
    "replicas_differ": "{message}",
    "policy_epoch": "from now on planned by links that are {links}; codecs: {codecs}",
    "link_resumed": "the link to rank {peer_rank} of {peer_site} was away for {seconds} s",
    "operation_failed": "{op} failed: {message}",
    "snapshot_lost": "snapshot {snapshot} cannot be kept here: {reason}",
    "events_dropped": "{count} events were dropped before they could be told",
}


def event_text(kind: str, fields: Mapping[str, Any]) -> str:
    """An event as a sentence for people; of a kind that this version does not know, kind and fields."""
    if (text := _TEXTS.get(kind)) is None:
        return printable(f"{kind}: {json.dumps(dict(fields))}")
    told = {name: _shown(each) for name, each in fields.items()}
    return printable(text.format_map(collections.defaultdict(lambda: "?", told)))  # another machine has said it


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list):  # the codecs of a policy
        pairs = cast(list[Any], value)
        return ", ".join(f"{each[1]} from {each[0]} bytes" if _is_pair(each) else str(each) for each in pairs) or "none"
    return "?" if value is None else str(value)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(cast(list[Any], value)) == 2


@dataclass(frozen=True)
class Event:
    """One thing that happened."""

    time: float
    """Unix seconds."""
    site: str
    """The site of the process; empty where it has none, or none yet."""
    rank: int | None
    """Its global rank; None where it has none yet."""
    kind: str
    """One of KINDS."""
    fields: dict[str, Any]

    def line(self) -> dict[str, Any]:
        """The event as one JSON object, which is the same wherever it is written."""
        return {"kind": self.kind, "time": self.time, "site": self.site, "rank": self.rank, **self.fields}


class EventLog:
    """The last events of a process. Thread-safe; a forked child begins anew."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=CAPACITY)
        self._recorded = 0
        self._site = ""
        self._rank: int | None = None
        self._last_error: dict[str, Any] | None = None
        self._told: dict[str, dict[str, int]] = {}  # by peer, the counters up to its last link_resumed

    def identify(self, rank: int, site: str | None) -> None:
        """Say who this process is, for the events from now on."""
        with self._lock:
            self._rank, self._site = rank, site or ""

    def record(self, kind: str, **fields: Any) -> Event:
        """Keep what happened just now. `fields` are what JSON has."""
        if KINDS[kind].keys() != fields.keys():
            raise ValueError(f"an event {kind} has the fields {', '.join(KINDS[kind])}")
        with self._lock:
            return self._keep(time.time(), kind, fields)

    def since(self, number: int) -> tuple[list[Event], int]:
        """The events from the `number`-th on, and the number of the next one."""
        # Operations fail in native threads, which must not wait for Python's lock: the failure is fetched here.
        error = sources.read("last error", None)
        peers = sources.read("peers", [])  # links resume in native threads too
        with self._lock:
            for peer in peers:
                self._note_resumed(peer)
            if error is not None and error != self._last_error:
                self._last_error = error
                self._keep(error["time"], "operation_failed", {name: error[name] for name in KINDS["operation_failed"]})
            first = self._recorded - len(self._events)
            events = list(self._events)[max(0, number - first) :]
            if number < first:
                events.insert(0, self._event(events[0].time, "events_dropped", {"count": first - number}))
            return events, self._recorded

    def _note_resumed(self, peer: dict[str, Any]) -> None:
        now = {name: peer[name] for name in ("outages", "outage_us", "resumes")}
        before = self._told.get(peer["peer"])
        if before is None or now["outages"] < before["outages"]:  # a new channel, perhaps to the same address
            before = self._told[peer["peer"]] = dict.fromkeys(now, 0)
        if now["outages"] == before["outages"]:
            return
        self._told[peer["peer"]] = now
        fields = {
            "peer": peer["peer"],
            "peer_rank": peer["rank"],
            "peer_site": peer["site"],
            "outages": now["outages"] - before["outages"],
            "seconds": (now["outage_us"] - before["outage_us"]) / 1e6,
            "connections": now["resumes"] - before["resumes"],
        }
        self._keep(time.time(), "link_resumed", fields)

    def _event(self, when: float, kind: str, fields: dict[str, Any]) -> Event:
        return Event(when, self._site, self._rank, kind, fields)

    def _keep(self, when: float, kind: str, fields: dict[str, Any]) -> Event:
        event = self._event(when, kind, fields)
        self._events.append(event)
        self._recorded += 1
        return event


class EventReader:
    """Takes each event once; also those from before it was made, as far as they are kept."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._next = 0

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._next = self._log.since(self._next)
        return events


events = EventLog()
"""This process's."""
os.register_at_fork(after_in_child=events.begin)
