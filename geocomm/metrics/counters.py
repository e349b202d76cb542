"""Counters of this process."""

from __future__ import annotations

from typing import Any

from geocomm.metrics import schema, sources
from geocomm.metrics.sources import handle_stats


def stats() -> dict[str, Any]:
    """Read the counters of this process.

    Names and units are stable. docs/reference/metrics.md lists them, and so does `help(geocomm.stats)`. Any thread may
    call it.

    Returns:
        Totals since the process started, by name, such as `wire_bytes_sent`; `ratio`, the bytes before compression over
        those on the wire (None before the first operation); and these lists and one dict of the present:

        - `groups`: a dict for each living process group that spans sites.
        - `peers`: a dict for each peer process at another site.
        - `memory`: a dict, the memory of all groups.
        - `data`: a dict, what was fetched of a data set.
        - `gradients`: a dict for each living gradient hook.
        - `local_steps`: a dict for each living handle of `local_steps`.

    Example:
        The share of each byte that compression left:

            ratio = geocomm.stats()["ratio"]
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
        "data": sources.read("data", {}),
        "gradients": handle_stats("gradients"),
        "local_steps": handle_stats("local_steps"),
    }


if stats.__doc__:  # not under -OO
    stats.__doc__ += "\n" + schema.described()


def last_error() -> dict[str, Any] | None:
    """Read the record of the last operation of this process that failed.

    An error that went through autograd's backward has lost its attributes; they are here.

    Returns:
        A dict of `code`, `message`, `peer`, `op`, `seq`, `errno` (as the attributes of `GeocommError`) and `time`
        (seconds since 1970); None if no operation has failed.
    """
    from geocomm.core.native import native

    return native().last_error()
