"""Waiting for data from afar, what that does to rounds, and the first batch: `python benchmarks/bench_data_fetch.py`.

Two emulated sites, 200 Mbit/s, 100 ms, 0.1 % loss, with an S3 server (moto) each. Site 0 reads shards of 2 MiB in deals
of 8, half of them at site 1, 0.9 MB a second; every 25 steps the sites reduce 16 MiB. Ways of reading:

- alone: nothing is read
- geocomm: ShardCache, two deals ahead
- obstore: by hand: a thread gets whole objects, two deals ahead, as fast as it goes
- litData and MosaicML Streaming (`--peers PYTHON`, see bench_data_once.py; with boto3): two workers, as
  documented for a bucket, and again with two deals ahead. What site 0 has lies in a folder there

Then site 1's server stands still for --outage seconds from step 300 on; geocomm has been dealt all that it reads, the
others have two deals ahead. Before these, the first batch of a data set of 35,000 shards of 64 MiB that are all in the
cache, and in the middle of as many with litData and Hugging Face datasets. Half an hour on two cores that are free.
Results: benchmarks/results/data-fetch.md. Exit status 1: a step of geocomm waited where none may.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.data.catalog import Catalog, Rules, Shard, Version
from geocomm.data.shard_cache import ShardCache
from geocomm.data.shard_stores import ShardStores
from geocomm.lab.bench.bench_report import Conditions, page, write_pair
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from geocomm.lab.emulator.local_job import bare_environment

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks/data_fetch_worker.py"
PEER = ROOT / "benchmarks/data_stream_peer.py"
LINE = EmulatedLink(rate_bps=2e8, delay_s=0.05, loss=0.001)
SHARDS = 35_000
SHARD_TOKENS = (64 << 20) // 2
READ_SHARDS = 16
DEALS, STEPS_A_DEAL, STEP_S = 3, 139, 0.136
DEAD_FROM = 300
NAMES = {
    "datasets": "Hugging Face datasets",
    "obstore": "obstore by hand",
    "litdata": "litData",
    "litdata 16": "litData, 16 shards ahead",
    "streaming": "MosaicML Streaming",
    "streaming 16": "MosaicML Streaming, 16 shards ahead",
}

Sample = dict[str, Any]
_PEER_ENVIRONMENT = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}


def write_for_peers(python: str, folder: Path, deals: int) -> dict[str, str]:
    """The data sets of the peers, and what workers need of the environment for them."""
    half = deals * READ_SHARDS // 4
    for reader in ("litdata", "streaming"):
        for site in (0, 1):
            command = [python, str(PEER), "write", reader, f"{folder}/{reader}{site}", str(site * half), str(half)]
            subprocess.run(command, env=_PEER_ENVIRONMENT, check=True, capture_output=True)
    return {"GEOCOMM_PEERS": python, "GEOCOMM_PEER_SETS": str(folder)}


def over_the_line(more: Mapping[str, str], *arguments: str) -> tuple[list[Sample], WanReport | None]:
    """What the worker says of each way, and what the line did. more: of the environment."""
    environment = {**bare_environment(), "PYTHONPATH": str(ROOT), "GEOCOMM_SECURITY": "insecure", **more}
    with tempfile.TemporaryFile("w+") as output:
        with WanRun(
            EmulatedWan.uniform(2, LINE),
            [sys.executable, str(WORKER), *arguments],
            environment=environment,
            stdout=output,
            stderr=output,
        ) as run:
            status = run.wait(2400)
            report = run.report()
        output.seek(0)
        text = output.read()
    for line in text.splitlines():
        if "Error" in line:
            print(line)
    if status:
        raise SystemExit(f"{text[-3000:]}\nthe sites ended with {status}")
    return samples_of(text), report


def samples_of(text: str) -> list[Sample]:
    """The lines of results in what the sites print."""
    lines = (line.partition("{") for line in text.splitlines() if '"way":' in line)
    return [json.loads(brace + rest) for _, brace, rest in lines]


def first_batch_s() -> float:
    """Seconds from the catalog to the ids of the first 64 rows, of shards that are all in the cache."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        rules = Rules.model_validate({"sites": {"a": "eu"}, "stores": {"far": {"url": "https://example.org/tokens"}}})
        version = Version(number=1, tokenizer="byte", vocabulary=1 << 16, dtype="<u2", rules=rules, parts=())
        names = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(SHARDS)]
        shards = [Shard(name, "far", f"{number}.ds", 0, SHARD_TOKENS) for number, name in enumerate(names)]
        catalog = Catalog(str(root / "catalog"))
        catalog.add(version, shards)
        os.environ["GEOCOMM_DATA_CACHE"] = str(root / "cache")
        (root / "cache").mkdir()
        for name in names:
            with (root / "cache" / name).open("wb") as file:
                file.truncate(SHARD_TOKENS * 2)  # a name is trusted, so no bytes are needed
        began = time.perf_counter()
        read = catalog.read()
        found = catalog.shards(read)
        cache = ShardCache(ShardStores(read, found, "a"), row_bytes=8192)
        wanted = found[SHARDS // 2 :][:READ_SHARDS]
        cache.want(wanted)
        for row in range(64):
            cache.ids(wanted[row % 8])[:4096].sum()
        seconds = time.perf_counter() - began
        cache.close()
    return seconds


def first_batch_of_peer_s(python: str, reader: str) -> list[float]:
    """Likewise, in the middle of a pass, of a peer: without its imports."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, str(PEER), "resume", reader, f"{folder}/set", str(SHARDS)]
        told = [
            subprocess.run(command, env=_PEER_ENVIRONMENT, check=True, text=True, capture_output=True).stdout
            for _ in range(4)
        ]
    return [float(text.splitlines()[-1]) for text in told[1:]]


def _page(
    conditions: Conditions,
    samples: Sequence[Sample],
    dead: Sequence[Sample],
    first_s: Mapping[str, Sequence[float]],
    late: str,
) -> str:
    base = statistics.median([one for sample in samples if sample["way"] == "alone" for one in sample["rounds_s"]])
    rows: list[str] = []
    for one in [*samples, *dead]:
        median = statistics.median(one["rounds_s"])
        name = NAMES.get(one["way"], one["way"]) + (f", store dead for {one['dead_s']} s" if one in dead else "")
        ended = ", then it ended" if one["ended"] else ""
        rows.append(
            f"| {name} | {one['steps']}{ended} | {one['waited_steps']} | {one['waited_steps'] / one['steps']:.1%} | "
            f"{one['waited_s']:.1f} | {median:.3f} s | {median / base:.3f} |"
        )
    least = statistics.median(first_s["geocomm"])
    firsts = [
        f"| {NAMES.get(name, name)} | {', '.join(f'{one:.2f}' for one in seconds)} | "
        f"{statistics.median(seconds) / least:.1f} |"
        for name, seconds in first_s.items()
    ]
    return page(
        "Data: fetching from afar",
        conditions,
        "Two emulated sites, 200 Mbit/s, 100 ms, 0.1 % loss; moto at each. Site 0 reads 0.9 MB a second, half of it "
        "from site 1. A step that waited more than 50 ms counts, without the first 50. " + late,
        "| way | steps | that waited | share | seconds | round, median | times those alone |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *rows,
        "",
        f"The first batch of {SHARDS:,} shards that are all there, in the middle of a pass, without the imports:",
        "",
        "| reader | seconds | times geocomm's |",
        "|---|---:|---:|",
        *firsts,
    )


def lateness(reports: Sequence[WanReport | None]) -> str:
    """Whether the emulator kept its times."""
    known = [report for report in reports if report is not None]
    most = max((report.max_lateness_s for report in known), default=0.0)
    packets = sum(one.late_packets for one in known)
    return f"The emulator was late by {most * 1000:.0f} ms at the most, with {packets} packets."


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--peers", help="the Python that has the peers; without, geocomm and obstore alone")
    parser.add_argument("--outage", type=int, default=300, help="seconds for which the store is dead")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_data_fetch.py", *sys.argv[1:]]))
    peers: str | None = arguments.peers
    first_s = {"geocomm": [first_batch_s() for _ in range(3)]}
    for reader in ("litdata", "datasets") if peers else ():
        first_s[reader] = first_batch_of_peer_s(str(peers), reader)
    compared = ["litdata", "litdata 16", "streaming", "streaming 16"] if peers else []
    deals = math.ceil((DEAD_FROM + arguments.outage / STEP_S) / STEPS_A_DEAL)
    with tempfile.TemporaryDirectory() as folder:
        more = write_for_peers(peers, Path(folder), deals) if peers else {}
        samples, report = over_the_line(more, str(DEALS), "2", "0", "alone", "geocomm", "obstore", *compared, "alone")
        dead, reports = list[Sample](), [report]
        for way, ahead in (("geocomm", deals), ("obstore", 2), *((way, 2) for way in compared[1::2])):
            [one], report = over_the_line(more, str(deals), str(ahead), str(arguments.outage), way)
            dead.append(one | {"dead_s": arguments.outage})
            reports.append(report)
    text = _page(conditions, samples, dead, first_s, lateness(reports))
    print(text)
    write_pair(arguments.out / "data-fetch.md", text, {"samples": samples, "dead": dead, "first_batch_s": first_s})
    waited = sum(one["waited_steps"] > 0.01 * one["steps"] for one in samples if one["way"] == "geocomm")
    return int(bool(waited or dead[0]["waited_steps"]))


if __name__ == "__main__":
    sys.exit(main())
