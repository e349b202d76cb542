"""How soon a broken link comes back while strangers flood the ranks: `python benchmarks/bench_flood.py`, ten minutes.

Two sites of one rank over TLS on an emulated link, with verified all-reduces one after another. Strangers at each site
dial the rank there, or the other one through the link, and send a ClientHello each, which starts a handshake. The
link is cut again and again meanwhile, by a reset of all its connections. Measured: the time from the cut to the end of
the next all-reduce that had to cross, memory and descriptors. `--compare PYTHON` does the same in turn with the geocomm
that another interpreter imports. Results: benchmarks/results/flood.md and .json. Needs `ss` (iproute2), and what
`geocomm wan` needs. Exit status 1: a sum was wrong, a rank of this geocomm failed, or the rate was not reached.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench_flood_worker import MANY_ADDRESSES, ONE_ADDRESS, PEERS_ADDRESS, REPORT_S, write_order

from geocomm.core.units import parse_duration, parse_rate
from geocomm.lab.bench.bench_report import Conditions, write_pair
from geocomm.lab.bench.wan_bench import describe_link
from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "bench_flood_worker.py"
SOURCES = {"one": ONE_ADDRESS, "many": MANY_ADDRESSES, "peer": PEERS_ADDRESS}
START_LIMIT_S = 120.0
SETTLE_S = 2.0
"""Until a flood is in full swing; after the last cut; between two cuts."""
COMES_BACK_S = 90.0
"""A link that is down when a flood ends: longer than its deadline."""
LEAST_OF_RATE = 0.9
RANKS = (0, 1)
SAMPLE_S = 0.1


@dataclass(frozen=True)
class Build:
    """A geocomm to measure."""

    name: str
    python: str


@dataclass(frozen=True)
class Plan:
    """What is done to a job, one after another."""

    come_from: str
    rates: tuple[int, ...]
    """Connections a second at each rank; 0: no flood."""
    cuts: int
    flood_s: float = 0.0
    """At least so long each."""
    patience_s: float = 20.0
    """A flood ends when a link was down for so long."""


@dataclass
class Phase:
    """What came of one flood, or of a time without."""

    build: str
    come_from: str
    rate: int
    reached: float = 0.0
    """ClientHellos a second at the rank that got the fewest."""
    seconds: float = 0.0
    resumed_s: list[float] = field(default_factory=list)
    """From each cut to the end of the next all-reduce that crossed, while the flood went on."""
    down_s: float | None = None
    """The last cut: how long before the flood was ended, the link still being down."""
    after_flood_s: float | None = None
    """And how long it took from then on; None where it did not come back, or was not down."""
    failed: str = ""
    """What a rank said when it gave up."""
    rounds: int = 0
    round_s: float | None = None
    """Median of the all-reduces that no cut disturbed."""
    rss_mib: list[float] = field(default_factory=list)
    """Of the larger rank: before, most during, after."""
    descriptors: list[int] = field(default_factory=list)


class Ended(RuntimeError):
    """The job has ended by itself."""


class LineReader:
    """The lines that a process writes, by a field that they have."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._lines: list[dict[str, Any]] = []

    def having(self, name: str) -> list[dict[str, Any]]:
        """All so far."""
        if self._path.exists():
            with self._path.open(encoding="utf-8") as file:
                file.seek(self._at)
                text = file.read()
            whole = text[: text.rfind("\n") + 1]
            self._at += len(whole)  # ASCII
            self._lines += [json.loads(line) for line in whole.splitlines()]
        return [line for line in self._lines if name in line]


