"""What joining an elastic run takes, how soon its leader is back, and what its step hook costs beside a fixed group's.

    bench_elastic.py [--out benchmarks/results] [--only {join,crowd,leader,back,hook}]

Over the emulated WAN with TLS. What is measured is verified first: equal states at all sites, a frame of every site
counted. Writes elastic.md, of which --only leaves the other sections as they are. What faults cost is in
soak-elastic.md.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.elastic.journal.entries import Away, Entry, Join, Ready, Round
from geocomm.lab.bench.bench_report import Conditions, load_at_end
from geocomm.lab.demo.demo_run import read_entries
from geocomm.lab.demo.elastic_run import JournalWatch, members
from geocomm.lab.emulator.emulated_keys import hub_command, site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun

REPOSITORY = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("elastic_worker.py")
LINK = EmulatedLink(rate_bps=200e6, delay_s=0.15, loss=0.001)
FAST = EmulatedLink(rate_bps=1e9, delay_s=0.005)
ALLOWANCE = 0.2
"""Of a source's line, for states."""
EVERY, STEP_S = 20, 0.1
JOIN_WIDTH, HOOK_WIDTH = 2048, 512
HOOK_STEPS = 300
REPEATS = 2
LEADER_KILLS = 10
RETURNS = 5
MOMENTS_KEPT_S = 65
"""A site keeps the moments of its optimizer after a minute: without them it offers nothing in its first cycle."""
ENTRIES_BETWEEN_KILLS = 6
CROWD, FIRST = 9, 3
CROWD_LINK = EmulatedLink(rate_bps=1e9 / ((CROWD + FIRST) * (CROWD + FIRST - 1)), delay_s=0.05)
"""So slow that the emulator, which carries all pairs on one machine, is not what is measured."""
CROWD_WIDTH, CROWD_STEP_S = 512, 0.5
CROWD_LIMIT_S = 900.0


START = (
    'while :; do while [ -e "$FOLDER/down-$GEOCOMM_SITE" ]; do sleep 0.1; done; '
    '"$0" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" --run-dir "$FOLDER/run-$GEOCOMM_SITE" '
    '--wait-for site0,site1 -- --nproc-per-node 1 "$@" && exit 0; sleep 0.1; done'
)


class Failed(Exception):
    """What was measured is void."""


@dataclass(frozen=True)
class Run:
    """Sites that train."""

    folder: Path
    wan: WanRun
    watch: JournalWatch

    def steps(self, site: str) -> int:
        """How many a site has made."""
        return len(steps_of(self.folder, site))

    def wait(self, done: Callable[[], bool], what: str, limit_s: float = 180) -> None:
        """Failed: it is not there in time."""
        until = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > until or self.wan.process.poll() is not None:
                log = (self.folder / "log.txt").read_text(errors="replace").splitlines()
                raise Failed("\n".join([*log[-30:], f"there was not: {what}"]))
            time.sleep(0.02)
            self.watch.look()

    def seen(self, fits: Callable[[Entry], bool], what: str, limit_s: float = 180) -> float:
        """When the leader had such an entry; waits for it."""
        self.wait(lambda: any(fits(one.entry) for one in self.watch.seen), what, limit_s)
        return next(one.at for one in self.watch.seen if fits(one.entry))

    def kill_agent(self, site: str) -> None:
        """SIGKILL to the agent alone."""
        self._kill(site, lambda words: "geocomm.elastic.agent_process" in words)

    def kill_rank(self, site: str) -> None:
        """SIGKILL to the rank alone."""
        self._kill(site, lambda words: str(WORKER) in words[:4])

    def _kill(self, site: str, is_meant: Callable[[list[str]], bool]) -> None:
        for process in self.wan.processes(site):
            with contextlib.suppress(OSError):
                if is_meant((Path("/proc") / str(process) / "cmdline").read_text().split("\0")):
                    os.kill(process, signal.SIGKILL)

    def bytes_between(self) -> dict[tuple[str, str], int]:
        """From a site to another one so far, headers included."""
        return {(link.src, link.dst): link.bytes for link in self.wan.control.stats().links}

    def bytes_into(self, site: str) -> int:
        """So far, headers included."""
        return sum(size for (_, target), size in self.bytes_between().items() if target == site)


