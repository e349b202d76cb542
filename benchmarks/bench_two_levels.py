"""Two and four regions over emulated lines: all-reduces, and what FSDP takes, by regions, without them, and Gloo's, in
the same run.

`python benchmarks/bench_two_levels.py [--elements N] [--times N] [--shapes 2x2 …] [--results FOLDER]`

Lines inside a region have 500 Mbit/s and a round trip of 2 ms; those between two sites of different regions 50 Mbit/s
and 40 ms. The links file says so, and names the regions, or not. Each site is one rank. Times are medians, of the
slowest site; bytes are those that the emulator has passed on between regions, with headers. Before any time counts,
all ranks look how far what they got is from the exact sum: exact codecs within a rounding or two of float32, gathers
not at all. Of all-reduces and all-gathers they compare the bits. Gloo is float32 and exact, too.
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
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import geocomm
from geocomm.core.link_table import Links, table_of
from geocomm.group.planning.run_estimate import Pattern, Workload, chosen_levels
from geocomm.lab.bench.bench_report import Conditions, page, table_lines, write_pair
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun

NEAR, FAR = EmulatedLink(rate_bps=500e6, delay_s=0.001), EmulatedLink(rate_bps=50e6, delay_s=0.02)
SHAPES = ("2x2", "2x4", "4x2", "4x8")
"""Regions, and sites of each."""
WAYS = ("by regions", "one level", "gloo")
CODECS = ("none", "int8", "int4")
OPERATIONS: dict[Pattern, tuple[str, ...]] = {"all_reduce": CODECS, "reduce_scatter": CODECS, "all_gather": ("none",)}
"""What each is measured with."""
_LIMIT_S = 300.0
_ROUNDING = 1e-12
"""Squared error of an exact float32 sum over the squared sum, at most."""


def links_of(regions: int, members: int) -> Links:
    count = regions * members

    def link(src: int, dst: int) -> EmulatedLink:
        return NEAR if src // members == dst // members else FAR

    return Links(
        tuple(f"s{site}" for site in range(count)),
        table_of(count, lambda src, dst: 0.9 * link(src, dst).rate_bps),
        table_of(count, lambda src, dst: 2 * link(src, dst).delay_s),
        regions=tuple(f"r{site // members}" for site in range(count)),
    )


def cases() -> list[tuple[Pattern, str, str]]:
    """(operation, way, codec) of each row."""
    return [
        (operation, way, codec)
        for operation, codecs in OPERATIONS.items()
        for codec in codecs
        for way in WAYS
        if way != "gloo" or codec == "none"
    ]


# ---- at each site


def made_by(rank: int, elements: int) -> torch.Tensor:
    return torch.randn(elements, generator=torch.Generator().manual_seed(rank))


class Operation:
    """One operation of `pattern` on a rank: what it gives, where the result lies, and how wrong that is."""

    def __init__(self, pattern: Pattern, rank: int, count: int, elements: int) -> None:
        self._pattern = pattern
        shard = slice(rank * elements // count, (rank + 1) * elements // count)
        own = made_by(rank, elements)
        self._given = own[shard] if pattern == "all_gather" else own
        self._exact = torch.zeros(elements, dtype=torch.float64)
        for one in range(count):
            if pattern == "all_gather":
                part = slice(one * elements // count, (one + 1) * elements // count)
                self._exact[part] = made_by(one, elements)[part]
            else:
                self._exact += made_by(one, elements)
        if pattern == "reduce_scatter":
            self._exact = self._exact[shard].clone()
        self.result = torch.empty(len(self._exact))
        self.prepare()

    def prepare(self) -> None:
        if self._pattern == "all_reduce":
            self.result.copy_(self._given)

    def run(self, group: dist.ProcessGroup) -> None:
        if self._pattern == "all_reduce":
            dist.all_reduce(self.result, group=group)
        elif self._pattern == "reduce_scatter":
            dist.reduce_scatter_tensor(self.result, self._given, group=group)
        else:
            dist.all_gather_into_tensor(self.result, self._given, group=group)

    def nmse(self) -> float:
        return float(((self.result.double() - self._exact) ** 2).sum() / (self._exact**2).sum())

    def check(self, codec: str) -> float:
        """The squared error over the squared sum, which is as it has to be."""
        error = self.nmse()
        raw: Any = self.result.view(torch.uint8).numpy()
        bits: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(bits, hashlib.sha256(raw).hexdigest())
        differ = self._pattern != "reduce_scatter" and len({*bits}) != 1
        if differ or (codec == "none" and error > (0.0 if self._pattern == "all_gather" else _ROUNDING)):
            raise SystemExit(f"{self._pattern}, {codec}: bits {bits}, error {error:g}")
        return error


def site(folder: Path) -> None:
    torch.set_num_threads(1)
    settings = json.loads((folder / "settings.json").read_text())
    rank, count, elements = int(os.environ["NODE_RANK"]), settings["sites"], settings["elements"]
    dist.init_process_group("geocomm", rank=rank, world_size=count)
    operations = {pattern: Operation(pattern, rank, count, elements) for pattern in OPERATIONS}
    for number, (pattern, way, codec) in enumerate(cases()):
        if way == "gloo":
            group = dist.new_group(backend="gloo")
        else:
            links = str(folder / ("regions.json" if way == "by regions" else "plain.json"))
            group = dist.new_group(pg_options=geocomm.Options(codec=codec, links=links))
        operation = operations[pattern]
        operation.prepare()
        operation.run(group)  # connects; what it makes is looked at before any time counts
        nmse = operation.check(codec)
        for turn in range(settings["times"]):
            operation.prepare()
            name = f"{number}-{turn}"
            (folder / f"ready-{name}-{rank}").touch()
            _await(folder / f"go-{name}")
            begun = time.monotonic()
            operation.run(group)
            took = time.monotonic() - begun
            said = folder / f"done-{name}-{rank}"
            said.with_suffix(".new").write_text(json.dumps({"seconds": took, "nmse": nmse}))
            said.with_suffix(".new").rename(said)
            _await(folder / f"on-{name}")
        dist.destroy_process_group(group)
    dist.destroy_process_group()


def _await(path: Path) -> None:
    until = time.monotonic() + _LIMIT_S
    while not path.exists():
        if time.monotonic() > until:
            raise SystemExit(f"not within {_LIMIT_S:g} s: {path.name}")
        time.sleep(0.005)


# ---- the run


def run_shape(regions: int, members: int, elements: int, times: int) -> tuple[list[dict[str, Any]], bool]:
    """A row for each case; whether the emulator was on time."""
    links = links_of(regions, members)
    count = len(links.sites)
    region = dict(zip(links.sites, links.regions or (), strict=True))
    lines = {
        (src, dst): NEAR if region[src] == region[dst] else FAR
        for src in links.sites
        for dst in links.sites
        if src != dst
    }
    rows: list[dict[str, Any]] = []
    environment = os.environ | {"GEOCOMM_SECURITY": "insecure"}  # an emulated WAN hears nobody
    with tempfile.TemporaryDirectory(prefix="bench-two-levels-") as name:
        folder = Path(name)
        (folder / "settings.json").write_text(json.dumps({"sites": count, "elements": elements, "times": times}))
        (folder / "regions.json").write_text(json.dumps(links.to_dict()))
        (folder / "plain.json").write_text(json.dumps(links.model_copy(update={"regions": None}).to_dict()))
        command = [sys.executable, __file__, "--site-of", name]
        with WanRun(EmulatedWan(links.sites, lines), command, environment=environment) as run:

            def await_all(what: str) -> list[Path]:
                paths = [folder / f"{what}-{rank}" for rank in range(count)]
                until = time.monotonic() + _LIMIT_S
                while not all(path.exists() for path in paths):
                    if not run.running() or time.monotonic() > until:
                        raise SystemExit(f"{regions} x {members}: no {what}")
                    time.sleep(0.005)
                return paths

            def crossed(report: WanReport) -> int:
                return sum(one.bytes for one in report.links if region[one.src] != region[one.dst])

            for number, (pattern, way, codec) in enumerate(cases()):
                seconds, crossing = [], []
                said: list[dict[str, float]] = []
                for turn in range(times):
                    await_all(f"ready-{number}-{turn}")
                    before = crossed(run.control.stats())
                    (folder / f"go-{number}-{turn}").touch()
                    said = [json.loads(path.read_text()) for path in await_all(f"done-{number}-{turn}")]
                    seconds.append(max(one["seconds"] for one in said))
                    crossing.append(crossed(run.control.stats()) - before)
                    (folder / f"on-{number}-{turn}").touch()
                row = {"operation": pattern, "shape": f"{regions} x {members}", "way": way, "codec": codec}
                row["seconds"] = seconds
                rows.append(row | {"crossed": statistics.median(crossing), "nmse": said[0]["nmse"]})
                rows[-1] |= planned(links, pattern, way, codec, elements)
                print(rows[-1], flush=True)
            status = run.wait(_LIMIT_S)
            report = run.report()
    if status != 0:
        raise SystemExit(f"{regions} x {members}: status {status}")
    return rows, report is not None and report.reliable


def planned(links: Links, pattern: Pattern, way: str, codec: str, elements: int) -> dict[str, float]:
    """Seconds and bytes between regions of the model."""
    if way == "gloo":
        return {}
    choice = chosen_levels(Workload(elements, 1, 1.0), links, codec, pattern)
    assert choice is not None
    if way == "by regions" and not choice.by_region:
        raise SystemExit(f"{pattern}, {codec}: the model does not go by regions: {choice}")
    by_region = way == "by regions"
    return {
        "plan_s": choice.region_s if by_region else choice.plain_s,
        "plan_crossed": choice.region_bytes if by_region else choice.plain_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=4 << 20)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--shapes", nargs="*", default=SHAPES, metavar="2x4", help="Regions x sites of each.")
    parser.add_argument("--site-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.site_of is not None:
        site(options.site_of)
        return
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    rows: list[dict[str, Any]] = []
    late: list[str] = []
    for shape in options.shapes:
        regions, members = map(int, shape.split("x"))
        found, on_time = run_shape(regions, members, options.elements, options.times)
        rows += found
        late += [] if on_time else [f"{regions} x {members}"]
    cells = [
        (
            row["shape"],
            row["operation"],
            row["codec"],
            row["way"],
            f"{row['crossed'] / 1e6:.1f}",
            f"{row['plan_crossed'] / 1e6:.1f}" if "plan_crossed" in row else "",
            f"{statistics.median(row['seconds']):.2f} ({min(row['seconds']):.2f}-{max(row['seconds']):.2f})",
            f"{row['plan_s']:.2f}" if "plan_s" in row else "",
            f"{row['nmse']:.2g}",
        )
        for row in rows
    ]
    headings = ("regions", "operation", "codec", "way", "MB between regions", "plan", "s", "plan", "NMSE")
    note = (
        f"Of {4 * options.elements / 1e6:.0f} MB of float32 at each site (of an all-gather: at all sites together), "
        f"normally distributed, {options.times} times: 50 Mbit/s and 40 ms between any two sites of different regions, "
        "500 Mbit/s and 2 ms inside. All processes share the machine."
    )
    if late:
        note += f" Packets were late, so times of {', '.join(late)} are void as times of a line."
    write_pair(
        options.results / "two-levels.md",
        page(
            "All-reduces, reduce-scatters and all-gathers by regions",
            conditions,
            note,
            *table_lines(headings, cells),
            "",
        ),
        {"conditions": asdict(conditions), "rows": rows, "late": late},
    )
    print(f"written: {options.results / 'two-levels.md'}")


if __name__ == "__main__":
    main()
