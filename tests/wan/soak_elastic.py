"""An elastic run of three sites over an emulated WAN with TLS, and a fault each 20 s, for as long as one likes.

    soak_elastic.py [--minutes 60] [--seed N] [--out benchmarks/results]

First undisturbed runs of some seeds, then one with faults. Every state that a site ever had is compared with those that
the others and the journal have; steps and loss with those of the undisturbed runs. Writes soak-elastic.md; the exit
status is 0 if the verdict is good.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from geocomm.bench.bench_report import Conditions
from geocomm.demo.elastic_run import JournalWatch, Seen
from geocomm.emulator.emulated_keys import site_environment, site_keys
from geocomm.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.emulator.emulated_wan import WanReport, WanRun
from geocomm.journal.entries import Away, Round, Skip
from geocomm.journal.run_state import RunState, Standing
from support.elastic_soak_rank import BATCH, CONTEXT
from support.fault_run import RankLog
from support.wan_support import IMPORTS

REPOSITORY = Path(__file__).resolve().parents[2]
LINK = EmulatedLink(rate_bps=200e6, delay_s=0.15, loss=0.001)
SITES = ("site0", "site1", "site2")
LEADER, FOLLOWERS = SITES[0], SITES[1:]
SEEDS = (1, 2, 3)
UNDISTURBED_SHARE = 0.1
"""Of the time, that each undisturbed run takes."""
STEP_S, EVERY = 0.1, 20
FAULT_EVERY_S = 20.0
RECOVERY_LIMIT_S = 240.0
"""After a fault, until a round lists all sites again: processes start anew on a machine that may be busy."""
PARTS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Of the tokens: where losses are told."""
PAUSE = (0.85, 1.06)
"""Of the tokens of the undisturbed runs: from where to where no fault comes, so that what stays of faults is compared,
and not the noise of the rounds that only some sites are in.
"""
LONG_STEP = 1.1
"""In medians."""
BAD_WORDS = re.compile(
    r"Traceback|other bits|differs from|has stopped this site|gives up|is not the run's|another hash|chain is broken"
)

# Its $0 is Python.
START = (
    'while ! [ -e "$FOLDER/stop" ]; do if [ -e "$FOLDER/down-$GEOCOMM_SITE" ]; then sleep 0.1; continue; fi; '
    '"$0" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" --run-dir "$FOLDER/run-$GEOCOMM_SITE" '
    f'--wait-for {",".join(SITES)} -- --nproc-per-node 1 -m support.elastic_soak_rank "$FOLDER" "$SEED" {STEP_S:g} '
    f"{EVERY} || sleep 0.5; done"
)


class Problem(Exception):
    """What the soak cannot go on after."""


@dataclass
class Fault:
    """One that was applied."""

    kind: str
    hit: tuple[str, ...]
    """Sites whose own steps it may hold up."""
    began: float
    over: float = math.nan
    away_s: float | None = None
    """Until another site had the entry that the site is away."""
    recovered: float = math.nan
    """When a round listed all sites again."""


