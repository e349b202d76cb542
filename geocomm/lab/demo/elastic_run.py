"""The run of the elastic demo: three sites train over an emulated WAN; one is killed, and comes back.

Its folder has a run folder for each site, SITE.jsonl (a line for each of its steps) and log.txt (what all printed).
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import statistics
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import AnyRound, Away, BadLineError, Entry, Ready, Skip
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.lab.demo.demo_run import DemoError, demo_environment, log_tail, read_entries
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun

SITE_NAMES = ("site0", "site1", "site2")
OTHERS, KILLED = SITE_NAMES[:2], SITE_NAMES[2]
DEFAULT_STEPS = 160
LEAST_STEPS = 40
STEP_S = 0.5
EVERY = 12
_POLL_S = 0.05
_LIMIT_S = 120.0
_LAST_STEPS = 6
"""In which the first site applies what the others took part in."""

# Its $0 is Python. A site that is down starts again once the file that says so is gone.
_START = (
    'while :; do while [ -e "$FOLDER/down-$GEOCOMM_SITE" ]; do sleep 0.1; done; '
    '"$0" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" --run-dir "$FOLDER/$GEOCOMM_SITE" '
    f"--wait-for {','.join(SITE_NAMES)} -- --nproc-per-node 1 "
    f'-m geocomm.lab.demo.demo_site "$FOLDER" {STEP_S:g} {EVERY} && exit 0; sleep 0.5; done'
)


@dataclass(frozen=True)
class SeenEntry:
    """An entry of the journal, and when it was in a site's copy of it."""

    at: float
    entry: Entry


@dataclass(frozen=True)
class SeenStep:
    """An optimizer step."""

    at: float
    """When it was over."""
    step: int
    """The step of the run, as the site counts."""
    took_s: float
    tokens: int
    loss: float


@dataclass(frozen=True)
class ElasticRun:
    """What happened in a run. All times are of one clock, in seconds."""

    journals: dict[str, list[SeenEntry]]
    """The journals of the sites that were not killed, as each saw its own."""
    steps: dict[str, list[SeenStep]]
    """By site, in order."""
    compared: dict[str, int]
    """By site: how many of its anchors were compared with the first site's, and equal bit for bit."""
    killed_at: float
    started_at: float
    """When the killed site was started again."""
    parameters: int
    wan: WanReport

    @property
    def journal(self) -> list[SeenEntry]:
        """The journal as the first site saw it."""
        return self.journals[SITE_NAMES[0]]

    @property
    def rounds(self) -> list[tuple[float, AnyRound]]:
        """When the first site had each."""
        return [(one.at, one.entry) for one in self.journal if isinstance(one.entry, AnyRound)]

    @property
    def began_at(self) -> float:
        """When the first round was there."""
        return self.rounds[0][0]

    def away_at(self, site: str) -> float:
        """When a site had the entry that the killed one is away."""
        return next(one.at for one in self.journals[site] if one.at >= self.killed_at and is_away(one.entry))

    @property
    def ready_at(self) -> float:
        """When the killed site had replayed the journal."""
        return next(
            one.at
            for one in self.journal
            if one.at >= self.started_at and isinstance(one.entry, Ready) and one.entry.site == KILLED
        )

    @property
    def counted_at(self) -> float:
        """When a frame of it counted again."""
        return next(at for at, entry in self.rounds if at > self.ready_at and KILLED in members(entry))

    @property
    def rejoined(self) -> SeenStep:
        """The first step of the killed site after its return."""
        return next(one for one in self.steps[KILLED] if one.at > self.started_at)

    @property
    def uncounted_steps(self) -> int:
        """Steps of the killed site that never counted: of the fragment that had most of them."""
        counted: dict[int, int] = {}
        for at, entry in self.rounds:
            if at <= self.away_at(SITE_NAMES[0]):
                counted.update((entry.fragment, one.step) for one in entry.members if one.site == KILLED)
        last = max(one.step for one in self.steps[KILLED] if one.at < self.started_at)
        return last - min(counted.values())

    def steps_of_others(self, begin: float, end: float) -> list[float]:
        """How long their steps took, of those that ended between two times."""
        return [one.took_s for site in OTHERS for one in self.steps[site] if begin < one.at <= end]

    def gaps(self, begin: float, end: float) -> list[float]:
        """Between a round that came between two times and the one before it."""
        times = [at for at, _ in self.rounds]
        return [after - before for before, after in itertools.pairwise(times) if begin < after <= end]

    @property
    def figures(self) -> dict[str, Any]:
        """What the demo tells."""
        before, after = (self.began_at, self.killed_at), (self.killed_at, self.counted_at)
        alone = [entry for at, entry in self.rounds if self.killed_at < at < self.counted_at]
        return {
            "seen_seconds": {site: self.away_at(site) - self.killed_at for site in OTHERS},
            "away_seconds": self.started_at - self.killed_at,
            "others": {
                "median_step_seconds": statistics.median(self.steps_of_others(*before)),
                "longest_step_before_seconds": max(self.steps_of_others(*before)),
                "longest_step_seconds": max(self.steps_of_others(*after)),
                "rounds_without_killed": len(alone),
                "rounds_without_one_of_them": sum(not set(OTHERS) <= set(members(entry)) for entry in alone),
                "rounds_void": sum(isinstance(one.entry, Skip) for one in self.journal),
                "median_gap_seconds": statistics.median(self.gaps(*before)),
                "longest_gap_seconds": max(self.gaps(*after)),
            },
            "uncounted_steps": self.uncounted_steps,
            "trains_again_seconds": self.rejoined.at - self.started_at,
            "counted_again_seconds": self.counted_at - self.started_at,
            "rejoined_at_step": self.rejoined.step,
            "rounds": len(self.rounds),
            "anchors_compared": self.compared,
        }


