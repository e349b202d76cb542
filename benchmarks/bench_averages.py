"""Averages of equal tensors over sites, by geocomm and by hivemind: `python benchmarks/bench_averages.py`, ten minutes.

Sites over the emulated WAN bring a tensor each, and all get the mean, by turns in one run:

- geocomm, all-reduce: of a process group, as DDP takes it;
- geocomm, round: of `local_steps` with a round after each step, from the optimizer's step to the new weights;
- hivemind: `DecentralizedAverager` (1.1.12), from the trigger to the mean; finding the others is a column of its own.

Each result is verified by its squared error over the mean's squared norm. Seconds: latest end minus latest start over
the sites, after a barrier; the median. Bytes: what the links carried for it, headers and acknowledgements included,
over the sites. Both encrypt: geocomm by TLS, hivemind by libp2p. Needs a Python with hivemind (`--hivemind PYTHON`),
and what `geocomm wan` needs. Results: benchmarks/results/averages.md and .json. Exit status 1: a result was wrong.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from averages_worker import COLUMNS, HIVEMIND, REDUCE, ROUND, Plan, write_plan

from geocomm.lab.bench.bench_report import Conditions, page, table_lines, write_pair
from geocomm.lab.bench.wan_bench import describe_link
from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "averages_worker.py"
CASES = (
    (HIVEMIND, "none", ""),
    (REDUCE, "none", ""),
    (HIVEMIND, "8 bits", ""),
    (REDUCE, "int8", ""),
    (ROUND, "int8", "all"),
    (ROUND, "int8", "aggregator"),
    (ROUND, "int4", "aggregator"),
)
MOST_NMSE = {"none": 1e-9, "int8": 1e-3, "8 bits": 1e-2, "int4": 5e-2}
"""Beyond it a result is wrong. int8, int4 and 8 bits are coded twice; what one round loses the next one makes good."""
LIMIT_S = 1800.0


@dataclass(frozen=True)
class Row:
    """A case."""

    sites: int
    who: str
    codec: str
    reduce: str
    seconds: tuple[float, ...]
    matching_s: tuple[float, ...]
    """Of hivemind, until a site knew the group."""
    bytes_per_site: float
    nmse: float
    late: int
    """Operations in which a packet was late."""
    failed: tuple[str, ...] = ()
    """What became of hivemind's averages that some site did not get; they are in no other column."""

    def cells(self, raw_bytes: int) -> list[str]:
        """Of the table."""
        name = self.who if self.who == HIVEMIND else f"geocomm, {self.who}"
        found = f"{statistics.median(self.matching_s):.2f}" if self.matching_s else ""
        return [
            f"{name}{f', {self.reduce}' if self.reduce else ''}",
            self.codec,
            f"{statistics.median(self.seconds):.2f}",
            f"{min(self.seconds):.2f} to {max(self.seconds):.2f}",
            found,
            f"{self.bytes_per_site / 1e6:.1f}",
            f"{self.bytes_per_site / raw_bytes:.2f}",
            f"{self.nmse:.1e}",
        ]


def link_for(sites: int) -> EmulatedLink:
    """So slow that the emulator, which carries all pairs on one machine, is not what is measured."""
    return EmulatedLink(rate_bps=1e9 / (sites * (sites - 1)), delay_s=0.05)


def measure(sites: int, plan: Plan) -> list[Row]:
    """One run. SystemExit: it failed."""
    with (
        tempfile.TemporaryDirectory(prefix="geocomm-averages-") as folder,
        tempfile.TemporaryFile("w+") as log,
        site_keys([f"site{number}" for number in range(sites)], None, secure=True) as keys,
    ):
        write_plan(plan, Path(folder) / "plan.json")
        with WanRun(
            EmulatedWan.uniform(sites, link_for(sites)),
            [sys.executable, str(WORKER), str(Path(folder) / "plan.json"), folder],
            environment=site_environment(bare_environment(), keys) | {"PYTHONPATH": str(ROOT)},
            keys=keys,
            stdout=log,
            stderr=log,
            master_port=29551,
        ) as run:
            status = run.wait(LIMIT_S)
        if status != 0:
            log.seek(0)
            raise SystemExit(f"the run of {sites} sites ended with {status}:\n{''.join(log.readlines()[-60:])}")
        by_rank = [
            [json.loads(line) for line in (Path(folder) / f"rank-{rank}.jsonl").read_text("utf-8").splitlines()]
            for rank in range(sites)
        ]
    return rows_of(by_rank)