@dataclass
class Run:
    """One run of the three sites."""

    name: str
    folder: Path
    wan: WanRun
    watches: dict[str, JournalWatch]
    logs: dict[str, RankLog]
    faults: list[Fault] = field(default_factory=list[Fault])
    began: float = 0.0
    ended: float = 0.0
    report: WanReport | None = None

    def look(self) -> None:
        """Read what is new."""
        for watch in self.watches.values():
            watch.look()

    @property
    def journal(self) -> list[Seen]:
        """The longest."""
        return max((watch.seen for watch in self.watches.values()), key=len)

    def wait(self, done: Callable[[], bool], what: str, limit_s: float) -> None:
        """Problem: it is not there in time."""
        until = time.monotonic() + limit_s
        while not done():
            if self.wan.process.poll() is not None:
                raise Problem(f"{self.name}: the run ended before {what}")
            if time.monotonic() > until:
                raise Problem(f"{self.name}: not within {limit_s:g} s: {what}")
            time.sleep(0.05)
            self.look()

    def wait_full_rounds(self, count: int, limit_s: float, after: float) -> float:
        """Until so many rounds since `after` list all sites; when the last of them was seen."""
        found: list[float] = []

        def there() -> bool:
            found[:] = [
                one.at
                for one in self.journal
                if one.at > after and isinstance(one.entry, Round) and len(one.entry.members) == len(SITES)
            ]
            return len(found) >= count

        self.wait(there, f"{count} rounds of all sites", limit_s)
        return found[count - 1]

    def kill(self, site: str, part: str) -> None:
        """Kill processes of a site whose command line has this and is no launcher's."""
        for process in self.wan.processes(site):
            with contextlib.suppress(OSError):
                words = (Path("/proc") / str(process) / "cmdline").read_bytes().split(b"\0")
                launcher = {b"geocomm.elastic.torchrun_of_site", b"--elastic"} & set(words)
                if part.encode() in words and not launcher:
                    os.kill(process, signal.SIGKILL)

    def leave(self, site: str) -> None:
        """SIGTERM to `geocomm run`, as a scheduler sends it."""
        for process in self.wan.processes(site):
            with contextlib.suppress(OSError):
                if b"--elastic" in (Path("/proc") / str(process) / "cmdline").read_bytes().split(b"\0"):
                    os.kill(process, signal.SIGTERM)


@contextlib.contextmanager
def three_sites(name: str, seed: int, folder: Path, keys: Path) -> Generator[Run]:
    """The sites, training; Problem where they do not."""
    folder.mkdir()
    environment = site_environment(os.environ, keys)
    environment |= {"FOLDER": str(folder), "SEED": str(seed), "OMP_NUM_THREADS": "1", "PYTHONPATH": IMPORTS}
    with (
        (folder / "log.txt").open("w", encoding="utf-8") as log,
        WanRun(
            EmulatedWan.uniform(SITES, LINK),
            ["/bin/sh", "-c", START, sys.executable],
            environment=environment,
            keys=keys,
            keep_going=True,
            stdout=log,
            stderr=log,
        ) as wan,
    ):
        watches = {site: JournalWatch(folder / f"run-{site}") for site in SITES}
        run = Run(name, folder, wan, watches, {site: RankLog(folder / f"{site}.jsonl") for site in SITES})
        run.wait_full_rounds(3, 180, 0)
        run.began = time.monotonic()
        yield run
        run.ended = time.monotonic()
        (folder / "stop").touch()
        run.wan.wait(180)
        run.report = run.wan.report()
        run.look()
        for one in run.logs.values():
            one.refresh()


# ---- faults


def apply(run: Run, kind: str, chance: random.Random) -> Fault:
    """One fault from beginning to end."""
    site, follower = chance.choice(SITES), chance.choice(FOLLOWERS)
    fault = Fault(kind, (), time.monotonic())
    length = chance.uniform(4, 15)

    @contextlib.contextmanager
    def down(sites: Sequence[str]) -> Generator[None]:
        for one in sites:
            (run.folder / f"down-{one}").touch()
        try:
            yield
        finally:
            for one in sites:
                (run.folder / f"down-{one}").unlink()

    match kind:
        case "rank killed":
            fault.hit = (site,)
            run.kill(site, "support.elastic_soak_rank")
        case "site killed":
            fault.hit = (follower,)
            with down(fault.hit):
                run.wan.signal_site(follower, signal.SIGKILL)
                watch_away(run, fault, follower, length)
        case "leader's site killed":
            fault.hit = (LEADER,)
            with down(fault.hit):
                run.wan.signal_site(LEADER, signal.SIGKILL)
                watch_away(run, fault, LEADER, length)
        case "site silent":
            fault.hit = (follower,)
            run.wan.signal_site(follower, signal.SIGSTOP)
            try:
                watch_away(run, fault, follower, length + 5)
            finally:
                run.wan.signal_site(follower, signal.SIGCONT)
        case "line cut between two":
            with cut(run, *FOLLOWERS):
                watch(run, length)
        case "cut from the leader":
            with cut(run, LEADER, follower):
                watch(run, length)
        case "agent killed":
            run.kill(follower, "geocomm.elastic.agent_process")
        case "leader's agent killed":
            run.kill(LEADER, "geocomm.elastic.agent_process")
        case "leave and return":
            fault.hit = (follower,)
            with down(fault.hit):
                run.leave(follower)
                watch(run, length)
        case "all killed":
            fault.hit = SITES
            with down(SITES):
                for one in SITES:
                    run.wan.signal_site(one, signal.SIGKILL)
                time.sleep(2)
        case _:
            raise ValueError(kind)
    fault.over = time.monotonic()
    return fault


