"""Waiting for data from afar, what that does to rounds, and the first batch: `python benchmarks/bench_data_fetch.py`.

Two emulated sites, 200 Mbit/s, 100 ms, 0.1 % loss, with an S3 server (moto) each. Site 0 reads shards of 2 MiB in deals
of 8, half of them at site 1, 0.9 MB a second; every 25 steps the sites reduce 16 MiB. Ways of reading:

- alone: nothing is read
- geocomm: ShardCache, two deals ahead
- obstore: by hand: a thread gets whole objects, two deals ahead, as fast as it goes

Then with geocomm, six minutes dealt ahead, site 1's server stands still for 300 s from the second minute on. Before
these, the first batch of a data set of 35,000 shards of 64 MiB that are all in the cache. A quarter of an hour on two
cores that are free. Results: benchmarks/results/data-fetch.md. Exit status 1: a step waited where none may.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
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
LINE = EmulatedLink(rate_bps=2e8, delay_s=0.05, loss=0.001)
SHARDS = 35_000
SHARD_TOKENS = (64 << 20) // 2
READ_SHARDS = 16

Sample = dict[str, Any]


def over_the_line(*arguments: str) -> tuple[list[Sample], WanReport | None]:
    """What the worker says of each way, and what the line did."""
    environment = bare_environment() | {"PYTHONPATH": str(ROOT), "GEOCOMM_SECURITY": "insecure"}
    with tempfile.TemporaryFile("w+") as output:
        with WanRun(
            EmulatedWan.uniform(2, LINE),
            [sys.executable, str(WORKER), *arguments],
            environment=environment,
            stdout=output,
            stderr=output,
        ) as run:
            status = run.wait(1200)
            report = run.report()
        output.seek(0)
        text = output.read()
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


def _page(conditions: Conditions, samples: Sequence[Sample], dead: Sample, first_s: Sequence[float], late: str) -> str:
    base = statistics.median([one for sample in samples if sample["way"] == "alone" for one in sample["rounds_s"]])
    rows: list[str] = []
    for one in [*samples, dead | {"way": "geocomm, site 1's store dead for 300 s"}]:
        median = statistics.median(one["rounds_s"])
        rows.append(
            f"| {one['way']} | {one['steps']} | {one['waited_steps']} | {one['waited_s']:.1f} | {median:.3f} s | "
            f"{median / base:.3f} |"
        )
    return page(
        "Data: fetching from afar",
        conditions,
        "Two emulated sites, 200 Mbit/s, 100 ms, 0.1 % loss; moto at each. Site 0 reads 0.9 MB a second, half of it "
        "from site 1. A step that waited more than 10 ms counts, without the first 50. " + late,
        "| way | steps | that waited | seconds | round, median | times those alone |",
        "|---|---:|---:|---:|---:|---:|",
        *rows,
        "",
        f"First batch of {SHARDS:,} shards, all in the cache, from the catalog on: "
        f"{', '.join(f'{one:.2f}' for one in first_s)} s. Without the imports.",
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
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_data_fetch.py", *sys.argv[1:]]))
    first_s = [first_batch_s() for _ in range(3)]
    samples, report = over_the_line("6", "2", "0", "alone", "geocomm", "obstore", "alone")
    [dead], report_of_dead = over_the_line("28", "18", "300", "geocomm")
    text = _page(conditions, samples, dead, first_s, lateness([report, report_of_dead]))
    print(text)
    document = {"samples": samples, "dead": dead, "first_batch_s": first_s}
    write_pair(arguments.out / "data-fetch.md", text, document)
    waited = sum(one["waited_steps"] > 0.01 * one["steps"] for one in samples if one["way"] == "geocomm")
    return int(bool(waited or dead["waited_steps"]))


if __name__ == "__main__":
    sys.exit(main())
