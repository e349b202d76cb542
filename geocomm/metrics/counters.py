"""Counters of this process."""

from __future__ import annotations

from typing import Any

from geocomm.metrics import schema, sources
from geocomm.metrics.hook_registry import handle_stats


def stats() -> dict[str, Any]:
    """Totals of this process since it started, and what its groups, peers, gradient hooks and local
    steps have now.

    Names and units are stable. docs/reference/metrics.md lists them, and so does `help(geocomm.stats)`.
    """
    groups = sources.read("groups", [])
    past = sources.read("past groups", {})  # after the living ones, since a group may just have ended
    totals: dict[str, Any] = {}
    for metric in schema.COUNTERS:
        total = past.get(metric.name, 0) + sum(group[metric.name] for group in groups)
        totals[metric.name] = float(total) if metric.is_time else total
    wire_bytes = totals["wire_bytes_sent"] + totals["wire_bytes_received"]
    raw_bytes = totals["raw_bytes_sent"] + totals["raw_bytes_received"]
    totals["ratio"] = raw_bytes / wire_bytes if wire_bytes else None
    return totals | {
        "groups": groups,
        "peers": sources.read("peers", []),
        "memory": sources.read("memory", {}),
        "gradients": handle_stats("gradients"),
        "local_steps": handle_stats("local_steps"),
    }


if stats.__doc__:  # not under -OO
    stats.__doc__ += "\n" + schema.described()


def last_error() -> dict[str, Any] | None:
    """The last failed operation: code, message, peer, op, seq, errno, time (Unix seconds); None if there was none.

    The record of an error whose attributes were lost on its way through autograd's backward.
    """
    from geocomm.core.native import native

    return native().last_error()
