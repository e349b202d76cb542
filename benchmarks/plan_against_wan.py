"""`geocomm plan` beside what was measured: `python benchmarks/plan_against_wan.py REPORT.md ...`, some seconds.

Takes reports of `bench_wan.py` or `geocomm bench wan --out`, and asks the plan's model for each all-reduce of geocomm
in them, knowing the link's rate and round trip alone. Codecs are timed on this machine.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import Speed, measure
from geocomm.group.planning.run_estimate import NOMINAL_EFFICIENCY, Workload, estimate, scaled
from geocomm.lab.bench.wan_bench import GLOO_CASES, WanRow
from geocomm.lab.bench.wan_bench_report import BenchSection, read_results

_LINK = re.compile(r"(?P<rate>[\d.]+) (?P<unit>[GM])bit/s, (?P<rtt>[\d.]+) ms RTT, (?P<rest>.+)")
_COLUMNS = (
    *("sites", "ranks", "rate, Mbit/s", "RTT, ms", "", "MiB", "codec", "n", "s", "plan", "s / plan"),
    *("MB/site", "plan", "MB / plan"),
)
_NOTES = """\
s: median of n valid operations; of void ones, in which the emulator was more than 5 ms late, in brackets. MB/site: IP
bytes that a site sent per operation, with headers, acknowledgements and what was sent again. The plan knows rate and
round trip, takes {efficiency:.0%} of the rate for tensors, and knows nothing of loss, of a link that starts slowly, or
of processes that share too few cores; it supposes that the job is told its links (GEOCOMM_LINKS), which these were not.
Measured over planned time of the valid: in the median {middle:.2f}, from {least:.2f} to {most:.2f}.
"""


@dataclass(frozen=True)
class Compared:
    """A measured row and the plan for it."""

    row: WanRow
    links: Links
    remarks: str
    """Of the link: its loss, and what else the report says."""
    plan_s: float
    plan_bytes: float
    """Sent per site."""

    @property
    def ratio(self) -> float:
        """Measured time over the planned one."""
        return self.row.median_s / self.plan_s

    def cells(self) -> list[str]:
        """In the order of the columns."""
        row = self.row
        wire_bytes = row.wire_bytes or 0.0
        left, right = "[]" if row.void else ("", "")
        return [
            f"{row.sites}",
            f"{row.sites * row.ranks_per_site}",
            f"{self.links.rate_bps[0][1] / 1e6:.4g}",
            f"{self.links.rtt_s[0][1] * 1e3:g}",
            self.remarks,
            f"{row.size_bytes / 2**20:g}",
            row.case + (", TLS" if row.encrypted else ""),
            f"{0 if row.void else len(row.times_s)}" + (f" ({row.voided})" if row.voided else ""),
            f"{left}{row.median_s:.3g}{right}",
            f"{self.plan_s:.3g}",
            f"{left}{self.ratio:.2f}{right}",
            f"{wire_bytes / 1e6:.1f}",
            f"{self.plan_bytes / 1e6:.1f}",
            f"{wire_bytes / self.plan_bytes:.2f}",
        ]


def links_of(row: WanRow) -> tuple[Links, str]:
    """The uniform links that a row was measured on, and what its description says beside rate and round trip.

    ValueError: a description that is not `wan_bench.describe_link`'s.
    """
    found = _LINK.fullmatch(row.link)
    if found is None:
        raise ValueError(f"link {row.link!r}: expected such as '1 Gbit/s, 100 ms RTT, no loss'")
    rate_bps = float(found["rate"]) * (1e9 if found["unit"] == "G" else 1e6)
    names = [f"site{number}" for number in range(row.sites)]
    return Links.uniform(names, rate_bps, float(found["rtt"]) / 1e3), found["rest"].removeprefix("no loss").lstrip(", ")


def compare(sections: Sequence[BenchSection]) -> list[Compared]:
    """Every row of geocomm over a WAN; of sections of one title the last."""
    rows = [
        row
        for section in {section.title: section for section in sections}.values()
        for row in section.rows
        if row.sites > 1 and row.case not in GLOO_CASES
    ]
    speeds = measure(tuple(dict.fromkeys(row.case for row in rows)), 1)
    compared = []
    for row in sorted(rows, key=lambda row: (row.sites, row.ranks_per_site)):
        links, remarks = links_of(row)
        work = Workload(row.size_bytes / 4, row.ranks_per_site, compute_s=1.0)
        plan = estimate(work, scaled(links, NOMINAL_EFFICIENCY), row.case, Speed(*speeds[row.case]))
        compared.append(Compared(row, links, remarks, plan.exchange_s, plan.egress_bytes_per_step / row.sites))
    return compared


def table(compared: Sequence[Compared]) -> str:
    """In Markdown."""
    ratios = [one.ratio for one in compared if not one.row.void] or [math.nan]
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---:|" * len(_COLUMNS)]
    lines += ["| " + " | ".join(one.cells()) + " |" for one in compared]
    notes = _NOTES.format(
        efficiency=NOMINAL_EFFICIENCY, middle=statistics.median(ratios), least=min(ratios), most=max(ratios)
    )
    return "\n".join([*lines, "", notes])


def main() -> None:
    """Read, compare, print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="REPORT.md", help="their JSON lies beside them")
    parser.add_argument("--out", type=Path, help="write a page here", metavar="PATH.md")
    arguments = parser.parse_args()
    sections = [section for path in arguments.reports for section in read_results(path)]
    if not sections:
        parser.error(f"no results beside {', '.join(map(str, arguments.reports))}")
    text = table(compare(sections))
    if arguments.out is None:
        print(text)
        return
    sources = ", ".join(f"[{path.name}]({path.name})" for path in arguments.reports)
    arguments.out.write_text(f"# The plan beside what was measured\n\nOf {sources}.\n\n{text}", encoding="utf-8")
    print(f"written: {arguments.out}")


if __name__ == "__main__":
    main()