class Sampler:
    """Memory and descriptors of processes, all the time."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._samples: list[tuple[float, float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        page_mib = os.sysconf("SC_PAGE_SIZE") / 2**20
        while not self._stop.wait(SAMPLE_S):
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
                    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
                    self._samples.append((time.monotonic(), pages * page_mib, descriptors))

    def most(self, since: float, until: float) -> tuple[float, int]:
        """MiB resident and descriptors, of the process that had the most."""
        within = [sample for sample in list(self._samples) if since <= sample[0] <= until]
        return max((s[1] for s in within), default=0.0), max((s[2] for s in within), default=0)

    def close(self) -> None:
        """No samples any more."""
        self._stop.set()
        self._thread.join()


class Job:
    """Two ranks that all-reduce, and the strangers beside them."""

    def __init__(self, folder: Path, build: Build, run: WanRun, output: Path) -> None:
        self.build = build
        self._folder, self._run, self._output = folder, run, output
        self._ranks = [LineReader(folder / f"rank-{rank}.jsonl") for rank in RANKS]
        self._strangers = [LineReader(folder / f"strangers-{rank}.jsonl") for rank in RANKS]
        self._order: dict[str, Any] = {"flood": None, "cut": 0, "stop": False}
        self._until(lambda: all(len(rank.having("round")) > 5 for rank in self._ranks), START_LIMIT_S)
        self._sampler = Sampler([rank.having("pid")[0]["pid"] for rank in self._ranks])

    def _say(self, **order: Any) -> None:
        self._order |= order
        write_order(self._folder, self._order)

    def _until(self, done: Any, limit_s: float) -> bool:
        """Whether it came to that in time. Ended: nor ever will."""
        deadline = time.monotonic() + limit_s
        while not done():
            if self._run.process.poll() is not None:
                raise Ended(self._last_words())
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _last_words(self) -> str:
        lines = [line for line in self._output.read_text(encoding="utf-8", errors="replace").splitlines() if line]
        said = [line for line in lines if "Error:" in line or "wrong" in line]
        return (said or lines or ["nothing"])[-1]

    def _hellos_per_s(self, since: float, until: float) -> float:
        """At the rank that got the fewest."""
        rates = []
        for strangers in self._strangers:
            within = [line for line in strangers.having("hellos") if since <= line["time"] <= until]
            first, last = within[0], within[-1]
            rates.append((last["hellos"] - first["hellos"]) / (last["time"] - first["time"]))
        return min(rates)

    def _resumed(self) -> list[float]:
        """By cut; one rank of both has measured it."""
        lines = [line for rank in self._ranks for line in rank.having("cut")]
        return [line["resumed_after"] for line in sorted(lines, key=lambda line: line["cut"])]

    def measure(self, phase: Phase, plan: Plan) -> Phase:
        """One phase, filled in. Ended: the job did, and the phase says so."""
        first_round = len(self._ranks[0].having("round"))
        time.sleep(SETTLE_S)
        began = time.monotonic()
        before = self._sampler.most(began - SETTLE_S, began)
        stop = began
        try:
            if phase.rate:
                self._say(flood={"rate": phase.rate, "come_from": plan.come_from})
            time.sleep(SETTLE_S)
            self._cut_again_and_again(phase, plan, began)
        except Ended as ended:
            phase.failed = str(ended)
            raise
        finally:
            stop = time.monotonic()
            phase.seconds = stop - began
            during = self._sampler.most(began, stop)
            if phase.rate:
                phase.reached = self._hellos_per_s(began + REPORT_S, stop)
            self._say(flood=None)
            phase.rss_mib, phase.descriptors = [before[0], during[0]], [before[1], during[1]]
        if phase.down_s is not None:
            self._await_return(phase)
        time.sleep(2 * SETTLE_S)
        now = time.monotonic()
        after = self._sampler.most(now - SETTLE_S, now)
        phase.rss_mib.append(after[0])
        phase.descriptors.append(after[1])
        rounds = self._ranks[0].having("round")[first_round:]
        phase.rounds = len(rounds)
        calm = [line["took"] for line in rounds if began <= line["ended"] <= stop and not line["disturbed"]]
        phase.round_s = statistics.median(calm) if calm else None
        return phase

    def _cut_again_and_again(self, phase: Phase, plan: Plan, began: float) -> None:
        while len(phase.resumed_s) < plan.cuts or time.monotonic() - began < plan.flood_s:
            known = len(self._resumed())
            cut_at = time.monotonic()
            self._say(cut=self._order["cut"] + 1)
            if not self._until(lambda known=known: len(self._resumed()) > known, plan.patience_s):
                phase.down_s = time.monotonic() - cut_at
                return
            phase.resumed_s.append(self._resumed()[-1])
            time.sleep(SETTLE_S)

    def _await_return(self, phase: Phase) -> None:
        known, began = len(self._resumed()), time.monotonic()
        try:
            if self._until(lambda: len(self._resumed()) > known, COMES_BACK_S):
                phase.after_flood_s = time.monotonic() - began
        except Ended as ended:
            phase.failed = str(ended)
            raise

    def finish(self) -> dict[str, Any]:
        """End the ranks in good order; what they say of the link. Ended: one has failed."""
        self._say(stop=True)
        if self._run.wait(60) != 0:
            raise Ended(self._last_words())
        return self._ranks[0].having("streams")[0]

    def close(self) -> None:
        """No samples any more."""
        self._sampler.close()


def client_hello(folder: Path) -> bytes:
    """As a geocomm of another job says it: TLS 1.3, complete."""
    JobCa.create(folder, "strangers", ["nowhere"], 2)
    outgoing = ssl.MemoryBIO()
    connection = Keys.load(folder / "nowhere").context(server=False).wrap_bio(ssl.MemoryBIO(), outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


@contextlib.contextmanager
def running(build: Build, link: EmulatedLink) -> Iterator[Job]:
    """A job of that build, up."""
    sites = ["site0", "site1"]
    with tempfile.TemporaryDirectory(prefix="geocomm-flood-") as scratch, site_keys(sites, None, True) as keys:
        folder = Path(scratch)
        (folder / "client-hello").write_bytes(client_hello(folder / "foreign"))
        command = [sys.executable, str(WORKER), "site", str(folder), build.python]
        environment = site_environment(bare_environment() | {"GEOCOMM_CODEC": "none", "OMP_NUM_THREADS": "1"}, keys)
        with (folder / "output").open("w", encoding="utf-8") as output:
            topology = EmulatedWan.uniform(sites, link)
            with WanRun(topology, command, environment=environment, keys=keys, stdout=output, stderr=output) as run:
                job = Job(folder, build, run, folder / "output")
                try:
                    yield job
                finally:
                    job.close()


def measure(build: Build, link: EmulatedLink, plan: Plan, show: Any) -> tuple[list[Phase], dict[str, Any]]:
    """All phases of a plan in one job; a job that ends early has fewer."""
    phases: list[Phase] = []
    try:
        with running(build, link) as job:
            for rate in plan.rates:
                phases.append(Phase(build.name, plan.come_from if rate else "-", rate))
                job.measure(phases[-1], plan)
                show(phases[-1])
            return phases, job.finish()
    except Ended as ended:
        if not phases:
            raise SystemExit(f"{build.name}: the ranks did not start: {ended}") from None
        phases[-1].failed = phases[-1].failed or str(ended)
        show(phases[-1])
        return phases, {}


HEADER = (
    "| geocomm | strangers from | a second, at each rank | reached | cuts | back | median | longest | all-reduce | "
    "MiB before, most, after | descriptors |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|"
)


def table_row(phase: Phase) -> str:
    """A line of the table."""
    times = phase.resumed_s
    cuts = len(times) + (phase.down_s is not None or bool(phase.failed))
    longest = f"{max(times):.2f} s" if times else ""
    if phase.down_s is not None:
        end = "never" if phase.after_flood_s is None else f"{phase.after_flood_s:.1f} s after its end"
        longest = f"**not in {phase.down_s:.0f} s of flood**, {end}"
    if phase.failed:
        longest = "**the job ended**"
    cells = [
        phase.build,
        phase.come_from,
        str(phase.rate or "none"),
        f"{phase.reached:.0f}" if phase.rate else "",
        str(cuts),
        str(len(times)),
        f"{statistics.median(times):.2f} s" if times else "",
        longest,
        "" if phase.round_s is None else f"{phase.round_s * 1e3:.0f} ms",
        ", ".join(f"{mib:.0f}" for mib in phase.rss_mib),
        ", ".join(str(count) for count in phase.descriptors),
    ]
    return "| " + " | ".join(cells) + " |"


def report(conditions: Conditions, link: EmulatedLink, phases: Sequence[Phase], streams: set[int]) -> str:
    """The result's text."""
    facts = {
        "date": conditions.date,
        "machine": conditions.machine,
        "software": conditions.software,
        "load averages at the end": conditions.load,
        "commit": conditions.commit,
        "command": f"`{conditions.command}`",
        "link": f"{describe_link(link)}; {', '.join(map(str, sorted(streams))) or 'unknown'} data streams; TLS 1.3",
        "limit of descriptors": str(os.sysconf("SC_OPEN_MAX")),
    }
    failures = [f"- {p.build}, {p.rate} a second from {p.come_from}: {p.failed}" for p in phases if p.failed]
    return "\n".join(
        [
            "# A broken link under a flood of strangers",
            "",
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
            HEADER,
            *map(table_row, phases),
            "",
            *(["Jobs that ended:", "", *failures, ""] if failures else []),
        ]
    )


