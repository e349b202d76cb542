"""A run store of any number of sites: reports as ranks make them, of a run of a given shape."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from geocomm.metrics import schema
from geocomm.observe.telemetry.run_store import RunStore
from support.reports import line

CITIES = [
    "frankfurt",
    "virginia",
    "tokyo",
    "sydney",
    "saopaulo",
    "mumbai",
    "oregon",
    "london",
    "paris",
    "dublin",
    "seoul",
    "osaka",
    "milan",
    "zurich",
    "oslo",
    "cairo",
]
STEP_S = 2.0
_UNKNOWN: dict[str, Any] = {one.name: "" if one.kind is schema.MetricKind.TEXT else 0 for one in schema.PEERS}


def record(folder: Path, sites: int, ranks: int, begin: float, seconds: int | Iterable[int], **more: Any) -> Path:
    """Write reports of `seconds`, one a second, or those of the seconds that it lists; they count from the Unix time
    `begin` on. more: fields of every report."""
    names = (CITIES + [f"site{number}" for number in range(sites)])[:sites]
    folder.mkdir(exist_ok=True)
    store = RunStore(folder, write=True)
    for second in range(seconds) if isinstance(seconds, int) else seconds:
        own = [(site, site * ranks + rank) for site in range(sites) for rank in range(ranks)]
        said = [_rounded({**_report(names, site, rank, ranks, begin, second), **more}) for site, rank in own]
        store.add([line(one).report for one in said], begin + second)
    store.close()
    return folder


def _rounded(value: Any) -> Any:
    """As ranks round what they report, so that reports differ in numbers alone."""
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 3 if abs(value) > 1e6 else 6) if isinstance(value, float) else value


def _report(names: list[str], site: int, rank: int, ranks: int, begin: float, second: int) -> dict[str, Any]:
    step = int(second / STEP_S)
    now_ns = int((100 + second) * 1e9)
    ended_ns = int((100 + step * STEP_S) * 1e9)
    exposed = 0.3 + 0.15 * site / len(names)
    rows = [_peer(names[site], other, site, second, rank % ranks) for other in range(len(names)) if other != site]
    peers = [
        {**row, "site": names[other], "rank": other * ranks + rank % ranks}
        for other, row in zip((o for o in range(len(names)) if o != site), rows, strict=True)
    ]
    changing = {
        "exposed_seconds": exposed * (1 + 0.4 * math.sin(1.3 * step + site)),
        "input_seconds": 0.1 + step % 7 / 50,
    }
    changing |= {"checkpoint_seconds": 0.5} if second % 60 == 0 else {}
    parts = {"seconds": STEP_S, "input_seconds": 0.1, "exposed_seconds": exposed, "tokens": 8192}
    return {
        "site": names[site],
        "rank": rank,
        "host": f"{names[site]}-{rank % ranks}",
        "process": f"{rank:016x}",
        "sequence": second,
        "time": begin + second,
        "now_ns": now_ns,
        "options": {"codec": "int8", "streams": "4"} if site else {"codec": "int8"},
        "egress_dollars_per_gb": 0.05,
        "disk_free_bytes": (300 - 120 * site) * 10**9 if site < 3 else None,
        "disk_size_bytes": 1000 * 10**9 if site < 3 else None,
        "stats": {
            "exposed_seconds": exposed * step,
            "raw_bytes_sent": 47_000_000 * second,
            "wire_bytes_sent": 12_000_000 * second,
            "local_steps": [],
            "groups": [],
            "peers": peers,
            "gradients": [{"buckets": [{"nmse": 0.004 + 0.001 * math.sin(step / 5 + site)}]}],
        },
        "training": {
            "step": step,
            "of_steps": 5000,
            "ended_ns": ended_ns,
            "grad_norm": 0.8 + 2.0 * math.exp(-step / 30),
            "held_out_loss": 2.1 + 6.0 * math.exp(-(step // 20 * 20) / 60),
            "loss": 2.0 + 6.0 * math.exp(-step / 60) + 0.05 * math.sin(step + site),
            "totals": {name: value * step for name, value in parts.items()} | {"steps": step},
        },
        "steps": [{"step": step, "ended_ns": ended_ns, **parts, **changing}] if second % STEP_S == 0 and step else [],
        "events": [{"kind": "checkpoint", "step": step, "path": "checkpoints", "seconds": 1.2}] if second == 60 else [],
    }


def _peer(source: str, target: int, site: int, second: int, rank: int) -> dict[str, Any]:
    rtt_us = 20_000 + 9_000 * abs(target - site)
    sent = int(
        (9e6 + 2e6 * ((3 * site + 5 * target) % 6)) * second + 60e6 * (1 + target % 3) / 2 * (1 - math.cos(second / 20))
    )
    return _UNKNOWN | {
        "peer": f"{source}-{target}-{rank}",
        "bytes_sent": sent,
        "bytes_received": sent,
        "busy_us": int(second * 600_000),
        "streams": 4,
        "stalled_by_receiver_us": 0,
        "stalled_by_send_buffer_us": 0,
        "retransmitted_bytes": int(sent * (0.02 if target == 2 else 0.001)),
        "tcp_bytes_sent": sent,
        "rtt_us": int(rtt_us * (1.3 + 0.2 * math.sin(second / 7))),
        "min_rtt_us": rtt_us,
        "clock_offset_us": 0,
        "clock_error_us": 1000,
        "outages": 1 if site == 1 else 0,
        "outage_us": 2_300_000 if site == 1 else 0,
        "resumes": 4 if site == 1 else 0,
        "congestion_control": "bbr",
        "cipher": "TLS_AES_128_GCM_SHA256",
        "transport": "tcp",
    }
