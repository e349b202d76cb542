"""What `geocomm run --elastic` is on a node: it starts the site's agent and its torchrun, and starts them again.

The two fail apart. An agent that dies is back within a second, and the ranks train on meanwhile. Ranks that die end
their torchrun. They start again from the run folder: at once where a frame of theirs has counted, else after 1, 2, 4
... 60 s. Where that takes seconds, the site is away. After SIGTERM the agent says that the site leaves, and then the
ranks end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.bad_input import EXIT_BAD_INPUT
from geocomm.core.child_processes import ending_with_this, send_signal
from geocomm.core.environment import AGENT_OF_FIRST_NODE
from geocomm.core.file_systems import FULL
from geocomm.core.message_log import log
from geocomm.core.patience import Waiting, comes, for_ever
from geocomm.core.records import Record, line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.agent_process import AT_ONCE, LAST_STEPS_S, LEAVE, TOLD_BY, AgentConfig
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.journal import NoJournalError, RunReader
from geocomm.elastic.journal.run_state import SiteRecord, Standing
from geocomm.elastic.rank_starts import RankStarts
from geocomm.group.rendezvous.run_at_hub import environment_of_site
from geocomm.group.rendezvous.to_collector import CollectorConfig
from geocomm.security.key_folder import Keys

AGENT_AGAIN_S = 1.0
"""From one start of the agent to the next, at least."""
LAST_OFFERS_S = 5.0
"""What a site has offered by the end of LAST_STEPS_S may still count for this time; then its ranks end."""
_BESIDE_AGAIN_S = 10.0
_LEAVE_LIMIT_S = 40.0
_END_LIMIT_S = 20.0
"""For a process that has nothing more to do, on a busy machine: the collector waits for what was reported last."""
_LOOK_S = 0.25
_DISK_PAUSE_S = 5.0


@dataclass(frozen=True)
class SiteJob:
    """The ranks of a site."""

    arguments: tuple[str, ...]
    """The arguments of torchrun."""
    nodes: int = 1
    """The site's number of nodes."""
    node_rank: int = 0
    """This node's number. The agent is on the first one, with the run folder."""
    hub: str | None = None
    """Where the nodes of the site meet, host:port: with more than one."""

    def command(self, run_dir: str) -> list[str]:
        """What starts them on this node. run_dir: on the first node; its collector gets the reports of all."""
        if self.nodes == 1:
            return [sys.executable, "-u", "-m", "geocomm.elastic.torchrun_of_site", *self.arguments]
        meet = ["--hub", str(self.hub), "--telemetry", run_dir]
        nodes = ["--nnodes", str(self.nodes), "--node-rank", str(self.node_rank)]
        return [sys.executable, "-m", "geocomm", "run", *meet, "--", *nodes, *self.arguments]


class PublishConfig(Record):
    """How the process is started that publishes the weights of the run."""

    place: str
    """The stream's folder or URL."""
    dtype: str
    """torch's name."""
    readers: tuple[str, ...] | None
    """See `WeightPublisher`."""
    run_dir: str = ""
    keys: str = ""
    """The site's folder, which signs."""

    def command(self) -> list[str]:
        """What runs it."""
        return [sys.executable, "-m", "geocomm.elastic.weights_process", line_of(self)]


