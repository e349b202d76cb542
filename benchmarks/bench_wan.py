"""The all-reduce rows that have targets, and how they scale: `python benchmarks/bench_wan.py`, about 40 minutes.

Each scenario is measured by itself and written at once to benchmarks/results/wan.md and .json, so a run that was
interrupted goes on where it was: what that file has of the present commit is not measured again. For other links, sizes
and codecs: `geocomm bench wan`. Exit status 1: a run failed, a result was wrong, or, with --check, a target was missed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.bench.wan_bench import EXACT, GLOO, GLOO_SLICED, Effort, WanRow, bench_link, bench_one_site
from geocomm.lab.bench.wan_bench_report import BenchSection, read_results, rich_tables, verdict, write_results
from geocomm.lab.emulator.emulated_keys import site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink
from geocomm.lab.emulator.leo_profile import ROUND_TRIP_S, leo_links

RESULTS = Path(__file__).resolve().parent / "results"
MIB = 1 << 20
CLEAN = EmulatedLink(rate_bps=1e9, delay_s=0.05)
LOSSY = replace(CLEAN, loss=0.001)
FAR = EmulatedLink(rate_bps=2e8, delay_s=0.15, loss=0.005)
# Of the line's rate.
PACING = 0.98
# Of the payload rate, which headers leave 96.5 % of: bytes / (0.85 * 0.965 * rate) + delay, over the floor.
GOODPUT_TARGET = 1.21
IDLE_TARGET = 1.3
ONE_SITE_TARGET = 1.02
ONE_SITE_REPEATS = 15


@dataclass(frozen=True)
class Scenario:
    """Cases that are measured in one run, on one link."""

    link: EmulatedLink
    cases: Sequence[str]
    targets: Mapping[str, float] = field(default_factory=dict)
    """Most time over floor, by case."""
    size_bytes: int = 64 * MIB
    sites: int = 2
    ranks_per_site: int = 1
    pacing: float | None = None
    """Cap of geocomm's streams, as a part of the link's rate."""

    def measure(self, effort: Effort, *, secure: bool = False) -> list[WanRow]:
        """A row for each case; `secure`: over TLS, with keys made for the run."""
        with site_keys([f"site{number}" for number in range(self.sites)], None, secure) as keys:
            rows = bench_link(
                self.link,
                self.cases,
                [self.size_bytes],
                sites=self.sites,
                ranks_per_site=self.ranks_per_site,
                effort=effort,
                keys=keys,
                pacing=self.pacing,
            )
        return [replace(row, target=self.targets.get(row.case)) for row in rows]


@dataclass(frozen=True)
class WithTls:
    """The same without TLS and with it, one after the other."""

    scenario: Scenario

    def measure(self, effort: Effort) -> list[WanRow]:
        """The rows in the clear, then those over TLS."""
        return self.scenario.measure(effort) + self.scenario.measure(effort, secure=True)


@dataclass(frozen=True)
class AfterIdle:
    """An operation after a pause, against operations that follow each other."""

    link: EmulatedLink
    idle_s: float = 10.0

    def measure(self, effort: Effort) -> list[WanRow]:
        """The steady row, and the one after the pause with its target."""
        (steady,) = Scenario(self.link, (EXACT,)).measure(effort)
        (idle,) = Scenario(self.link, (EXACT,)).measure(replace(effort, pause_s=self.idle_s))
        assert steady.ratio is not None
        named = replace(idle, link=f"{idle.link}, after {self.idle_s:g} s idle", target=IDLE_TARGET * steady.ratio)
        return [steady, named]


@dataclass(frozen=True)
class Leo:
    """Over satellites in low Earth orbit: round trips that jump every 15 s, black-outs, loss in bursts."""

    cases: Sequence[str]
    rate_bps: float = 2e8

    def measure(self, effort: Effort) -> list[WanRow]:
        """A row for each case, over the floor of the shortest round trip and no loss."""
        least, most = ROUND_TRIP_S
        link = EmulatedLink(rate_bps=self.rate_bps, delay_s=least / 2)
        rows = bench_link(link, self.cases, [64 * MIB], effort=effort, changing=partial(leo_links, seed=1))
        name = f"low Earth orbit: {self.rate_bps / 1e6:g} Mbit/s, RTT {least * 1e3:g} to {most * 1e3:g} ms"
        return [replace(row, link=name) for row in rows]


@dataclass(frozen=True)
class OneSite:
    """No WAN: two ranks that geocomm leaves to Gloo."""

    def measure(self, effort: Effort) -> list[WanRow]:
        """Gloo, and geocomm with its target."""
        many = replace(effort, repeats=max(effort.repeats, ONE_SITE_REPEATS), warmup=2, pause_s=0.05)
        rows = bench_one_site([64 * MIB], effort=many)
        return [replace(row, target=ONE_SITE_TARGET if row.case == EXACT else None) for row in rows]


def scaling_link(sites: int) -> EmulatedLink:
    """So slow that the emulator, which carries all pairs on one machine, is not what is measured."""
    return EmulatedLink(rate_bps=1e9 / (sites * (sites - 1)), delay_s=0.05)


def paced(scenario: Scenario) -> Scenario:
    """What has a target, by someone who knows the line's rate and says so; the targets are the same."""
    return replace(scenario, cases=tuple(scenario.targets), pacing=PACING)


