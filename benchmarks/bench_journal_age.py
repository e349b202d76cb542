"""What a long history costs an elastic run: `python benchmarks/bench_journal_age.py`, ten minutes and 3 GB of disk.

Two journals of 2,000,000 entries, 24 fragments and three sites: one whose snapshots were never kept, so that no entry
was cut, and one with a snapshot every 43,000 entries (half an hour at 24 rounds a second). Both are verified first.
Then, with real agents over TLS on loopback: `geocomm members ls`, a leader's agent that is started again until it
answers, and a new site until it has the leader's entries; memory is the most that a process had. Before the journal had
states, each of these read all entries: that is timed at 5,000.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from geocomm.core.addresses import Address, free_port
from geocomm.core.records import line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.agent_process import AgentConfig
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Entry, Genesis, Join, Kept, Ready, Round, Snapshot, entry_of
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import Head, RunState
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from geocomm.elastic.leading.questions import LeaderAnswer, MembersAsked, ask
from geocomm.lab.bench.bench_report import Conditions, load_at_end
from geocomm.lab.emulator.emulated_keys import site_keys
from geocomm.security.key_folder import Keys

RESULT = Path(__file__).parent / "results" / "journal-age.md"
SITES = ("a", "b", "c")
FRAGMENTS = 24
SNAPSHOT_EVERY = 43_000
BEFORE = 5_000
"""Entries at which the way of before is timed."""
YOUNG = 1_000
"""Entries of a journal to compare with: what processes take to start."""
_LIMIT_S = 300.0


class History:
    """The entries of a run, made quickly: rounds are text, and the state after them is put together where it is asked
    for. `verify` of the journal then finds whether all of it is right."""

    def __init__(self, journal: SqliteJournal) -> None:
        self._journal, self._state, self._rows = (
            journal,
            RunState(),
            list[tuple[int, str, str, int | None, int | None]](),
        )
        self._head = self._state.head
        self._versions = [0] * FRAGMENTS
        self._last: dict[int, str] = {}
        self._rounds = 0

    def state(self) -> RunState:
        """After the last entry."""
        state = self._state
        if self._rounds:
            state.head, state.versions = self._head, list(self._versions)
            state.rounds = {fragment: cast(Round, entry_of(line)) for fragment, line in self._last.items()}
            last = state.rounds[max(state.rounds, key=lambda fragment: state.rounds[fragment].index)]
            for listed in last.members:
                known = state.sites[listed.site]
                state.sites[listed.site] = replace(
                    known, rounds=self._rounds, weight=24 * self._rounds, taken=listed.taken
                )
                state.steps[listed.site] = state.step = listed.step
        return state

    def append(self, kind: Callable[..., Entry], **fields: Any) -> None:
        """Any entry but a round."""
        state = self.state()
        entry = kind(index=state.head.index + 1, prev=state.head.hash, term=0, **fields)
        state.apply(entry)
        self._head = state.head
        self._rows.append((entry.index, self._head.hash, line_of(entry), None, None))

    def append_round(self) -> None:
        """The next one."""
        index = self._head.index + 1
        fragment = index % FRAGMENTS
        version = self._versions[fragment]
        members = ",".join(
            f'{{"coded_bytes":500000,"exact_bytes":1000,"frame":"{index:062x}{number:02x}","lr":0.001,"site":"{site}",'
            f'"squared_norm":1.25,"step":{index // FRAGMENTS},"taken":{index * 4096},"weight":24}}'
            for number, site in enumerate(SITES)
        )
        line = (
            f'{{"base":"{version:032x}","every":0,"fragment":{fragment},"index":{index},"kind":"round","members":'
            f'[{members}],"prev":"{self._head.hash}","term":0,"version":{version}}}'
        )
        self._versions[fragment] += 1
        self._last[fragment] = line
        self._rounds += 1
        self._head = Head(index, hashlib.sha256(line.encode()).hexdigest())
        self._rows.append((index, self._head.hash, line, fragment, version))

    def store(self, *, always: bool = False) -> None:
        """Write what was made, and the state as an agent does."""
        journal = self._journal
        with journal._transaction():  # pyright: ignore[reportPrivateUsage]
            journal._db.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", self._rows)  # pyright: ignore[reportPrivateUsage]
        journal._head = self._head  # pyright: ignore[reportPrivateUsage]
        self._rows.clear()
        journal.keep(self.state(), always=always)


def write(run_dir: Path, count: int, *, kept: bool) -> str:
    """A run folder with that history, as agents would have written it; the text of its state."""
    stores = [FragmentStore(run_dir).store_id, "b" * 32, "c" * 32]
    with contextlib.closing(SqliteJournal(RunDir(run_dir).journal)) as journal:
        history = History(journal)
        digests = tuple(f"{fragment:032x}" for fragment in range(FRAGMENTS))
        settings = {"codec": "int4", "model": "24 trained parameters with 1000 elements"}
        history.append(Genesis, run="1" * 32, settings=settings, layout="2" * 32, digests=digests, every=24)
        for site, store in zip(SITES, stores, strict=True):
            history.append(Join, site=site, store=store)
            history.append(Ready, site=site)
        for index in range(7, count):
            if index % SNAPSHOT_EVERY == 0:
                history.store(always=True)
                state = history.state()
                history.append(Snapshot, versions=tuple(state.versions), state=state.digest)
            elif kept and index > SNAPSHOT_EVERY and index % SNAPSHOT_EVERY == 5:
                history.append(Kept, snapshot=index - 5, digest="3" * 32, sites=SITES[:2])
                history.store()
                journal.forget(history.state().needed_from)
            else:
                history.append_round()
            if index % 1000 == 999:
                history.store()
        history.store()
        return history.state().text


@dataclass(frozen=True)
class Row:
    """Of one journal."""

    name: str
    entries: int
    here: int
    """Entries that the file has."""
    mib: float
    verify_s: float
    state_s: float
    ls_s: float
    ls_mib: float
    back_s: float
    back_mib: float
    joins_s: float
    joins_mib: float
    sent: int
    """Entries that the new site has."""


def check_chain(journal: SqliteJournal) -> None:
    """Every line has its hash, and that of the line before: the entries are what was written, in their places."""
    head = journal.base
    for line in journal.lines(0, journal.head.index):
        if f'"index":{head.index + 1},' not in line or f'"prev":"{head.hash}"' not in line:
            raise AssertionError(f"entry {head.index + 1} is not in its place")
        head = Head(head.index + 1, hashlib.sha256(line.encode()).hexdigest())
    if head != journal.head:
        raise AssertionError("the chain ends elsewhere")


def measured(name: str, run_dir: Path, keys: Path, text: str) -> Row:
    """Verify it, then time it."""
    began = time.monotonic()
    with contextlib.closing(SqliteJournal(RunDir(run_dir).journal, read_only=True)) as journal:
        check_chain(journal)
        verify_s = time.monotonic() - began
        began = time.monotonic()
        state = journal.state()
        state_s = time.monotonic() - began
        if state.text != text:
            raise AssertionError(f"{name}: the journal does not say what was written")
        here = state.head.index - journal.base.index
    at = f"127.0.0.1:{free_port()}"
    about = {"leader": at, "agent": at, "keys": str(keys / "a"), "site": "a", "leads": True, "journal": ""}
    (run_dir / "run.json").write_text(json.dumps(about))
    command = [sys.executable, "-m", "geocomm", "members", "ls", "--json", "--run-dir", str(run_dir)]
    began = time.monotonic()
    listed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    out, _ = listed.communicate(timeout=_LIMIT_S)
    ls_s = time.monotonic() - began
    ls_mib = _most_of_children(command)
    if json.loads(out)["head"] != state.head.index:
        raise AssertionError(f"{name}: members ls read another journal")
    new_dir = run_dir.with_name(f"{run_dir.name}-new")
    with _agent(keys, "a", run_dir, at, at, leads=True) as leader:
        began = time.monotonic()
        asyncio.run(_answers(at, keys))
        back_s, back_mib = time.monotonic() - began, _most_mib(leader.pid)
        with _agent(keys, "d", new_dir, at, f"127.0.0.1:{free_port()}", leads=False) as new:
            began = time.monotonic()
            while _head(new_dir) < state.head.index:
                if time.monotonic() - began > _LIMIT_S or new.poll() is not None:
                    raise AssertionError(f"{name}: the new site does not get the entries")
                time.sleep(0.02)
            joins_s, joins_mib = time.monotonic() - began, _most_mib(new.pid)
        back_mib = max(back_mib, _most_mib(leader.pid))
    with contextlib.closing(SqliteJournal(RunDir(new_dir).journal, read_only=True)) as journal:
        if journal.hash_at(state.head.index) != state.head.hash:
            raise AssertionError(f"{name}: the new site has other entries")
        journal.verify()
        sent = journal.head.index - journal.base.index
    mib = RunDir(run_dir).journal.stat().st_size / 2**20
    return Row(
        name,
        state.head.index + 1,
        here,
        mib,
        verify_s,
        state_s,
        ls_s,
        ls_mib,
        back_s,
        back_mib,
        joins_s,
        joins_mib,
        sent,
    )


@contextlib.contextmanager
def _agent(
    keys: Path, site: str, run_dir: Path, leader: str, listen: str, *, leads: bool
) -> Generator[subprocess.Popen[bytes]]:
    config = AgentConfig(
        leader=leader,
        keys=str(keys / site),
        run_dir=str(run_dir),
        listen=listen,
        lead=leads,
        terms=LeaderSettings(snapshot_s=0),
    )
    process = subprocess.Popen(config.command())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _answers(at: str, keys: Path) -> None:
    """Until the leader's agent says who is there."""
    own, end = Keys.load(str(keys / "b")), time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, TimeoutError):
            if not (await ask(Address.parse(at), own, MembersAsked(), LeaderAnswer)).problem:
                return
        await asyncio.sleep(0.02)
    raise AssertionError("the leader's agent does not answer")