class Supervisor:
    """Runs a site, on this node, until its part in the run is over."""

    def __init__(self, agent: AgentConfig, job: SiteJob, keys: Keys, publish: PublishConfig | None = None) -> None:
        """agent: how the agent is started. Its folder is there already. publish: the run's weights, from here."""
        self._agent_config = agent
        self._job = job
        self._site = keys.identity.site
        run_dir = Path(agent.run_dir)
        files = RunDir(run_dir)
        self._journal = files.journal
        self._starts = RankStarts(files)
        self._run = RunReader(self._journal)
        self._environment = os.environ | environment_of_site(keys)
        self._environment |= {"GEOCOMM_RUN_DIR": str(run_dir.resolve()), "GEOCOMM_ONE_SITE": "1"}
        self._environment["GEOCOMM_AGENT"] = str(files.agent_socket)
        self._environment["GEOCOMM_COLLECTOR"] = str(files.rank_socket)
        collector = CollectorConfig(run_dir, keys.folder, elastic=True)
        self._beside = {"the collector of telemetry": collector.command(os.getpid())}
        """Processes that agent and ranks do without, by what they are."""
        if publish is not None:
            told = publish.model_copy(update={"run_dir": str(run_dir), "keys": str(keys.folder.resolve())})
            self._beside["what publishes the weights"] = told.command()
        self._running_beside: dict[str, asyncio.subprocess.Process] = {}
        # torchrun's own meeting point is this machine, which says nothing of where other sites find it.
        self._environment.setdefault("GEOCOMM_ADDRESS", ",".join(agent.own_hosts))
        self._agent: asyncio.subprocess.Process | None = None
        self._ranks: asyncio.subprocess.Process | None = None
        self._leaving = asyncio.Event()
        self._ended_by: signal.Signals | None = None
        """The signal that came before the site had joined the run."""
        self._parting: asyncio.Task[None] | None = None
        self._agent_told = False
        """To leave."""

    async def run(self) -> int:
        """Exit status of the command: 0, the site has left; 2, the run does not take it in; 128 + the signal that came
        before the site had joined; else torchrun's last."""
        with self._signals():
            ranks = asyncio.create_task(self._keep_ranks())
            agent = asyncio.create_task(self._keep_agent())
            beside = [
                asyncio.create_task(for_ever(f"what keeps {what}", functools.partial(self._keep_beside, what), log))
                for what in self._beside
            ]
            try:
                await asyncio.wait([ranks, agent], return_when=asyncio.FIRST_COMPLETED)
                if not ranks.done() and agent.result() == 0 and self._parting is None:
                    await asyncio.wait([ranks])  # they have finished, and are at their last lines
                if not ranks.done() and self._parting is not None:
                    await self._parting
                if not ranks.done():  # the agent has said why this site cannot take part
                    self._leaving.set()
                    await self._end(self._ranks, _LEAVE_LIMIT_S)
                    status = agent.result()
                else:
                    if not agent.done():
                        self._tell_agent_to_leave()
                        await asyncio.wait([agent])  # it sees to its own end, and leads on where others need it
                    status = ranks.result()
                return _as_exit_status(status if self._ended_by is None else -self._ended_by)
            finally:
                for task in (ranks, agent, *beside, self._parting):
                    if task is not None:
                        task.cancel()
                await asyncio.gather(ranks, agent, return_exceptions=True)
                for process in (self._ranks, self._agent, *self._running_beside.values()):
                    await self._end(process, _END_LIMIT_S)

    @contextlib.contextmanager
    def _signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, self._leave, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _leave(self, number: signal.Signals) -> None:
        """The ranks make their last steps count, and the site leaves; a second time, at once."""
        if self._leaving.is_set():
            _signal(self._agent, AT_ONCE)
            _signal(self._ranks, signal.SIGTERM)
        else:
            if self._known() is None:
                self._ended_by = number
                log("this site ends: it was still loading, and had not joined the run")
            self._leaving.set()
            self._tell_agent_to_leave()
            self._parting = asyncio.create_task(self._part())

    def _tell_agent_to_leave(self) -> None:
        if not self._agent_told:
            self._agent_told = True
            _signal(self._agent, LEAVE)

    async def _part(self) -> None:
        """End the ranks once the site has left, those too that do not hear SIGTERM. A leader's agent goes on for the
        others."""
        agent = self._agent
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STEPS_S + LAST_OFFERS_S):
                while agent is not None and agent.returncode is None and not self._has_left():
                    await asyncio.sleep(_LOOK_S)
        await self._end(self._ranks, _LEAVE_LIMIT_S)

    def _has_left(self) -> bool:
        return (known := self._known()) is not None and known.standing is Standing.LEFT

    def _known(self) -> SiteRecord | None:
        """This site, as far as the journal here says; None: it is not of the run, or the journal is being made, or is
        damaged, which the agent mends or tells."""
        with contextlib.suppress(NoJournalError, BadLineError):
            if self._journal.exists():
                return self._run.look(lambda run: run.sites.get(self._site))
        return None

    async def _keep_agent(self) -> int:
        """Start the agent, and again when it has died. Returns once its part is over."""
        config, clock = self._agent_config, asyncio.get_running_loop().time
        while True:
            began = clock()
            with _held_back(*TOLD_BY):  # the agent lets them come once it can leave in good order
                # At this one's death: SIGTERM would have the site leave.
                self._agent = await self._start(config.command(), signal.SIGKILL, held_back=TOLD_BY)
            if leaves := self._agent_told:  # there was none to hear it, or it did not live to do it
                _signal(self._agent, LEAVE)
            status = await self._agent.wait()
            config = config.model_copy(update={"again": True})
            if status in (0, EXIT_BAD_INPUT) or leaves:
                return status
            log(f"the agent of this site has ended ({_told(status)}); the ranks train on, and it starts again")
            await asyncio.sleep(max(0.0, began + AGENT_AGAIN_S - clock()))

    async def _keep_beside(self, what: str) -> None:
        """Start a process, and again when it has died."""
        while True:
            self._running_beside[what] = process = await self._start(self._beside[what])
            status = await process.wait()
            log(f"{what} has ended ({_told(status)}); it starts again in {_BESIDE_AGAIN_S:g} s")
            await asyncio.sleep(_BESIDE_AGAIN_S)

    async def _keep_ranks(self) -> int:
        """Start the ranks, and again when they have died. Returns torchrun's status once they are to start no more."""
        while True:
            self._starts.begins(self._counted())
            status = await self._run_ranks()
            if status in (0, EXIT_BAD_INPUT) or self._leaving.is_set():
                return 0 if self._leaving.is_set() else status
            if (pause_s := self._starts.ended(self._counted())) is None:
                log(
                    f"the ranks of this site have ended {self._starts.fruitless} times without one frame that counted; "
                    f"the last error is above. The site gives up; what it has is in {self._agent_config.run_dir}"
                )
                return status
            when = f"in {pause_s:.1f} s" if pause_s else "at once"
            log(f"the ranks of this site have ended ({_told(status)}); they start again {when}")
            if await comes(self._leaving, pause_s):
                return 0

    async def _run_ranks(self) -> int:
        """torchrun, once; its exit status."""
        self._ranks = await self._start(self._job.command(self._agent_config.run_dir))
        if self._leaving.is_set():  # it may have missed its end
            _signal(self._ranks, signal.SIGTERM)
        return await self._ranks.wait()

    def _counted(self) -> int:
        """Rounds that listed a frame of this site."""
        return 0 if (known := self._known()) is None else known.rounds

    async def _start(
        self,
        command: Sequence[str],
        at_death: signal.Signals = signal.SIGTERM,
        held_back: Sequence[signal.Signals] = (),
    ) -> asyncio.subprocess.Process:
        """A child of this process, to which the kernel sends `at_death` once this one has ended. What is held back here
        for one child is not for another that starts meanwhile."""
        return await asyncio.create_subprocess_exec(
            *ending_with_this(command, at_death, held_back), env=self._environment, start_new_session=True
        )

    async def _end(self, process: asyncio.subprocess.Process | None, limit_s: float) -> None:
        """Have it end; with force after `limit_s`."""
        if process is None or process.returncode is not None:
            return
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await process.wait()
                return
        log(f"process {process.pid} of this site has not ended within {limit_s:g} s of SIGTERM, and is killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def run_elastic(config: AgentConfig, job: SiteJob, keys: Keys, publish: PublishConfig | None = None) -> int:
    """Run this site, on this node, to the end of its part; the exit status. StoreError for a folder that cannot be
    used.

    config: of the site's agent, which is on the first node. On another node `run_dir`, which may be empty, is for what
    its ranks keep.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as in `run_at_hub`
    run_dir = Path(config.run_dir).resolve()
    if not config.run_dir or job.node_rank > 0:
        environment = os.environ | environment_of_site(keys)
        environment |= {"GEOCOMM_ONE_SITE": "1", "GEOCOMM_AGENT": AGENT_OF_FIRST_NODE}
        if config.run_dir:
            environment["GEOCOMM_RUN_DIR"] = str(run_dir)
        command = job.command("telemetry")  # kept by the first node
        os.execvpe(command[0], command, environment)
    _wait_for_folder(run_dir)
    return asyncio.run(Supervisor(config.model_copy(update={"run_dir": str(run_dir)}), job, keys, publish).run())


@contextlib.contextmanager
def _held_back(*numbers: signal.Signals) -> Generator[None]:
    """They come to this process after this context; to one that is started inside, once that wants them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def _wait_for_folder(run_dir: Path) -> None:
    """Have the run folder. StoreError for one that cannot be used; a disk that is full is awaited."""
    waiting = Waiting(log)
    while True:
        try:
            FragmentStore(run_dir)
            return
        except OSError as error:
            if error.errno not in FULL:
                raise
            waiting.tell(lambda error=error: f"the disk of {run_dir} ({error.strerror}): free room there")
            time.sleep(_DISK_PAUSE_S)


def _signal(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
    if process is not None:
        send_signal(process, number)


def _told(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _as_exit_status(status: int) -> int:
    return status if status >= 0 else 128 - status
