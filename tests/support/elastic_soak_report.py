"""What is judged of the elastic soak, and its report."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.entries import Kept, Round, Skip, Snapshot
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.lab.bench.bench_report import Conditions, load_at_end
from support import elastic_soak_goodput
from support.elastic_soak_goodput import Goodput, least, mean_step_s
from support.elastic_soak_rank import BATCH, CONTEXT
from support.elastic_soak_run import (
    EVERY,
    FAULT_EVERY_S,
    KINDS,
    LINK,
    PAUSE,
    SITES,
    SNAPSHOT_S,
    STEP_S,
    Fault,
    Run,
)

PARTS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the tokens: where losses are told."""
LONG_STEP = 1.1
"""In medians."""
BAD_WORDS = re.compile(
    r"Traceback|other bits|differs from|has stopped this site|gives up|is not the run's|another hash|chain is broken"
)


def judge_states(run: Run) -> list[str]:
    """One digest for a version of a fragment, at all sites and in all journals; and one journal."""
    problems: list[str] = []
    said: defaultdict[tuple[int, int], defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for site, log in run.logs.items():
        for line in log.having("states"):
            for fragment, (version, digest) in enumerate(line["states"]):
                said[fragment, version][digest].add(site)
    for one in run.journal:
        if isinstance(one.entry, Round) and one.entry.base is not None:
            said[one.entry.fragment, one.entry.version][one.entry.base].add("the journal")
    voided = {one.entry.fragment for one in run.journal if isinstance(one.entry, Skip)}
    for (fragment, version), digests in sorted(said.items()):
        if len(digests) > 1 and fragment not in voided:
            problems.append(f"fragment {fragment} at version {version} differs: {dict(digests)}")
    for site, other in run.watches.items():
        mine = [one.entry for one in other.seen]
        if mine != [one.entry for one in run.journal[: len(mine)]]:
            problems.append(f"the journal of {site} is not the others'")
    return problems


def judge_snapshots(run: Run) -> list[str]:
    """Every snapshot that was asked for is kept, or the log says which site lacks it and why; each that is there can be
    gone back to."""
    asked = [one.entry.index for one in run.journal if isinstance(one.entry, Snapshot)]
    kept = {one.entry.snapshot for one in run.journal if isinstance(one.entry, Kept)}
    log = (run.folder / "log.txt").read_text(encoding="utf-8", errors="replace")
    problems = [
        f"snapshot {index} is not kept, and nothing says so"
        for index in asked[:-1]  # of the last one the sites may have ended
        if index not in kept and not re.search(rf"snapshot {index} (is not kept|of the run: |cannot be kept)", log)
    ]
    for site in run.watches:
        snapshots = Snapshots(FragmentStore(run.folder / f"run-{site}"))
        for index in [one.index for one in snapshots.manifests() if one.index in kept]:
            into = run.folder / f"back-{site}-{index}"
            try:
                snapshots.restore(index, into, site, "127.0.0.1:1")
            except (ValueError, OSError) as error:
                problems.append(f"{site} cannot go back to snapshot {index}: {error}")
    return problems


def snapshots_told(run: Run) -> str:
    """How many there were."""
    asked = sum(isinstance(one.entry, Snapshot) for one in run.journal)
    kept = sum(isinstance(one.entry, Kept) for one in run.journal)
    return f"{kept} of {asked} snapshots are kept, one asked for every {SNAPSHOT_S:g} s"


def states_compared(run: Run) -> int:
    """How often a site said a state."""
    return sum(len(line["states"]) for log in run.logs.values() for line in log.having("states"))


def judge_log(run: Run) -> list[str]:
    """Lines that no fault excuses."""
    lines = (run.folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"log: {_with_error(lines[at:])}" for at, line in enumerate(lines) if BAD_WORDS.search(line)]


def _with_error(lines: Sequence[str]) -> str:
    """The first line; where it begins a traceback, its file and the error, too."""
    first, where = lines[0][:300], f"{lines[0].partition(']')[0]}] "
    if "Traceback" not in first:
        return first
    own = [line.removeprefix(where) for line in lines[1:200] if line.startswith(where)]
    frames = list(itertools.takewhile(lambda line: line.startswith(" "), own))
    return f"{first} … {' '.join([*frames[-2:], *own[len(frames) : len(frames) + 1]])[:600]}"


@dataclass(frozen=True)
class Steps:
    """Of sites that no fault hit."""

    took: list[float]
    hooks: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.took)

    @property
    def long_share(self) -> float:
        """Of the steps, those over LONG_STEP medians."""
        long = LONG_STEP * self.median
        return sum(one > long for one in self.took) / len(self.took)

    def row(self, name: str) -> str:
        """Of the table."""
        took, hooks = sorted(self.took), sorted(self.hooks)
        last = -1 - len(took) // 1000
        return (
            f"| {name} | {len(took)} | {self.median * 1e3:.1f} | {100 * self.long_share:.2f} % | "
            f"{took[last] * 1e3:.0f} | {took[-1] * 1e3:.0f} | {statistics.median(hooks) * 1e3:.1f} | "
            f"{hooks[last] * 1e3:.0f} |"
        )