def is_away(entry: Entry) -> bool:
    """Whether it says that the killed site is away."""
    return isinstance(entry, Away) and entry.site == KILLED


def members(entry: AnyRound) -> list[str]:
    """The sites whose frames count in a round."""
    return [one.site for one in entry.members]


class JournalWatch:
    """The journal of a site's run folder, read again and again."""

    def __init__(self, run_dir: Path) -> None:
        """The folder may not be there yet."""
        self.seen: list[SeenEntry] = []
        self._path = RunDir(run_dir).journal

    def look(self) -> None:
        """Take what is new."""
        if not self._path.exists():
            return
        with (
            contextlib.suppress(NoJournalError, BadLineError),  # it is being made
            contextlib.closing(SqliteJournal(self._path, read_only=True)) as journal,
        ):
            first = self.seen[-1].entry.index + 1 if self.seen else 0
            self.seen += [SeenEntry(time.monotonic(), entry) for entry in journal.read(first)]


def wait_for_run(
    run: WanRun, watches: Collection[JournalWatch], done: Callable[[], bool], what: str, limit_s: float
) -> str:
    """Read the journals of a run until `done`. what: that is, in words. Why it did not come; empty: it did."""
    until = time.monotonic() + limit_s
    while not done():
        if run.process.poll() is not None:
            return f"the run ended before {what}"
        if time.monotonic() > until:
            return f"not within {limit_s:g} s: {what}"
        time.sleep(_POLL_S)
        for watch in watches:
            watch.look()
    return ""