def label_of(python: str) -> str:
    """The commit of the geocomm that an interpreter imports."""
    where = [python, "-c", "import geocomm; print(geocomm.__path__[0])"]
    folder = subprocess.run(where, capture_output=True, text=True, check=True, cwd="/").stdout.strip()
    head = ["git", "-C", folder, "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()


def faults_of(phases: Sequence[Phase], own: str) -> list[str]:
    """What makes the run a failure."""
    found = [f"{p.build}: a sum was wrong: {p.failed}" for p in phases if "wrong" in p.failed]
    found += [f"{p.build}: {p.failed}" for p in phases if p.build == own and p.failed]
    for p in phases:
        # Another build may be too busy to accept as many.
        if p.build == own and p.rate and p.reached < LEAST_OF_RATE * p.rate:
            found.append(f"{p.build}: {p.reached:.0f} of {p.rate} connections a second: the machine is busy")
    return found


def main() -> int:
    """Measure, write the report, print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compare", metavar="PYTHON", help="an interpreter that imports another geocomm")
    parser.add_argument("--sources", default="one,many,peer", help=f"of {', '.join(SOURCES)}")
    parser.add_argument("--rates", default="200,400,1000", help="connections a second")
    parser.add_argument("--cuts", type=int, default=5, help="per flood")
    parser.add_argument("--patience", type=float, default=20, help="seconds until a link that is down ends its flood")
    parser.add_argument("--long", type=float, default=60, help="seconds of one more flood at the highest rate; 0: none")
    parser.add_argument("--long-sources", default="peer", help="where that comes from, as --sources")
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rtt", default="100ms")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    args = parser.parse_args()
    if shutil.which("ss") is None:
        raise SystemExit("ss is missing: install iproute2")
    link = EmulatedLink(rate_bps=parse_rate(args.rate), delay_s=parse_duration(args.rtt) / 2)
    own = Build(label_of(sys.executable), sys.executable)
    builds = [own, *([Build(label_of(args.compare), args.compare)] if args.compare else [])]
    rates = tuple(int(rate) for rate in args.rates.split(","))
    plans = [Plan(SOURCES[name], (0, *rates), args.cuts, 0.0, args.patience) for name in args.sources.split(",")]
    if args.long:
        long_sources = [SOURCES[name] for name in args.long_sources.split(",")]
        plans += [Plan(come_from, (max(rates),), 1, args.long, args.long) for come_from in long_sources]
    phases: list[Phase] = []
    streams: set[int] = set()
    print(HEADER, flush=True)
    for plan in plans:
        for build in builds:  # by turns, since the machine's other work changes
            of_plan, link_says = measure(build, link, plan, lambda phase: print(table_row(phase), flush=True))
            phases += of_plan
            if link_says:
                streams.add(link_says["streams"])
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    document = {"conditions": asdict(conditions), "link": asdict(link), "phases": [asdict(p) for p in phases]}
    path = write_pair(args.out / "flood.md", report(conditions, link, phases, streams), document)
    print(f"written to {path}")
    faults = faults_of(phases, own.name)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