def _head(run_dir: Path) -> int:
    if not RunDir(run_dir).journal.exists():
        return -1
    try:
        with contextlib.closing(SqliteJournal(RunDir(run_dir).journal, read_only=True)) as journal:
            return journal.head.index
    except NoJournalError:  # it is being made
        return -1


def _most_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024


def _most_of_children(command: list[str]) -> float:
    """Of one more run: what it takes is the most of a process of its own."""
    measure = "import resource,subprocess,sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
    measure += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    ran = subprocess.run([sys.executable, "-c", measure, *command], capture_output=True, text=True, check=True)
    return int(ran.stdout) / 1024


def before(folder: Path) -> tuple[float, float]:
    """Seconds to read all of BEFORE entries, as each reader did, and to append them one by one, as a new site did."""
    text = write(folder / "before", BEFORE, kept=False)
    with contextlib.closing(SqliteJournal(RunDir(folder / "before").journal, read_only=True)) as journal:
        began = time.monotonic()
        if RunState.of(journal.read()).text != text:
            raise AssertionError("the entries say another state")
        read_s = time.monotonic() - began
        (folder / "one").mkdir()
        with contextlib.closing(SqliteJournal(RunDir(folder / "one").journal)) as other:
            began = time.monotonic()
            for entry in journal.read():
                other.append(entry, other.head)
            return read_s, time.monotonic() - began