@contextlib.contextmanager
def training(
    folder: Path,
    sites: int,
    link: EmulatedLink,
    width: int,
    command: Sequence[str],
    down: Sequence[str] = (),
    step_s: float = STEP_S,
    variables: Mapping[str, str] | None = None,
) -> Generator[Run]:
    """Sites that train until the end of the block; their states are compared then."""
    folder.mkdir()
    for site in down:
        (folder / f"down-{site}").touch()
    with site_keys([f"site{index}" for index in range(sites)], None, secure=True) as keys:
        environment = site_environment(os.environ, keys)
        environment |= {"FOLDER": str(folder), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        environment |= variables or {}
        program = [*command, str(WORKER), str(folder), str(width), str(step_s), str(EVERY)]
        with (
            (folder / "log.txt").open("w") as log,
            WanRun(
                EmulatedWan.uniform(sites, link),
                program,
                environment=environment,
                keys=keys,
                keep_going=True,
                stdout=log,
                stderr=log,
            ) as wan,
        ):
            run = Run(folder, wan, JournalWatch(folder / "run-site0"))
            yield run
            (folder / "stop").touch()
            run.wan.wait(120)
    verify(folder, sites)


def steps_of(folder: Path, site: str) -> list[dict[str, Any]]:
    """What a site has said of each of its steps."""
    return [line for line in read_entries(folder / f"{site}.jsonl") if "took" in line]


def verify(folder: Path, sites: int) -> None:
    """Failed where two sites had different states of one version, or a site had none."""
    said: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
    for site in range(sites):
        lines = [line for line in read_entries(folder / f"site{site}.jsonl") if "states" in line]
        if not lines:
            raise Failed(f"site{site} took no part in a round")
        for line in lines:
            for fragment, (version, digest) in enumerate(line["states"]):
                said[fragment, version].add(digest)
    if wrong := [key for key, digests in said.items() if len(digests) > 1]:
        raise Failed(f"different states of (fragment, version) {wrong}")


def join(folder: Path) -> list[str]:
    """A third site joins two that train."""
    with training(folder, 3, LINK, JOIN_WIDTH, ["/bin/sh", "-c", START, sys.executable], ["site2"]) as run:
        run.wait(lambda: run.steps("site0") >= 100 and run.steps("site1") >= 100, "100 steps")
        before = {site: run.bytes_into(site) for site in ("site1", "site2")}
        quiet = [line["took"] for site in (0, 1) for line in steps_of(folder, f"site{site}")][40:]
        started = time.monotonic()
        (folder / "down-site2").unlink()
        joined = run.seen(lambda entry: isinstance(entry, Join) and entry.site == "site2", "site2 joins")
        ready = run.seen(lambda entry: isinstance(entry, Ready) and entry.site == "site2", "site2 is ready")
        took = {site: run.bytes_into(site) - at for site, at in before.items()}
        counted = run.seen(lambda entry: isinstance(entry, Round) and "site2" in members(entry), "site2 counts")
        meanwhile = [
            line["took"] for site in (0, 1) for line in steps_of(folder, f"site{site}") if started < line["at"] < ready
        ]
    state = 8 * 2 * JOIN_WIDTH**2
    bound = 1.3 * 8 * state / (2 * ALLOWANCE * LINK.rate_bps) + 2 * EVERY * STEP_S
    median = statistics.median(quiet)
    multiples = took["site2"] / (state + took["site1"])
    return [
        f"Two sites train a model of {2 * JOIN_WIDTH**2 / 1e6:.1f} M parameters (steps of {STEP_S * 1e3:g} ms, a round "
        f"of each fragment every {EVERY}). A third one starts with an empty folder: {LINK.rate_bps / 1e6:g} Mbit/s, "
        f"{LINK.delay_s * 2e3:g} ms, {LINK.loss * 100:g} % loss, TLS. States may take {100 * ALLOWANCE:g} % of each "
        "source's line.",
        "",
        "| | |",
        "|---|---:|",
        f"| state, anchor and momentum | {state / 1e6:.1f} MB |",
        f"| bytes into the joiner until it is ready | {took['site2'] / 1e6:.1f} MB |",
        f"| bytes into another site meanwhile | {took['site1'] / 1e6:.1f} MB |",
        f"| joiner's bytes, in multiples of the state and what another site gets | {multiples:.2f} (target 1.1) |",
        f"| from the start of the command to the entry `join` | {joined - started:.1f} s |",
        f"| from `join` to `ready` | {ready - joined:.1f} s (target {bound:.1f} s) |",
        f"| from `ready` to the first round that counts it | {counted - ready:.1f} s |",
        f"| the others' steps meanwhile: median | {statistics.median(meanwhile) / median:.2f} x "
        "(target 1.05) of the median before |",
        f"| 99 of 100 of them | {sorted(meanwhile)[-1 - len(meanwhile) // 100] / median:.2f} x; before "
        f"{sorted(quiet)[-1 - len(quiet) // 100] / median:.2f} x |",
    ]


def crowd(folder: Path) -> list[str]:
    """Many sites join a few that train, all at once."""
    names = [f"site{index}" for index in range(FIRST + CROWD)]
    first, newcomers = names[:FIRST], names[FIRST:]
    command = ["/bin/sh", "-c", START, sys.executable]
    with training(folder, len(names), CROWD_LINK, CROWD_WIDTH, command, newcomers, CROWD_STEP_S) as run:
        run.wait(lambda: all(run.steps(site) >= 2 * EVERY for site in first), "steps", CROWD_LIMIT_S)
        before, started = run.bytes_between(), time.monotonic()
        for site in newcomers:
            (folder / f"down-{site}").unlink()

        joined, ready = (
            {
                site: run.seen(
                    lambda entry, kind=kind, site=site: isinstance(entry, kind) and entry.site == site,
                    f"{site}: {kind.__name__}",
                    CROWD_LIMIT_S,
                )
                for site in newcomers
            }
            for kind in (Join, Ready)
        )
        after = run.bytes_between()
        for site in newcomers:  # else there is nothing to verify
            run.wait(
                lambda site=site: any("states" in line for line in steps_of(folder, site)),
                f"a round in which {site} takes part",
                CROWD_LIMIT_S,
            )
    state = 8 * 2 * CROWD_WIDTH**2
    given = {
        donor: [(after[donor, site] - before[donor, site]) / state for site in newcomers if site != donor]
        for donor in names
    }
    since = sorted(at - started for at in ready.values())
    took = sorted(ready[site] - joined[site] for site in newcomers)
    return [
        f"{FIRST} sites train a model of {2 * CROWD_WIDTH**2 / 1e6:.1f} M parameters (steps of "
        f"{CROWD_STEP_S * 1e3:g} ms, a round of each fragment every {EVERY}); {CROWD} more start at once, with empty "
        f"folders: {CROWD_LINK.rate_bps / 1e6:.1f} Mbit/s and {CROWD_LINK.delay_s * 2e3:g} ms between each two, TLS. "
        f"A state has {state / 1e6:.1f} MB. A site gives states to two others at a time. What it sent has frames and "
        "the journal in it.",
        "",
        "| | |",
        "|---|---:|",
        f"| from the start of the commands to the first, median and last `ready` | {since[0]:.1f}, "
        f"{statistics.median(since):.1f}, {since[-1]:.1f} s |",
        f"| from `join` to `ready`: least, median, most | {took[0]:.1f}, {statistics.median(took):.1f}, "
        f"{took[-1]:.1f} s |",
        f"| donors that gave a state | {sum(any(one > 0.5 for one in some) for some in given.values())} |",
        "",
        "| donor | newcomers that got over half a state of it | sent to newcomers, in states |",
        "|---|---:|---:|",
        *(
            f"| {donor}{', new' if donor in newcomers else ''} | {sum(one > 0.5 for one in some)} | {sum(some):.1f} |"
            for donor, some in given.items()
        ),
    ]


def leader(folder: Path) -> list[str]:
    """The agent of the site that leads is killed, again and again."""
    with training(folder, 3, LINK, HOOK_WIDTH, ["/bin/sh", "-c", START, sys.executable]) as run:

        def rounds() -> list[float]:
            return [one.at for one in run.watch.seen if isinstance(one.entry, Round)]

        run.wait(lambda: len(rounds()) >= 2 * ENTRIES_BETWEEN_KILLS, "rounds")
        quiet = [after - before for before, after in itertools.pairwise(rounds())]
        took: list[float] = []
        for _ in range(LEADER_KILLS):
            run.watch.look()
            had = len(run.watch.seen)
            killed = time.monotonic()
            run.kill_agent("site0")
            run.wait(lambda had=had: len(run.watch.seen) > had, "an entry")
            took.append(run.watch.seen[had].at - killed)
            counted = len(rounds())
            run.wait(lambda counted=counted: len(rounds()) >= counted + ENTRIES_BETWEEN_KILLS, "rounds go on")
        away = sum(isinstance(one.entry, Away) for one in run.watch.seen)
    return [
        f"Three sites train a model of {2 * HOOK_WIDTH**2 / 1e6:.1f} M parameters (steps of {STEP_S * 1e3:g} ms, a "
        f"round of each fragment every {EVERY}); {LINK.rate_bps / 1e6:g} Mbit/s, {LINK.delay_s * 2e3:g} ms, "
        f"{LINK.loss * 100:g} % loss, TLS. SIGKILL to the agent of the site that leads, {LEADER_KILLS} times.",
        "",
        "| | |",
        "|---|---:|",
        f"| to the next entry: median | {statistics.median(took):.1f} s (target 3 s) |",
        f"| longest | {max(took):.1f} s |",
        f"| between two rounds before: median | {statistics.median(quiet):.1f} s |",
        f"| sites that were away | {away} |",
    ]


@dataclass(frozen=True)
class Return:
    """A site that came back: seconds from when it was started again, or its rank was killed."""

    program: float
    """Until its program has imported all."""
    ready: float
    step: float
    """To its first optimizer step."""
    counted: float
    """To the first round that lists it."""


def come_back(run: Run, site: str, begun: float) -> Return:
    """Wait until the site counts again."""

    def seen(fits: Callable[[Entry], bool], what: str, after: float) -> float:
        run.wait(lambda: any(one.at > after and fits(one.entry) for one in run.watch.seen), what)
        return next(one.at for one in run.watch.seen if one.at > after and fits(one.entry))

    ready = seen(lambda entry: isinstance(entry, Ready) and entry.site == site, f"{site} is ready", begun)
    counted = seen(lambda entry: isinstance(entry, Round) and site in members(entry), f"{site} counts", ready)
    lines = read_entries(run.folder / f"{site}.jsonl")
    program = next(line["begins"] for line in lines if line.get("begins", 0) > begun)
    step = next(line["at"] for line in lines if line.get("at", 0) > program)
    return Return(program - begun, ready - begun, step - begun, counted - begun)


def back(folder: Path) -> list[str]:
    """A site is killed and started again, and a rank is killed, in turns."""
    found: defaultdict[str, list[Return]] = defaultdict(list)
    with training(folder, 3, LINK, HOOK_WIDTH, ["/bin/sh", "-c", START, sys.executable]) as run:
        run.wait(lambda: run.steps("site2") >= MOMENTS_KEPT_S / STEP_S, "steps, and moments that are kept")
        for _ in range(RETURNS):
            run.watch.look()
            down = folder / "down-site2"
            down.touch()
            run.wan.signal_site("site2", signal.SIGKILL)
            killed = len(run.watch.seen)
            run.wait(lambda killed=killed: any(isinstance(one.entry, Away) for one in run.watch.seen[killed:]), "away")
            down.unlink()
            found["site"].append(come_back(run, "site2", time.monotonic()))
            run.watch.look()
            begun = time.monotonic()
            run.kill_rank("site1")
            found["rank"].append(come_back(run, "site1", begun))

    def row(name: str, of: Callable[[Return], float], target: str = "") -> str:
        told = [[of(one) for one in some] for some in found.values()]
        cells = (f"{statistics.median(some):.1f}{target} | {max(some):.1f}" for some in told)
        return f"| {name} | {' | '.join(cells)} |"

    return [
        f"Three sites train a model of {2 * HOOK_WIDTH**2 / 1e6:.1f} M parameters (steps of {STEP_S * 1e3:g} ms, a "
        f"round of each fragment every {EVERY}); {LINK.rate_bps / 1e6:g} Mbit/s, {LINK.delay_s * 2e3:g} ms, "
        f"{LINK.loss * 100:g} % loss, TLS. In turns, {RETURNS} times: SIGKILL to all processes of a site, which is "
        "started again once it is away; SIGKILL to the rank of another one. Seconds from the start of the command, or "
        "from the kill of the rank.",
        "",
        "| | site killed: median | longest | rank killed: median | longest |",
        "|---|---:|---:|---:|---:|",
        row("until the program has imported all", lambda one: one.program),
        row("to `ready`", lambda one: one.ready),
        row("to its first step", lambda one: one.step),
        row("to the first round that counts it", lambda one: one.counted, " (target 8)"),
    ]


def hook(folder: Path, elastic: bool) -> list[float]:
    """How long the optimizer's steps took at both sites, geocomm's part included."""
    command = ["/bin/sh", "-c", START, sys.executable] if elastic else hub_command([])
    with training(folder, 2, FAST, HOOK_WIDTH, command) as run:
        run.wait(lambda: all(run.steps(site) >= HOOK_STEPS for site in ("site0", "site1")), f"{HOOK_STEPS} steps")
    return [line["hook"] for site in (0, 1) for line in steps_of(folder, f"site{site}")[20:HOOK_STEPS]]


def hooks(folder: Path) -> list[str]:
    """Elastic and fixed, in turns."""
    folder.mkdir()
    found: defaultdict[str, list[float]] = defaultdict(list)
    for repeat in range(REPEATS):
        for name in ("fixed group", "elastic run"):
            found[name] += hook(folder / f"hook-{repeat}-{name[:5]}", name == "elastic run")
    lines = [
        f"| {name} | {len(some)} | {statistics.median(some) * 1e3:.2f} | {statistics.mean(some) * 1e3:.2f} | "
        f"{sorted(some)[-1 - len(some) // 20] * 1e3:.2f} |"
        for name, some in found.items()
    ]
    more = {
        name: (f(found["elastic run"]) - f(found["fixed group"])) * 1e3
        for name, f in (("median", statistics.median), ("mean", statistics.mean))
    }
    return [
        f"`optimizer.step()` of two sites, {2 * HOOK_WIDTH**2 / 1e6:.1f} M parameters, SGD, local steps with the "
        f"defaults and a round every {EVERY} steps; in turns, {REPEATS} runs each. Times in ms.",
        "",
        "| | steps | median | mean | 95 of 100 below |",
        "|---|---:|---:|---:|---:|",
        *lines,
        f"| elastic run, more | | {more['median']:+.2f} (target 1) | {more['mean']:+.2f} | |",
    ]


PARTS: dict[str, tuple[str, Callable[[Path], list[str]]]] = {
    "join": ("A third site joins", join),
    "crowd": ("Nine sites join three at once", crowd),
    "leader": ("The leader's agent is killed", leader),
    "back": ("A site is killed and comes back", back),
    "hook": ("Step hook", hooks),
}
_HEAD = """# Joining an elastic run, losing its leader's agent, coming back, and its step hook

- Verified before anything was computed: all sites had equal states of equal versions, bit for bit.
- What faults cost is in [the soak](soak-elastic.md).
"""


def measured(part: str) -> str:
    """A section of the results."""
    title, measure = PARTS[part]
    conditions = Conditions.here(f"python benchmarks/bench_elastic.py --only {part}")
    with tempfile.TemporaryDirectory(prefix="geocomm-elastic-") as made:
        lines = measure(Path(made) / part)
    return "\n".join([title, "", *conditions.lines(), load_at_end(), "", *lines]) + "\n"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    path: Path = options.out / "elastic.md"
    there = path.read_text(encoding="utf-8").split("\n## ")[1:] if options.only and path.exists() else []
    sections = {section.partition("\n")[0]: section.rstrip() + "\n" for section in there}
    try:
        for part in [options.only] if options.only else PARTS:
            sections[PARTS[part][0]] = measured(part)
    except Failed as error:
        print(f"bench_elastic: {error}", file=sys.stderr)
        return 1
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text("\n## ".join([_HEAD, *(sections[title] for title, _ in PARTS.values() if title in sections)]))
    print(f"{path.read_text(encoding='utf-8')}\nbench_elastic: wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