def steps_of(run: Run) -> Steps:
    """Of the sites that train on: not those that a fault hit, until all count again."""
    took: list[float] = []
    hooks: list[float] = []
    for site, log in run.logs.items():
        hit = [(one.began, one.recovered) for one in run.faults if site in one.hit]
        for line in log.having("took"):
            at = line["at"]
            if run.began < at < run.ended and not any(begin - 1 < at < end + 1 for begin, end in hit):
                took.append(line["took"])
                hooks.append(line["hook"])
    return Steps(took, hooks)


def curve(run: Run) -> list[tuple[float, float]]:
    """(tokens that counted, held-out loss of the anchor) in order of the tokens."""
    counted: defaultdict[tuple[int, int], int] = defaultdict(int)
    fragments = 1
    for one in run.journal:
        if isinstance(one.entry, Round):
            counted[one.entry.fragment, one.entry.version] = sum(listed.weight for listed in one.entry.members)
            fragments = max(fragments, one.entry.fragment + 1)
    points: list[tuple[float, float]] = []
    for log in run.logs.values():
        for line in log.having("held_out"):
            steps = sum(
                weight for (fragment, version), weight in counted.items() if version < line["versions"][fragment]
            )
            points.append((steps / fragments * BATCH * CONTEXT, line["held_out"]))
    return sorted(points)


def loss_at(points: Sequence[tuple[float, float]], tokens: float) -> float:
    """The mean of the points near by: within 5 % of the tokens, and the nearest one."""
    nearest = min(abs(at - tokens) for at, _ in points)
    return statistics.mean(loss for at, loss in points if abs(at - tokens) <= max(nearest, 0.05 * tokens))


def longest_gap(run: Run, began: float, ended: float) -> float:
    """The longest time from one round to the next, of those that ended between two times."""
    times = [one.at for one in run.journal if isinstance(one.entry, Round)]
    return max((b - a for a, b in itertools.pairwise(times) if began < b <= ended), default=0.0)


