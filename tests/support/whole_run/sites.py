"""A site of a simulated run: its machine, its supervisor, its folder."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
from collections.abc import Generator
from contextvars import Context
from typing import TYPE_CHECKING

from geocomm.core.run_dir import RunDir
from geocomm.elastic.agent_process import LAST_STEPS_S, AgentConfig
from geocomm.elastic.journal.entries import BadLineError, Entry
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.rank_starts import RankStarts
from geocomm.elastic.supervisor import LAST_OFFERS_S
from support.whole_run.agents import AgentEnd, run_process
from support.whole_run.etcd import SERVER
from support.whole_run.machines import PORT, Machine, Process
from support.whole_run.ranks import Rank

if TYPE_CHECKING:
    from support.whole_run.whole_run import WholeRun


_KILLED_PAUSE_S = 1.0


class Site:
    """A site: its machine, its supervisor, its folder."""

    def __init__(self, run: WholeRun, machine: Machine, step_s: float) -> None:
        self._run, self.machine, self._step_s = run, machine, step_s
        self.run_dir = run.folder / machine.name
        self.agent: Process | None = None
        self.ranks: asyncio.Task[str] | None = None
        self.rank: Rank | None = None
        self.up_since = math.inf
        self.lost = False
        """For good."""
        self._supervising: asyncio.Task[None] | None = None
        self._parting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._starts_then = False
        self.is_leaving = False
        """It was told to."""
        self.ranks_wait = False
        """Its ranks do not start."""
        self.left = False
        """Its agent has ended in good order."""
        self.fills_etcd = False
        """It is started with --lead."""
        self._hub = run.hub
        self._read: tuple[RunState, list[Entry]] | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        """The machine begins, with what is on its disk; once it has ended, if it is just at that."""
        if self._stopping is not None:
            self._starts_then = True
            return
        self.machine.up = True
        self.up_since = self._run.now
        self.is_leaving = self.left = False
        self._supervising = asyncio.get_running_loop().create_task(self._supervise(), context=Context())

    async def stop(self) -> None:
        """The machine ends, also where nobody waits for it."""
        self.machine.up = self._starts_then = False
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), context=Context())
            self._stopping.add_done_callback(self._has_stopped)
        await asyncio.shield(self._stopping)

    def _has_stopped(self, _: asyncio.Task[None]) -> None:
        self._stopping = None
        if self._starts_then:
            self.start()

    async def _stop(self) -> None:
        for task in (self._supervising, self._parting):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await self.kill_ranks()
        if self.agent is not None:
            await self.agent.kill()

    def tell_to_leave(self) -> None:
        """SIGTERM comes to its supervisor; a second time: it ends at once. See `Supervisor._leave`."""
        again, self.is_leaving = self.is_leaving, True
        if self.agent is not None:
            self.agent.leaving.set()
        work = self.kill_ranks() if again else self._part()
        self._parting = asyncio.get_running_loop().create_task(work, context=Context())

    async def _part(self) -> None:
        """As `Supervisor._part`."""
        agent, end = self.agent, self._run.now + LAST_STEPS_S + LAST_OFFERS_S
        while self._run.now < end and agent is not None and agent.alive:
            known = self.state()[0].sites.get(self.name)
            if known is not None and known.standing is Standing.LEFT:
                break
            await asyncio.sleep(0.25)
        await self.kill_ranks()

    async def has_left_within(self, limit_s: float) -> bool:
        """Whether its agent ends in good order before that, or its machine does."""
        end = self._run.now + limit_s
        while (parts := self.is_leaving and self.machine.up and not self.left) and self._run.now < end:
            await asyncio.sleep(0.5)
        return not parts

    @property
    def is_new(self) -> bool:
        """Its folder is empty, or has nothing of the run yet."""
        return not self.machine.is_damaged and self.state()[0].genesis is None

    async def kill_ranks(self) -> None:
        """They end without a word."""
        if self.ranks is not None:
            self.ranks.cancel()
            await asyncio.gather(self.ranks, return_exceptions=True)

    async def kill_agent(self) -> None:
        """It ends without a word."""
        if self.agent is not None:
            await self.agent.kill()

    async def _supervise(self) -> None:
        if self.is_new:  # it needs the address of who leads now
            self._hub = self._run.hub
        await asyncio.gather(self._keep_agent(), self._keep_ranks())

    async def _keep_agent(self) -> None:
        """As `Supervisor._keep_agent`."""
        again = False
        while True:
            config = self._config(again)
            self.agent = process = Process(self.machine, f"agent of {self.name}")
            if told_before := self.is_leaving:
                process.leaving.set()
            ending = process.start(run_process(process, config))
            try:
                end: AgentEnd = await asyncio.shield(ending)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                end = AgentEnd(-9, "killed")
            process.alive = False
            for stream in [*process.streams]:
                stream.reset()
            if end.is_error:
                raise self._run.broke(f"{self.name}: an error of the agent: {end.why}")
            self._run.say(f"{self.name}: the agent has ended with {end.status} {end.why}")
            if end.status == 0 or told_before:
                self.left = True
                return
            if end.status == 2:
                raise self._run.broke(f"{self.name} is stopped: {end.why}")
            again = True
            await asyncio.sleep(1.0)

    def _config(self, again: bool) -> AgentConfig:
        config = AgentConfig(keys="/keys", run_dir=str(self.run_dir), terms=self._run.terms, again=again)
        if self._run.with_etcd:
            at = f"{self.machine.host}:{PORT}"
            changes = {"journal": f"etcd://{SERVER}/run", "address": at, "lead": self.fills_etcd}
        else:
            changes = {"leader": f"{self._hub.host}:{PORT}"}
        return config.model_copy(update=changes)

    async def _keep_ranks(self) -> None:
        """As `Supervisor._keep_ranks`."""
        starts = RankStarts(RunDir(self.run_dir))
        while not self.left and not self.is_leaving:
            await asyncio.sleep(self._run.chance.uniform(0.5, 2))
            while self.ranks_wait:
                await asyncio.sleep(0.5)
            self.rank = rank = Rank(
                self._run.world,
                self.machine,
                str(self.run_dir),
                self._run.chance,
                self._run.registry,
                self._step_s,
                self._run.rate,
                self._run.reduce,
                self.name == self._run.liar,
            )
            starts.begins(self._rounds())
            self.ranks = asyncio.get_running_loop().create_task(rank.run(), context=Context())
            try:
                why = await asyncio.shield(self.ranks)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                why = "killed"
            except Exception as error:
                raise self._run.broke(f"{self.name}: an error of the rank: {error!r}") from error
            self._run.say(f"{self.name}: the ranks have ended: {why}")
            if self.is_leaving:
                return
            # What is killed here would go on: only ranks that end by themselves take a start.
            pause_s = _KILLED_PAUSE_S if why == "killed" else starts.ended(self._rounds())
            if pause_s is None:
                raise self._run.broke(f"{self.name} gives up: {why}")
            await asyncio.sleep(pause_s)

    def _rounds(self) -> int:
        """As `Supervisor._counted`."""
        known = self.state()[0].sites.get(self.name)
        return 0 if known is None else known.rounds

    def state(self) -> tuple[RunState, list[Entry]]:
        """What its journal says, until that is asked again; nothing, where the disk has damaged it."""
        with self._journal() as journal:
            if journal is None:
                return RunState(), []
            known = None if self._read is None else self._read[0].head
            if known is None or known.index < journal.base.index or journal.hash_at(known.index) != known.hash:
                self._read = journal.state(), list(journal.read(journal.base.index + 1))
            assert self._read is not None
            state, entries = self._read
            for entry in journal.read(state.head.index + 1):
                state.apply(entry)
                entries.append(entry)
            return state, entries
        return RunState(), []

    @property
    def first(self) -> int:
        """The index of the first entry in its journal."""
        with self._journal() as journal:
            return 0 if journal is None else journal.base.index + 1
        return 0

    @contextlib.contextmanager
    def _journal(self) -> Generator[SqliteJournal | None]:
        path = RunDir(self.run_dir).journal
        if not path.exists() or self.machine.is_damaged:
            yield None
            return
        try:
            with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
                yield journal
        except (NoJournalError, BadLineError, sqlite3.Error):
            if not self.machine.was_damaged:
                raise


def _is_cancelled() -> bool:
    """Whether this task of a supervisor is: what it waits for may be killed at the same time."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
