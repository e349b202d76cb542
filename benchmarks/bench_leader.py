"""What a round costs the leader of an elastic run: `python benchmarks/bench_leader.py`, a minute of one core.

The pure sequencer, without its journal and connections, as the sites of a run say what they say in a round where
nothing goes wrong. Its journal is read again at the end, and lists every site in every round. The time is that of
its thread's CPU alone.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from pathlib import Path

from geocomm.core.records import line_of
from geocomm.elastic.journal.entries import FRAME_BYTES, Entry, Round
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
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
)
from geocomm.elastic.journal.run_state import EMPTY, RunState
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import Append, Came, Close, Event, LeaderSettings, Said, Send, Tick
from geocomm.lab.bench.bench_report import Conditions, page, table_lines

RESULT = Path(__file__).parent / "results" / "leader.md"
SITES = (4, 16, 48, 128)
FRAGMENTS = 8
EVERY = 30
_CYCLES = 2
"""Of which the first is not measured: what the leader learns fills first."""


class LedBench:
    """A leader, and the sites that it hears."""

    def __init__(self, sites: int, fragments: int) -> None:
        self.sites = [f"site-{number:03d}" for number in range(sites)]
        self.fragments = fragments
        self.entries: list[Entry] = []
        self.cpu_s = 0.0
        self._now = 1000.0
        self._attempt = -1
        model = Model(
            settings={"codec": "int4", FRAME_BYTES: "1000000"}, layout="1" * 32, fragments=fragments, every=EVERY
        )
        terms = LeaderSettings(wait_for=frozenset(self.sites))
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
        for name in self.sites:
            self._on(Said(name, Due(fragment=fragment, version=version)))
        frames = {name: _hex(f"{name} {fragment} {version}") for name in self.sites}
        for name, frame in frames.items():
            self._on(
                Said(
                    name,
                    Offer(
                        fragment=fragment,
                        version=version,
                        attempt=self._attempt,
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
            )
        for name in self.sites:
            for maker, frame in frames.items():
                if maker != name:
                    self._on(
                        Said(name, Hold(fragment=fragment, version=version, site=maker, frame=frame, by_mail=True))
                    )
        for name in self.sites:
            self._on(
                Said(name, Applied(fragment=fragment, version=version + 1, digest=_hex(f"{fragment}{version}")[:32]))
            )
        self._on(Tick())

    def beat(self) -> None:
        """All sites say how they do."""
        for name in self.sites:
            self._beat(name, EVERY)

    def check(self, cycles: int) -> int:
        """The journal says what it should. The bytes of its last round."""
        rounds = [entry for entry in self.entries if isinstance(entry, Round)]
        assert len(rounds) == cycles * self.fragments
        assert all([one.site for one in entry.members] == self.sites for entry in rounds)
        assert RunState.of(self.entries).versions == [cycles] * self.fragments
        return len(line_of(rounds[-1]).encode())

    def _beat(self, name: str, step: int) -> None:
        beat = Beat(step=step, tokens=0, step_s=0.1, line_s=0, free_bytes=0, head=len(self.entries) - 1)
        self._on(Said(name, beat))

    def _hash_at(self, index: int) -> str | None:
        return EMPTY.hash if index < 0 else self.entries[index].hash if index < len(self.entries) else None

    def _on(self, event: Event) -> None:
        self._now += 1e-5
        began = time.thread_time()
        actions = self._sequencer.on(event, self._now)
        self.cpu_s += time.thread_time() - began
        for action in actions:
            if isinstance(action, Append):
                self.entries.append(action.entry)
            elif isinstance(action, Close):
                raise AssertionError(f"{action.site}: {action.why}")
            elif isinstance(action, Send) and isinstance(action.message, Open):
                self._attempt = action.message.attempt


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def measure(sites: int, fragments: int) -> tuple[float, float, int]:
    """Milliseconds of CPU of a round: the median and the most; and bytes of an entry."""
    led = LedBench(sites, fragments)
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
        median, most, size = measure(sites, args.fragments)
        rows.append([str(sites), f"{median:.1f}", f"{most:.1f}", f"{size / 1024:.1f}"])
        print(*rows[-1], flush=True)
    table = table_lines(("sites", "CPU of a round, median, ms", "most, ms", "entry, KiB"), rows)
    text = f"{args.fragments} fragments. All sites offer a frame, hold those of all others, and are listed."
    if args.write:
        RESULT.write_text(page("The leader's cost of a round", conditions, text, *table) + "\n")


if __name__ == "__main__":
    main()