KINDS = (
    "rank killed",
    "site killed",
    "leader's site killed",
    "site silent",
    "line cut between two",
    "cut from the leader",
    "agent killed",
    "leader's agent killed",
    "leave and return",
    "all killed",
)


@contextlib.contextmanager
def cut(run: Run, src: str, dst: str) -> Generator[None]:
    """Nothing passes between two sites."""
    run.wan.control.set_link(src, dst, up=False)
    try:
        yield
    finally:
        run.wan.control.set_link(src, dst, up=True)


def watch(run: Run, seconds: float) -> None:
    """Let time pass."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.look()
        time.sleep(0.05)


def watch_away(run: Run, fault: Fault, site: str, seconds: float) -> None:
    """Let time pass, and see when the others have it that the site is away."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.look()
        for one in run.journal:
            if fault.away_s is None and one.at > fault.began and isinstance(one.entry, Away) and one.entry.site == site:
                fault.away_s = one.at - fault.began
        time.sleep(0.05)


def disturb(run: Run, until: float, chance: random.Random, pause: tuple[float, float]) -> None:
    """A fault each FAULT_EVERY_S, or once all sites count again after the last one, if that is later; but none while
    the tokens that counted are in the pause."""
    kinds: list[str] = []
    while time.monotonic() < until:
        if pause[0] <= tokens_of(run) < pause[1]:
            print(f"{time.monotonic() - run.began:7.1f} s  no faults for a while", flush=True)
            run.wait(lambda: tokens_of(run) >= pause[1], "the tokens to compare at", 600)
        if not kinds:  # all kinds, before one comes again
            kinds = chance.sample(KINDS, len(KINDS))
        fault = apply(run, kinds.pop(), chance)
        run.faults.append(fault)
        fault.recovered = run.wait_full_rounds(2, RECOVERY_LIMIT_S, fault.over)
        told = f"{fault.kind}{f' ({chr(44).join(fault.hit)})' if fault.hit else ''}"
        took = f"{fault.over - fault.began:.1f} s, all count again {fault.recovered - fault.over:.1f} s later"
        print(f"{fault.began - run.began:7.1f} s  {told}: {took}", flush=True)
        watch(run, fault.began + FAULT_EVERY_S - time.monotonic())


def undisturbed(run: Run, until: float) -> None:
    """Only a process each FAULT_EVERY_S that imports what a rank does: what starts cost on this machine."""
    while time.monotonic() < until:
        started = subprocess.Popen([sys.executable, "-c", "import geocomm, torch; import torch.distributed.run"])
        watch(run, FAULT_EVERY_S)
        started.wait()


# ---- what is judged


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


def states_compared(run: Run) -> int:
    """How often a site said a state."""
    return sum(len(line["states"]) for log in run.logs.values() for line in log.having("states"))


