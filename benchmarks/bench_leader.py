"""What a round costs the leader of an elastic run: `python benchmarks/bench_leader.py`, a minute of one core.

The pure sequencer, without its journal and connections, as the sites of a run say what they say in a round where
nothing goes wrong. Its journal is read again at the end, and lists every site in every round. The time is that of
its thread's CPU alone.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import FRAME_BYTES, AnyRound, Entry
from geocomm.elastic.journal.mailed_frames import averager
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Aggregator,
    Applied,
    Beat,
    Due,
    Hello,
    Hold,
    Model,
    Offer,
    Open,
    Owner,
    RanksUp,
    ReadySaid,
    Sum,
    Summed,
)
from geocomm.elastic.journal.run_state import EMPTY, RunState
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import (
    Action,
    Append,
    Came,
    Close,
    Event,
    LeaderSettings,
    Said,
    Send,
    Tick,
)
from geocomm.lab.bench.bench_report import Conditions, page, table_lines

RESULT = Path(__file__).parent / "results" / "leader.md"
SITES = (4, 16, 48, 64, 128)
FRAGMENTS = 8
EVERY = 30
_OF_REGION = 4
_CYCLES = 2
"""Of which the first is not measured: what the leader learns fills first."""


class LedBench:
    """A leader, and the sites that it hears."""

    def __init__(self, sites: int, fragments: int, reduce: str, of_region: int = 0) -> None:
        """of_region: sites that share one; 0: each is its own."""
        self.sites = [f"site-{number:03d}" for number in range(sites)]
        self.fragments = fragments
        self.entries: list[Entry] = []
        self.cpu_s = 0.0
        self._now = 1000.0
        self._open: Open | None = None
        self._asked: dict[int, Sum] = {}
        self._reduce = reduce
        settings = {"codec": "int4", FRAME_BYTES: "1000000", "reduce": reduce}
        model = Model(settings=settings, layout="1" * 32, fragments=fragments, every=EVERY)
        begins = range(0, sites, of_region) if of_region else ()
        regions = tuple(tuple(self.sites[begin : begin + of_region]) for begin in begins)
        terms = LeaderSettings(wait_for=frozenset(self.sites), regions=regions)
        self._sequencer = Sequencer(RunState(), terms, self._hash_at, lambda: "1" * 32)
        for number, name in enumerate(self.sites):
            self._on(Came(name))
            hello = Hello(
                protocol=PROTOCOL_VERSION,
                geocomm="1",
                store=_hex(name)[:32],
                run=None,
                head=-1,
                head_hash=None,
                term=0,
                fetch=f"{name}:1",
            )
            self._on(Said(name, hello))
            owner = Owner(id=_hex(name)[:32], host=name, port=1)
            self._on(Said(name, RanksUp(owners=(owner,), model=model, digests=("2" * 32,) * fragments)))
            for other in self.sites[: number + 1]:
                self._beat(other, 0)
            self._on(Said(name, ReadySaid()))

    def round(self, fragment: int, version: int) -> None:
        """All that is said in one."""
        step = EVERY * version + fragment + 1
        self._on(*(Said(name, Due(fragment=fragment, version=version)) for name in self.sites))
        assert self._open is not None
        attempt = self._open.attempt
        frames = {name: _hex(f"{name} {fragment} {version}") for name in self.sites}
        offers = [
            Said(
                name,
                Offer(
                    fragment=fragment,
                    version=version,
                    attempt=attempt,
                    frame=frame,
                    coded_bytes=500_000,
                    exact_bytes=1_000,
                    weight=EVERY,
                    step=step,
                    squared_norm=1.25,
                    lr=0.001,
                    every=0,
                    taken=4096 * step,
                ),
            )
            for name, frame in frames.items()
        ]
        self._on(*offers)
        if self._reduce == "all":
            self._hold(fragment, version, self.sites, frames)
        else:
            self._average(fragment, version, frames)
        digest = _hex(f"{fragment}{version}")[:32]
        said = Applied(fragment=fragment, version=version + 1, digest=digest)
        self._on(*(Said(name, said) for name in self.sites), Tick())

    def _hold(self, fragment: int, version: int, holders: Iterable[str], frames: Mapping[str, str]) -> None:
        """Sites have the frames of others on disk."""
        holds = [
            Said(name, Hold(fragment=fragment, version=version, site=maker, frame=frame, by_mail=True))
            for name in holders
            for maker, frame in frames.items()
            if maker != name
        ]
        self._on(*holds)

    def _average(self, fragment: int, version: int, frames: Mapping[str, str]) -> None:
        """The heads of regions have all frames of theirs and average them, then the aggregator, and all get the
        average."""
        opened = self._open
        assert opened is not None
        assert opened.aggregator is not None
        makers: dict[Aggregator, list[str]] = {}
        for name in self.sites:
            by = averager(opened, name)
            assert by is not None
            makers.setdefault(by, []).append(name)
        brought: dict[str, str] = {}
        for head in opened.adders:
            self._hold(fragment, version, [head.site], {name: frames[name] for name in makers[head]})
            brought[head.site] = self._summed(head)
        by = opened.aggregator
        own = {name: frames[name] for name in makers[by]}
        self._hold(fragment, version, [by.site], own | brought)
        self._hold(fragment, version, self.sites, {by.site: self._summed(by)})

    def _summed(self, by: Aggregator) -> str:
        """A site makes the average that it was asked for: its hash."""
        asked = self._asked[by.attempt]
        average = _hex(f"{asked.named}")
        counts = tuple(one.site for one in asked.members)
        said = Summed(**asked.named, frame=average, coded_bytes=500_000, exact_bytes=1_000, counts=counts)
        self._on(Said(by.site, said))
        return average

    def beat(self) -> None:
        """All sites say how they do."""
        for name in self.sites:
            self._beat(name, EVERY)

    def check(self, cycles: int) -> int:
        """The journal says what it should. The bytes of its last round."""
        rounds = [entry for entry in self.entries if isinstance(entry, AnyRound)]
        assert len(rounds) == cycles * self.fragments
        assert all([one.site for one in entry.members] == self.sites for entry in rounds)
        assert RunState.of(self.entries).versions == [cycles] * self.fragments
        return len(line_of(rounds[-1]).encode())

    def _beat(self, name: str, step: int) -> None:
        beat = Beat(step=step, tokens=0, step_s=0.1, line_s=0, free_bytes=0, head=len(self.entries) - 1)
        self._on(Said(name, beat))

    def _hash_at(self, index: int) -> str | None:
        return EMPTY.hash if index < 0 else self.entries[index].hash if index < len(self.entries) else None

    def _on(self, *events: Event) -> None:
        """The leader hears these, one after the other. The clock is read once for all: that takes longer than many of
        them."""
        began = time.thread_time()
        all_actions: list[list[Action]] = []
        for event in events:
            self._now += 1e-5
            all_actions.append(self._sequencer.on(event, self._now))
        self.cpu_s += time.thread_time() - began
        for action in itertools.chain(*all_actions):
            if isinstance(action, Append):
                self.entries.append(action.entry)
            elif isinstance(action, Close):
                raise AssertionError(f"{action.site}: {action.why}")
            elif isinstance(action, Send) and isinstance(action.message, Open):
                self._open = action.message
            elif isinstance(action, Send) and isinstance(action.message, Sum):
                self._asked[action.message.attempt] = action.message


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def measure(sites: int, fragments: int, reduce: str, of_region: int) -> tuple[float, float, int]:
    """Milliseconds of CPU of a round: the median and the most; and bytes of an entry."""
    led = LedBench(sites, fragments, reduce, of_region)
    took: list[float] = []
    for version in range(_CYCLES):
        for fragment in range(fragments):
            if fragment == 0:  # others beat every 3 s, whatever rounds there are
                led.beat()
            before = led.cpu_s
            led.round(fragment, version)
            if version:
                took.append(1e3 * (led.cpu_s - before))
    return statistics.median(took), max(took), led.check(_CYCLES)


def main() -> None:
    """Measure, and with --write keep the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="*", default=SITES)
    parser.add_argument("--fragments", type=int, default=FRAGMENTS)
    parser.add_argument("--write", action="store_true", help=f"to {RESULT.name}")
    args = parser.parse_args()
    conditions = Conditions.here(f"python benchmarks/bench_leader.py{' --write' if args.write else ''}")
    rows: list[list[str]] = []
    for sites in args.sites:
        for reduce, of_region in (("all", 0), ("aggregator", 0), ("aggregator", _OF_REGION)):
            median, most, size = measure(sites, args.fragments, reduce, of_region)
            of = f", regions of {of_region}" if of_region else ""
            rows.append([reduce + of, str(sites), f"{median:.1f}", f"{most:.1f}", f"{size / 1024:.1f}"])
            print(*rows[-1], flush=True)
    table = table_lines(("reduce", "sites", "CPU of a round, median, ms", "most, ms", "entry, KiB"), rows)
    text = (
        f"{args.fragments} fragments. All sites offer a frame, which all others or who averages it hold, and are "
        "listed. CPU is that of the sequencer alone: it neither writes the journal nor its lines."
    )
    if args.write:
        RESULT.write_text(page("The leader's cost of a round", conditions, text, *table) + "\n")


if __name__ == "__main__":
    main()