def text_of(runs: list[Run], problems: list[str], seconds: float, conditions: Conditions, every_s: float) -> str:
    """The result, for people."""
    disturbed = runs[-1]
    rounds = sum(isinstance(one.entry, Round) for one in disturbed.journal)
    curves = {run.name: curve(run) for run in runs}
    tokens = min(points[-1][0] for points in curves.values())
    kinds: defaultdict[str, list[Fault]] = defaultdict(list)
    for fault in disturbed.faults:
        kinds[fault.kind].append(fault)
    lines = [
        "# Soak of an elastic run: sites die, leave and return over an emulated WAN, with TLS",
        "",
        *conditions.lines(),
        load_at_end(),
        f"- {len(SITES)} sites of one rank; links of {LINK.rate_bps / 1e6:g} Mbit/s, {LINK.delay_s * 2e3:g} ms round "
        f"trip, {LINK.loss * 100:g} % loss; a transformer of bytes, a step each {STEP_S * 1e3:g} ms, two fragments, a "
        f"round of each every {EVERY} steps",
        "",
        f"**Verdict: {'BAD' if problems else 'good'}.** {len(disturbed.faults)} faults and {rounds} rounds in "
        f"{(disturbed.ended - disturbed.began) / 60:.1f} minutes, after {len(runs) - 1} undisturbed runs of "
        f"{(runs[0].ended - runs[0].began) / 60:.1f} minutes ({seconds / 60:.0f} minutes in all). Sites said "
        f"{sum(map(states_compared, runs))} states of fragments: each is equal to what the other sites and the journal "
        "have of that version.",
        "",
        *(f"- {problem}" for problem in problems),
        *(f"- {run.name}: {snapshots_told(run)}" for run in runs),
        f"- void rounds: {sum(isinstance(one.entry, Skip) for run in runs for one in run.journal)}",
        *(
            f"- {run.name}: {run.report.late_packets} of {sum(link.packets for link in run.report.links)} emulated "
            f"packets came over 5 ms late (worst: {run.report.max_lateness_s * 1e3:.0f} ms)"
            for run in runs
            if run.report is not None
        ),
        "",
        *elastic_soak_goodput.told(disturbed, mean_step_s(runs[:-1]), every_s),
        "",
        "## Faults",
        "",
        "| fault | times | seen as away after, s | longest time without a round, s | all count again after, s: median "
        "| longest |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        some = kinds[kind]
        if not some:
            continue
        again = [one.recovered - one.over for one in some]
        away = [f"{one.away_s:.1f}" for one in some if one.away_s is not None]
        gaps = [longest_gap(disturbed, one.began, one.recovered) for one in some]
        lines.append(
            f"| {kind} | {len(some)} | {', '.join(away) or '–'} | {', '.join(f'{gap:.1f}' for gap in gaps)} | "
            f"{statistics.median(again):.1f} | {max(again):.1f} |"
        )
    calm = max(longest_gap(run, run.began, run.ended) for run in runs[:-1])
    lines += [
        "",
        "*All count again*: from the end of the fault (a killed site is started, a line is there again) until two "
        "rounds have listed all sites. Most of it is the start of processes: on this machine, beside other work. "
        f"*Without a round*: in the undisturbed runs {calm:.1f} s at the most.",
        "",
        "## Steps of the sites that no fault hits",
        "",
        f"| run | steps | median, ms | over {LONG_STEP} medians | longest but 0.1 %, ms | longest | "
        "optimizer's step, median | longest but 0.1 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(steps_of(run).row(run.name) for run in runs),
        "",
        f"In the undisturbed runs a process started each {FAULT_EVERY_S:g} s that imports what a rank imports, since "
        "processes that start hold up the others of this machine.",
        "",
        "## Loss",
        "",
        "Held-out loss of the anchor at equal tokens that counted, in M, and at the end. The verdict is about "
        f"{tokens / 1e6:.2f} M; no fault came from {PAUSE[0] * tokens / 1e6:.2f} to {PAUSE[1] * tokens / 1e6:.2f} M. "
        "(The frame of a site that was cut off for long counts as two cycles of tokens.)",
        "",
        f"| run | {' | '.join(f'{part * tokens / 1e6:.2f}' for part in PARTS)} | at its end | tokens, M |",
        f"|---|{'---:|' * (len(PARTS) + 2)}",
    ]
    for name, points in curves.items():
        end = points[-1][0]
        losses = " | ".join(f"{loss_at(points, part * tokens):.4f}" for part in PARTS)
        lines.append(f"| {name} | {losses} | {loss_at(points, end):.4f} | {end / 1e6:.2f} |")
    return "\n".join(lines) + "\n"


def judge(runs: list[Run], every_s: float) -> list[str]:
    """What is wrong with them."""
    problems = [
        f"{run.name}: {one}" for run in runs for one in (*judge_states(run), *judge_log(run), *judge_snapshots(run))
    ]
    disturbed, calm = steps_of(runs[-1]), [steps_of(run) for run in runs[:-1]]
    allowed = max(one.long_share for one in calm) * 1.5 + 0.005
    if disturbed.long_share > allowed:
        problems.append(
            f"{100 * disturbed.long_share:.1f} % of the steps took over {LONG_STEP} medians; without faults "
            f"{100 * max(one.long_share for one in calm):.1f} %"
        )
    if disturbed.took and max(disturbed.took) > max(max(one.took) for one in calm) + 1.0:
        problems.append(f"a step of a site that no fault hit took {max(disturbed.took):.1f} s")
    goodput = Goodput.of(runs[-1], mean_step_s(runs[:-1])).of_time_up
    if goodput < least(every_s):
        problems.append(f"goodput {100 * goodput:.1f} % of the time in which the machines were there")
    curves = [curve(run) for run in runs]
    tokens = min(points[-1][0] for points in curves)
    *seeds, found = (loss_at(points, tokens) for points in curves)
    scatter = max(seeds) - min(seeds)
    if not found <= max(seeds) + scatter:
        problems.append(f"held-out loss {found:.4f}; undisturbed seeds {', '.join(f'{one:.4f}' for one in seeds)}")
    for run in runs:
        state = RunState.of(one.entry for one in run.journal)
        if not state.ended or any(site.standing is not Standing.LEFT for site in state.sites.values()):
            problems.append(f"{run.name}: the run did not end in good order")
    return problems