def judge_log(run: Run) -> list[str]:
    """Lines that no fault excuses."""
    lines = (run.folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    return [f"log: {line[:300]}" for line in lines if BAD_WORDS.search(line)]


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


def tokens_of(run: Run) -> float:
    """That counted so far."""
    rounds = [one.entry for one in run.journal if isinstance(one.entry, Round)]
    fragments = 1 + max((one.fragment for one in rounds), default=0)
    return sum(listed.weight for one in rounds for listed in one.members) / fragments * BATCH * CONTEXT


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


def text_of(runs: list[Run], problems: list[str], seconds: float, conditions: Conditions) -> str:
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
        f"- load averages at the end: {' '.join(f'{load:.1f}' for load in os.getloadavg())}",
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
        f"- void rounds: {sum(isinstance(one.entry, Skip) for run in runs for one in run.journal)}",
        *(
            f"- {run.name}: {run.report.late_packets} of {sum(link.packets for link in run.report.links)} emulated "
            f"packets came over 5 ms late (worst: {run.report.max_lateness_s * 1e3:.0f} ms)"
            for run in runs
            if run.report is not None
        ),
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


def judge(runs: list[Run]) -> list[str]:
    """What is wrong with them."""
    problems = [f"{run.name}: {one}" for run in runs for one in (*judge_states(run), *judge_log(run))]
    disturbed, calm = steps_of(runs[-1]), [steps_of(run) for run in runs[:-1]]
    allowed = max(one.long_share for one in calm) * 1.5 + 0.005
    if disturbed.long_share > allowed:
        problems.append(
            f"{100 * disturbed.long_share:.1f} % of the steps took over {LONG_STEP} medians; without faults "
            f"{100 * max(one.long_share for one in calm):.1f} %"
        )
    if disturbed.took and max(disturbed.took) > max(max(one.took) for one in calm) + 1.0:
        problems.append(f"a step of a site that no fault hit took {max(disturbed.took):.1f} s")
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


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--keep", type=Path, help="A folder for all files of the runs; must not exist.")
    options = parser.parse_args()
    arguments = [f"--minutes {options.minutes:g}", f"--seed {options.seed}"]
    print(f"soak: {' '.join(arguments)}", flush=True)
    conditions = Conditions.here(f"python tests/wan/soak_elastic.py {' '.join(arguments)}")
    chance, problems, runs = random.Random(options.seed), list[str](), list[Run]()
    calm_s = 60 * options.minutes * UNDISTURBED_SHARE
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        if options.keep is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="geocomm-soak-")))
        else:
            folder = options.keep.absolute()
            folder.mkdir(parents=True)
        keys = held.enter_context(site_keys(SITES, None, secure=True))
        if keys is None:
            raise AssertionError("no keys were made")
        try:
            for seed in SEEDS:
                with three_sites(f"undisturbed, seed {seed}", seed, folder / f"calm-{seed}", keys) as run:
                    runs.append(run)
                    undisturbed(run, run.began + calm_s)
                print(f"{time.monotonic() - began:7.1f} s  {run.name} is over", flush=True)
            with three_sites("with faults, seed 1", SEEDS[0], folder / "faults", keys) as run:
                runs.append(run)
                tokens = min(map(tokens_of, runs[:-1]))
                until = max(began + 60 * options.minutes, run.began + FAULT_EVERY_S)
                disturb(run, until, chance, (PAUSE[0] * tokens, PAUSE[1] * tokens))
        except (Problem, subprocess.TimeoutExpired) as error:
            problems.append(str(error))
            runs[-1].ended = runs[-1].ended or time.monotonic()
            print("\n".join((runs[-1].folder / "log.txt").read_text(errors="replace").splitlines()[-60:]))
        for run in runs:
            for log in run.logs.values():
                log.refresh()
        problems += judge(runs)
        text = text_of(runs, problems, time.monotonic() - began, conditions)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "soak-elastic.md"
    path.write_text(text, encoding="utf-8")
    print(f"{text}\nsoak: wrote {path}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