def report(rows: list[Row], read_s: float, append_s: float, conditions: Conditions) -> str:
    """The result, for people."""
    lines = [
        "# What a long history costs an elastic run",
        "",
        *conditions.lines(),
        load_at_end(),
        f"- {FRAGMENTS} fragments, {len(SITES)} sites; snapshots every {SNAPSHOT_EVERY:,} entries. Both journals are "
        "verified first; a new site's, too",
        "",
        f"| | {' | '.join(row.name for row in rows)} |",
        f"|---|{'---:|' * len(rows)}",
    ]
    told: list[tuple[str, Callable[[Row], str]]] = [
        ("entries of history", lambda row: f"{row.entries:,}"),
        ("entries in the file", lambda row: f"{row.here:,}"),
        ("file, MiB", lambda row: f"{row.mib:.0f}"),
        ("to check the chain, in process, s", lambda row: f"{row.verify_s:.1f}"),
        ("what it says, in process, s", lambda row: f"{row.state_s:.2f}"),
        ("`geocomm members ls`, s (wanted: 1)", lambda row: f"{row.ls_s:.2f}"),
        ("its memory, MiB (wanted: 100)", lambda row: f"{row.ls_mib:.0f}"),
        ("leader's agent, from its start to its answer, s (wanted: 2)", lambda row: f"{row.back_s:.2f}"),
        ("its memory, MiB (wanted: 100)", lambda row: f"{row.back_mib:.0f}"),
        ("a new site, from its start until it has the entries, s (wanted: 10)", lambda row: f"{row.joins_s:.2f}"),
        ("its memory, MiB (wanted: 100)", lambda row: f"{row.joins_mib:.0f}"),
        ("entries that it was sent, after a state", lambda row: f"{row.sent:,}"),
    ]
    lines += [f"| {name} | {' | '.join(tell(row) for row in rows)} |" for name, tell in told]
    lines += [
        "",
        f"As it was before, at {BEFORE:,} entries in the same process: to read all of them took {read_s:.1f} s. "
        "`members ls` and an agent did that, some parts of it several times. To append them one by one, as a new site "
        f"did in its event loop, took {append_s:.1f} s.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=2_000_000)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    conditions = Conditions.here(" ".join(["python", "benchmarks/bench_journal_age.py", *sys.argv[1:]]))
    with (
        tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/tmp")) as made,
        site_keys([*SITES, "d"], None, secure=True) as keys,
    ):
        if keys is None:
            raise AssertionError("no keys were made")
        folder, rows, text = Path(made), list[Row](), ""
        read_s, append_s = before(folder)
        journals = [("a young run", YOUNG, False), ("no snapshot kept, nothing cut", options.entries, False)]
        for name, count, kept in [*journals, ("snapshots kept", options.entries, True)]:
            run_dir = folder / name.replace(" ", "-")
            text = write(run_dir, count, kept=kept)
            rows.append(measured(name, run_dir, keys, text))
            text = report(rows, read_s, append_s, conditions)
            if options.write:
                RESULT.write_text(text)
        print(text)


if __name__ == "__main__":
    main()