CLEAN_ROWS = Scenario(
    CLEAN,
    (EXACT, "int8", "balanced", "small", GLOO, GLOO_SLICED),
    {EXACT: 1.15, "int8": 0.42, "balanced": 0.25, "small": 0.22},
)
LOSSY_ROWS = Scenario(LOSSY, (EXACT, "int8", GLOO, GLOO_SLICED), {EXACT: 1.3})
LONG_LOSSY_ROWS = Scenario(LOSSY, ("int8",), {"int8": 0.33}, size_bytes=256 * MIB)
FOUR_SITES = Scenario(
    EmulatedLink(rate_bps=1e8, delay_s=0.075, loss=0.0005), (EXACT, GLOO, GLOO_SLICED), {EXACT: 1.2}, sites=4
)
FAR_ROWS = Scenario(FAR, (EXACT, GLOO_SLICED), {EXACT: 1.3})

SCENARIOS: dict[str, Scenario | WithTls | AfterIdle | Leo | OneSite] = {
    "clean": CLEAN_ROWS,
    "clean-paced": paced(CLEAN_ROWS),
    "lossy": LOSSY_ROWS,
    "lossy-paced": paced(LOSSY_ROWS),
    "lossy-256MiB": LONG_LOSSY_ROWS,
    "lossy-256MiB-paced": paced(LONG_LOSSY_ROWS),
    "goodput": Scenario(LOSSY, (EXACT,), {EXACT: GOODPUT_TARGET}, size_bytes=512 * MIB),
    "four-sites": FOUR_SITES,
    "four-sites-paced": paced(FOUR_SITES),
    "far": FAR_ROWS,
    "far-paced": paced(FAR_ROWS),
    "far-gloo": Scenario(FAR, (GLOO,)),
    "tls": WithTls(Scenario(CLEAN, (EXACT, "int8"))),
    "tls-lossy": WithTls(Scenario(LOSSY, (EXACT, "int8"))),
    "idle": AfterIdle(CLEAN),
    "leo": Leo((EXACT, "balanced", GLOO)),
    "one-site": OneSite(),
    **{
        f"scale-{sites}x{ranks}": Scenario(
            scaling_link(sites), (EXACT,), size_bytes=16 * MIB, sites=sites, ranks_per_site=ranks
        )
        for sites in (2, 3, 4, 6, 8)
        for ranks in (1, 2)
    },
}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="valid operations of each row (default 5)")
    parser.add_argument("--fresh", action="store_true", help="measure again what the results have of this commit")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--check", action="store_true", help="fail where a target is missed")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.scenarios if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    path = arguments.out / "wan.md"
    done = {section.title: section for section in read_results(path)}
    for name in arguments.scenarios or SCENARIOS:
        conditions = Conditions.here(shlex.join(["python", *sys.argv]))
        if name in done and done[name].conditions.commit == conditions.commit and not arguments.fresh:
            continue
        rows = SCENARIOS[name].measure(Effort(repeats=arguments.repeats))
        done[name] = BenchSection(name, conditions, tuple(rows))
        for table in rich_tables(rows):
            Console().print(table)
        write_results([done[title] for title in SCENARIOS if title in done], path)
    print(f"written: {path}")
    rows = [row for section in done.values() for row in section.rows]
    missed = [row for row in rows if row.target is not None and verdict(row) != "met"]
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