def run_elastic_demo(
    folder: Path, link: EmulatedLink, steps: int, keys: Path, on_event: Callable[[str], None]
) -> ElasticRun:
    """Train in `folder`, which is there, until the first site has made `steps` steps. `on_event` hears what happens.

    Raises DemoError where something did not happen in time, or anchors differ; WanError where no WAN can be emulated.
    """
    environment = site_environment(demo_environment(), keys)
    environment |= {"FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    watches = {site: JournalWatch(folder / site) for site in OTHERS}
    first = watches[SITE_NAMES[0]]
    log_path = folder / "log.txt"

    def wait(done: Callable[[], bool], what: str, limit_s: float = _LIMIT_S) -> None:
        if why := wait_for_run(run, watches.values(), done, what, limit_s):
            raise DemoError(f"{why}; the end of {log_path}:\n{log_tail(log_path)}")

    def step() -> int:
        return max(
            (line["step"] for line in read_entries(folder / f"{SITE_NAMES[0]}.jsonl") if "step" in line), default=0
        )

    def away(watch: JournalWatch) -> bool:
        return any(one.at >= killed_at and is_away(one.entry) for one in watch.seen)

    def ended(site: str) -> bool:
        return "end" in read_entries(folder / f"{site}.jsonl")[-1]

    def full_rounds_since(index: int) -> bool:
        return any(
            isinstance(one.entry, AnyRound) and len(one.entry.members) == len(SITE_NAMES) for one in first.seen[index:]
        )

    with (
        log_path.open("w", encoding="utf-8") as log,
        WanRun(
            EmulatedWan.uniform(SITE_NAMES, link),
            ["/bin/sh", "-c", _START, sys.executable],
            environment=environment,
            keys=keys,
            keep_going=True,
            stdout=log,
            stderr=log,
        ) as run,
    ):
        wait(lambda: full_rounds_since(0), "a round of all three sites")
        on_event("all three sites train")
        begun = step()
        wait(lambda: step() >= begun + (steps - begun) // 4, "the step at which a site is killed")
        (folder / f"down-{KILLED}").touch()
        killed_at = time.monotonic()
        run.signal_site(KILLED, signal.SIGKILL)
        on_event(f"{KILLED}: all its processes are killed (SIGKILL)")
        wait(lambda: all(map(away, watches.values())), f"{' and '.join(OTHERS)} know that {KILLED} is away")
        on_event(f"{' and '.join(OTHERS)} have seen it, and train on")
        wait(lambda: step() >= (begun + steps) // 2, "the step at which the killed site starts again")
        (folder / f"down-{KILLED}").unlink()
        started_at, index = time.monotonic(), len(first.seen)
        on_event(f"{KILLED} is started again")
        wait(lambda: full_rounds_since(index), f"{KILLED} counts again")
        on_event(f"{KILLED} counts again")
        steps = max(steps, step() + 2 * EVERY)
        wait(lambda: step() >= steps, "the last step")
        # The first site last: so it has had every anchor that the others had.
        for site in SITE_NAMES[1:]:
            (folder / f"stop-{site}").touch()
        wait(lambda: all(ended(site) for site in SITE_NAMES[1:]), f"{' and '.join(SITE_NAMES[1:])} leave")
        last = step() + _LAST_STEPS
        wait(lambda: step() >= last, "the last steps")
        (folder / f"stop-{SITE_NAMES[0]}").touch()
        wait(lambda: ended(SITE_NAMES[0]), f"{SITE_NAMES[0]} leaves")
        on_event("the sites have left")
        with contextlib.suppress(DemoError):  # the run ends by itself
            wait(lambda: False, "the end of the run", _LIMIT_S)
        status, report = run.wait(), run.report()
    if status != 0 or report is None:
        raise DemoError(f"the run ended with status {status}; the end of {log_path}:\n{log_tail(log_path)}")
    lines = {site: read_entries(folder / f"{site}.jsonl") for site in SITE_NAMES}
    return ElasticRun(
        {site: watch.seen for site, watch in watches.items()},
        {site: [_step_of(line) for line in lines[site] if "step" in line] for site in SITE_NAMES},
        {site: compare_anchors(site, lines[site], lines[SITE_NAMES[0]]) for site in SITE_NAMES[1:]},
        killed_at,
        started_at,
        lines[SITE_NAMES[0]][0]["parameters"],
        report,
    )


def _step_of(line: dict[str, Any]) -> SeenStep:
    return SeenStep(line["at"], line["step"], line["took"], line["tokens"], line["loss"])


def compare_anchors(site: str, lines: Sequence[dict[str, Any]], of_first: Sequence[dict[str, Any]]) -> int:
    """How many anchors a site had, all of which the first site had too, in the same order. DemoError where one
    differs."""
    compared = 0
    for fragment in range(len(of_first[0]["anchors"])):
        reference = iter(_anchors(of_first, fragment))
        for anchor in _anchors(lines, fragment):
            if anchor not in reference:
                raise DemoError(f"fragment {fragment} of {site} had an anchor that {SITE_NAMES[0]} did not have then")
            compared += 1
    return compared


def _anchors(lines: Sequence[dict[str, Any]], fragment: int) -> list[str]:
    """The digests of a fragment's anchors, each once."""
    digests = [line["anchors"][fragment] for line in lines if "anchors" in line]
    return [digest for digest, _ in itertools.groupby(digests)]
