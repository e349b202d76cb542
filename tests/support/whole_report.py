"""A report in which every field is told, and ways to lie in one of them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from geocomm.metrics import schema

S = 10**9
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 7, 1 << 20, (1 << 63) - 1, 1 << 63, -(1 << 63), 10**400, 0.0, 0.5, -0.5, 1e-300),
    *(1e30, 1e99, 1e100, 1e308, -1e308, math.nan, math.inf, -math.inf, "", "0", "a", "good", "b" * 5000, "\x1b[31m"),
    *("a\nb", "\ud800", "../x", [], [[]], [None], [1, "x"], {}, {"": {}}, {"a": math.nan}, [{}], ["good"], ["evil"]),
)
"""What may stand where something else belongs."""


def whole_report(site: str, second: int, other: str) -> dict[str, Any]:
    """What a rank of `site` tells in its `second`, of a run with one other site."""
    rank = {"evil": 0, "good": 1}[site]
    now_ns = (100 + second) * S
    peer = {one.name: "tcp" if one.kind is schema.MetricKind.TEXT else 1000 * second for one in schema.PEERS}
    peer |= {"peer": f"rank {1 - rank}", "site": other, "rank": 1 - rank, "streams": 4, "clock_offset_us": 5}
    links = {"source": "measured", "sites": ["evil", "good"], "rate_bps": [[0.0, 1e9], [1e9, 0.0]], "rtt_s": [[0.0]]}
    counters = {one.name: second for one in schema.COUNTERS}
    hook = {one.name: second for one in schema.GRADIENTS} | {"kind": "ddp", "codec": "int8", "fallbacks": []}
    hook["buckets"] = [{"index": 0, "parameters": ["a"], "elements": 5, "ef_norm": 0.1, "nmse": 0.01, "wire_bytes": 9}]
    parts = {"seconds": 2.0, "tokens": 100, "input_seconds": 0.1, "exposed_seconds": 0.2, "checkpoint_seconds": 0.0}
    last = {"loss": 2.5, "learning_rate": 0.1, "grad_norm": 1.0, "of_steps": 100}
    row = {"number": second + 1, "failed": False, "coding_ns": 1000}
    begun = {"due_ns": now_ns - S, "begun_ns": now_ns - S, "stored_ns": None, "offered_ns": now_ns - S // 2}
    operation_times = ("began", "encoded", "exchanged", "ended", "wait_began", "wait_ended")
    return {
        "site": site,
        "rank": rank,
        "host": f"host-{site}",
        "process": f"{rank:016x}",
        "sequence": second + 1,
        "time": 1e9 + second,
        "now_ns": now_ns,
        "final": False,
        "certificate_ends": 2e9,
        "options": {"codec": "int8"},
        "egress_dollars_per_gb": 0.05,
        "egress_dollars_per_day": 10.0,
        "disk_free_bytes": 10**9,
        "disk_size_bytes": 10**10,
        "stats": {
            **counters,
            "ratio": 3.5,
            "groups": [{**counters, "policy": {"epoch": 0, "codecs": [[0, "int8"]], "links": links, "relays": []}}],
            "peers": [peer],
            "memory": {one.name: 1000 for one in schema.MEMORY},
            "data": {one.name: second for one in schema.DATA},
            "gradients": [hook],
            "local_steps": [{one.name: second for one in schema.LOCAL_STEPS}],
        },
        "training": {
            **last,
            "step": second // 2,
            "ended_ns": now_ns - S // 2,
            "held_out_loss": 2.0,
            "totals": {name: value * (second // 2) for name, value in parts.items()} | {"steps": second // 2},
            "losses": {"least": 2.0, "median": 2.1, "spread": 0.1},
        },
        "steps": [{"step": second // 2, "ended_ns": now_ns - S // 2, **parts, **last}],
        "operations": [
            {
                **row,
                **{f"{name}_ns": now_ns - S // 2 + i * 1000 for i, name in enumerate(("issued", *operation_times))},
                "group": 1,
                "sequence": second,
                "kind": "all_reduce",
                "dtype": "float32",
                "elements": 1000,
                "codec": "int8",
                **dict.fromkeys(
                    ("raw_bytes_sent", "wire_bytes_sent", "raw_bytes_received", "wire_bytes_received"), 1000
                ),
                "peers": [
                    {
                        "rank": 1 - rank,
                        "site": other,
                        "peer": f"rank {1 - rank}",
                        "first_in_ns": now_ns - S // 2 + 2500,
                        "last_in_ns": now_ns - S // 2 + 2600,
                        "sums": False,
                    }
                ],
            }
        ],
        "rounds": [
            {
                **row,
                **begun,
                **dict.fromkeys(("listed_ns", "averaged_ns", "applied_ns"), None),
                "elastic": False,
                "fragment": 0,
                "round": second,
                "last": False,
                "attempts": 1,
                "step": second,
                "weight": 1,
                "bytes": 1000,
                "counted": None,
                "last_arrived": None,
                "peers": [
                    {"site": other, "announced_ns": now_ns, "arrived_ns": None, "bytes": 9, "step": 1, "weight": 1}
                ],
            }
        ],
        "events": [{"kind": "checkpoint", "time": 1e9, "site": site, "rank": rank, "step": 3, "seconds": 1.5}],
    }


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The way to everything in a report."""
    if at:
        yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        yield from places(inner, (*at, name))


def put(report: dict[str, Any], place: tuple[str | int, ...], value: Any) -> None:
    """Change a report; nothing where the place is gone by a change before."""
    inside: Any = report
    try:
        for name in place[:-1]:
            inside = inside[name]
        if value is ...:
            del inside[place[-1]]
        else:
            inside[place[-1]] = copy.deepcopy(value)
    except (LookupError, TypeError):
        pass


def lies(report: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """The report with a few of its fields changed, or away (...), but for whose it is."""
    known = {"site", "rank"}
    each = st.sampled_from([place for place in places(report) if place[0] not in known])
    own = [place for place in places(report) if place[0] not in known]
    others = st.sampled_from([_at(report, place) for place in own])
    change = st.tuples(each, st.sampled_from((*JUNK, ...)) | others | st.integers(0, 1 << 40))

    def changed(changes: list[tuple[tuple[str | int, ...], Any]]) -> dict[str, Any]:
        lying = copy.deepcopy(report)
        for place, value in changes:
            put(lying, place, value)
        return lying

    return st.lists(change, max_size=4).map(changed)


def _at(report: Any, place: tuple[str | int, ...]) -> Any:
    for name in place:
        report = report[name]
    return report