def rows_of(by_rank: list[list[dict[str, Any]]]) -> list[Row]:
    """The rows of what the sites wrote."""
    sites, rows = len(by_rank), []
    operations = [lines for lines in zip(*by_rank, strict=True) if not lines[0]["warmup"]]
    for case in dict.fromkeys((lines[0]["who"], lines[0]["codec"], lines[0]["reduce"]) for lines in operations):
        all_of_case = [one for one in operations if (one[0]["who"], one[0]["codec"], one[0]["reduce"]) == case]
        why = [why_failed(case[0], case[1], lines) for lines in all_of_case]
        of_case = [lines for lines, failed in zip(all_of_case, why, strict=True) if not failed]
        failed = [text for text in why if text]
        if not of_case:
            raise SystemExit(f"{' '.join(case)}: no average came about: {'; '.join(failed)}")
        links = [lines[0]["links"] for lines in of_case]
        rows.append(
            Row(
                sites,
                *case,
                tuple(span(lines, "start", "end") for lines in of_case),
                tuple(span(lines, "matched_start", "matched_end") for lines in of_case if "matched_end" in lines[0]),
                statistics.median(after["bytes"] - before["bytes"] for before, after in links) / sites,
                max(line["nmse"] for lines in of_case for line in lines),
                sum(after["late"] > before["late"] for before, after in links),
                tuple(failed),
            )
        )
    return rows


def why_failed(who: str, codec: str, lines: tuple[dict[str, Any], ...]) -> str:
    """Why a site has no average; nothing: all have. hivemind goes on where parts of it do not come."""
    said = [line["failed"] for line in lines if "failed" in line]
    wrong = [line["nmse"] for line in lines if who == HIVEMIND and not line.get("nmse", 0.0) <= MOST_NMSE[codec]]
    parts = f"parts were lacking at {len(wrong)} sites (squared error up to {max(wrong):.2g})" if wrong else ""
    return said[0] if said else parts


def span(lines: tuple[dict[str, Any], ...], start: str, end: str) -> float:
    """Seconds from the latest start to the latest end."""
    return max(line[end] for line in lines) - max(line[start] for line in lines)


def report(conditions: Conditions, rows: list[Row], raw_bytes: int) -> str:
    """Markdown."""
    table: list[str] = []
    for sites in dict.fromkeys(row.sites for row in rows):
        of_sites = [row for row in rows if row.sites == sites]
        late = sum(row.late for row in of_sites)
        table += [f"## {sites} sites", "", f"{describe_link(link_for(sites))}, between each two.", ""]
        table += table_lines(
            ["average", "codec", "s", "of", "finding the others, s", "MB a site", "× the tensor", "squared error"],
            [row.cells(raw_bytes) for row in of_sites],
            ("codec", "of"),
        )
        table += [""]
        table += [
            f"{row.who}, {row.codec}: {len(row.failed)} more averages were left out: {'; '.join(row.failed)}.\n"
            for row in of_sites
            if row.failed
        ]
        table += ["", f"Packets came over 5 ms late in {late} of {sum(len(r.seconds) for r in of_sites)}.", ""]
    text = (
        f"A tensor of {raw_bytes / 2**20:g} MiB at each site, in float32; all get the mean. Seconds from the latest "
        "start to the latest end. Bytes are all that the links carried, those of finding the others included."
    )
    return page("Averages against hivemind", conditions, text, *table)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hivemind", default="", metavar="PYTHON", help="that has it; without: only geocomm's rows")
    parser.add_argument("--sites", default="8", help="by commas")
    parser.add_argument("--mib", type=int, default=16, help="of the tensor")
    parser.add_argument("--repeats", type=int, default=5, help="operations of each row")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    counts = [int(count) for count in arguments.sites.split(",")]
    if any((arguments.mib << 20) // 4 % (count * COLUMNS) for count in counts):
        parser.error(f"--mib {arguments.mib}: the elements are not whole rows of {COLUMNS} for each of so many sites")
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    cases = tuple(case for case in CASES if arguments.hivemind or case[0] != HIVEMIND)
    plan = Plan((arguments.mib << 20) // 4, cases, arguments.repeats, arguments.hivemind)
    rows = [row for count in counts for row in measure(count, plan)]
    text = report(conditions, rows, arguments.mib << 20)
    path = write_pair(arguments.out / "averages.md", text, {"rows": [asdict(row) for row in rows]} | asdict(conditions))
    print(text)
    print(f"written: {path}")
    wrong = [row for row in rows if not row.nmse <= MOST_NMSE[row.codec]]
    for row in wrong:
        print(f"wrong: {row.who}, {row.codec}: squared error {row.nmse}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
