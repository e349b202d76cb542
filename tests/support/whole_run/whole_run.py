"""A history of a whole elastic run under faults, and what must hold in it.

Safety: one chain, whose beginnings all journals are; a step counts once for each fragment; who offers has the state of
the journal; equal journals give equal states. Liveness: once all faults are over, within PEACE_S every site that is up
counts, is at the head, and each fragment goes on; a snapshot is kept. No false stop: no site is refused, stopped or
repaired that did nothing wrong. And no error of the program, ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.core.message_log import logger
from geocomm.elastic.agent_process import AgentConfig
from geocomm.elastic.fragment_store import FRAGMENTS as FRAGMENTS_FOLDER
from geocomm.elastic.journal.entries import AnyRound, Entry
from geocomm.elastic.journal.journal import FILE_NAME, SqliteJournal
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from geocomm.elastic.questions import LeaderAnswer, PromotionAnswer, PromotionAsked, RemovalAsked
from geocomm.elastic.snapshots import FOLDER, MANIFEST_FILE
from geocomm.wire.greeting import Purpose
from support.whole_run.agents import AgentEnd, ask, ask_for_frame, run_process, simulated
from support.whole_run.etcd import SERVER, EtcdModel
from support.whole_run.faults import BY_HAND, FAULTS, LASTING, LASTING_WITH_ETCD, OF_ETCD
from support.whole_run.learning_rates import any_schedule
from support.whole_run.machines import PORT, Machine, Process, Room, World, current_or_none, task_of_process
from support.whole_run.ranks import FRAGMENTS, Rank, Registry, frames_of
from support.whole_run.virtual_loop import StuckError, VirtualLoop

TERMS = LeaderSettings(attempt_s=12.0, lost_s=20.0, lost_said_s=12.0, snapshot_s=15.0)
"""Those of a real run, but for what takes minutes there."""

QUIET_S, FAULTS_S, PEACE_S = 8.0, 36.0, 150.0
WORD_S = 30.0
"""A word is due when something has kept a site waiting for 10 s; a dial in vain takes 15 s, and there may be two."""
CROWD_COMES_AT = 12
CROWD_S = 60.0
_EVERY_S = 3.0
_FOLLOWS_S = 20.0
_HEADLESS_S = 40.0
"""A link that is silent is given up after 9 s, a dial after 15."""
_IDLE_S = 45.0
_STRANGE = 1_000_000
"""A version that no run here comes to."""


@dataclass
class History:
    """How a simulated run went."""

    seed: int
    broken: str = ""
    """What did not hold; empty: nothing."""
    faults: Counter[str] = field(default_factory=Counter[str])
    entries: int = 0
    seconds: float = 0.0
    """Of virtual time."""
    log: list[str] = field(default_factory=list[str])
    crowd_s: float = 0.0
    """Within which a crowd of newcomers was ready."""
    told_liars: set[str] = field(default_factory=set[str])
    """Sites that are said to average wrong."""
    digest: str = ""
    """Of all that was said, with its times: over the lines, by ranks, and to the log."""


@dataclass(frozen=True)
class _Place:
    """Where a run was."""

    index: int
    versions: list[int]


class _BrokenError(AssertionError):
    pass


class _Site:
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
        self.left = False
        self.fills_etcd = False
        """It is started with --lead."""
        self._hub = run.hub
        self._read: tuple[RunState, list[Entry]] | None = None

    @property
    def name(self) -> str:
        return self.machine.name

    def start(self) -> None:
        """The machine begins, with what is on its disk. An empty folder needs the address of who leads now."""
        self.machine.up = True
        self.up_since = self._run.now
        if not (self.run_dir / FILE_NAME).exists():
            self._hub = self._run.hub
        self._supervising = asyncio.get_running_loop().create_task(self._supervise(), context=Context())

    async def stop(self) -> None:
        """The machine ends."""
        self.machine.up = False
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.gather(self._supervising, return_exceptions=True)
        await self.kill_ranks()
        if self.agent is not None:
            await self.agent.kill()

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
        await asyncio.gather(self._keep_agent(), self._keep_ranks())

    async def _keep_agent(self) -> None:
        """As `Supervisor._keep_agent`."""
        again = False
        while True:
            config = self._config(again)
            self.agent = process = Process(self.machine, f"agent of {self.name}")
            ending = process.start(run_process(process, config))
            try:
                end: AgentEnd = await asyncio.shield(ending)
            except asyncio.CancelledError:
                if not ending.cancelled():
                    raise  # this supervisor is
                end = AgentEnd(-9, "killed")
            process.alive = False
            for stream in [*process.streams]:
                stream.reset()
            if end.is_error:
                raise self._run.broke(f"{self.name}: an error of the agent: {end.why}")
            self._run.say(f"{self.name}: the agent has ended with {end.status} {end.why}")
            if end.status == 0:
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
        fruitless, pause_s = 0, 1.0
        while not self.left:
            await asyncio.sleep(self._run.chance.uniform(0.5, 2))
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
            self.ranks = asyncio.get_running_loop().create_task(rank.run(), context=Context())
            try:
                why = await asyncio.shield(self.ranks)
            except asyncio.CancelledError:
                if not self.ranks.cancelled():
                    raise
                why = "killed"
            except Exception as error:
                raise self._run.broke(f"{self.name}: an error of the rank: {error!r}") from error
            self._run.say(f"{self.name}: the ranks have ended: {why}")
            if rank.rounds_applied:
                fruitless, pause_s = 0, 0.0
            fruitless += 1
            if fruitless >= 5 and why != "killed":
                raise self._run.broke(f"{self.name} gives up: {why}")
            await asyncio.sleep(pause_s)
            pause_s = min(max(1.0, 2 * pause_s), 60.0)

    def state(self) -> tuple[RunState, list[Entry]]:
        """What its journal says, until that is asked again."""
        path = self.run_dir / FILE_NAME
        if not path.exists():
            return RunState(), []
        with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
            known = None if self._read is None else self._read[0].head
            if known is None or known.index < journal.base.index or journal.hash_at(known.index) != known.hash:
                self._read = journal.state(), list(journal.read(journal.base.index + 1))
            assert self._read is not None
            state, entries = self._read
            for entry in journal.read(state.head.index + 1):
                state.apply(entry)
                entries.append(entry)
            return state, entries

    @property
    def first(self) -> int:
        """The index of the first entry in its journal."""
        path = self.run_dir / FILE_NAME
        if not path.exists():
            return 0
        with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
            return journal.base.index + 1


class WholeRun:
    """One history. sites: how many; None: 2 to 5. faults: see FAULTS; None: all of the kind. lasting: see LASTING;
    None: one of them. rate: the learning rate by the run's step. reduce: "all" or "aggregator"; None: one of them.
    with_etcd: that says who leads. liar: a site that averages wrong. crowd: so many sites more come at once, when the
    first faults might."""

    def __init__(
        self,
        seed: int,
        *,
        sites: int | None = None,
        faults: Mapping[str, float] | None = None,
        lasting: str | None = None,
        terms: LeaderSettings = TERMS,
        rate: Callable[[int], float] | None = None,
        reduce: str | None = None,
        with_etcd: bool = False,
        liar: str = "",
        crowd: int = 0,
        log: bool = False,
    ) -> None:
        self.with_etcd, self.liar = with_etcd, liar
        self.reduce = reduce or ("aggregator" if seed % 2 else "all")
        all_kinds = {kind: often for kind, often in FAULTS.items() if kind not in BY_HAND} | OF_ETCD
        all_faults = all_kinds if with_etcd else FAULTS
        self._seed, self._faults, self.terms, self._logs = seed, all_faults if faults is None else faults, terms, log
        self.chance = random.Random(seed)
        count = sites or self.chance.randint(2, 5)
        self._names = list("abcde"[:count]) + [f"crowd{number:02}" for number in range(crowd)]
        self._first = self._names[:count]
        self.rate = rate or any_schedule(self.chance)
        kinds = LASTING_WITH_ETCD if with_etcd else LASTING
        drawn = self.chance.choices([*kinds], [*kinds.values()])[0]
        self._lasting = drawn if lasting is None else lasting
        self._skipped: _Site | None = None
        self._words: dict[str, float] = {}
        """By site: when its agent last said something, or somebody something of it."""
        self.registry = Registry()
        self.happened = hashlib.blake2b(digest_size=16)
        self.history = History(seed)
        self._restoring = False
        """Etcd has lost entries, and a person has them given to it."""
        self._broken: asyncio.Future[None]

    def run(self) -> History:
        """Let it happen."""
        loop = VirtualLoop(self.chance)
        loop.set_task_factory(task_of_process)  # type: ignore[arg-type]
        self.folder = Path(tempfile.mkdtemp(prefix="whole-run-", dir="/dev/shm"))
        try:
            with self._capturing(loop):
                loop.run_until_complete(self._happen(loop))
        except _BrokenError as error:
            self.history.broken = str(error)
        except StuckError as error:
            self.history.broken = f"stuck: {error}"
        finally:
            self.history.seconds = loop.time()
            self.history.digest = self.happened.hexdigest()
            tasks = sorted(asyncio.all_tasks(loop), key=hash)
            for task in tasks:
                task.cancel()
            if tasks:
                with contextlib.suppress(StuckError):
                    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        return self.history

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self._loop.time()

    def say(self, what: str) -> None:
        """To the history's log."""
        process = current_or_none()
        for name in self._names:
            by_it = what.startswith(f"{name}: ") or (process is not None and process.machine.name == name)
            if by_it or f"site {name}" in what or self.world.machines[name].host in what:
                self._words[name] = self._loop.time()
        if process is not None and "only one that leads" in what and f"same run, at {process.machine.host}:" in what:
            self.registry.broken.append(f"{process.machine.name} takes itself for another leader")
        if "averages no more" in what:
            self.history.told_liars.add(what.split(":")[0])
            if not what.startswith(f"{self.liar}: ") or not self.liar:
                self.registry.broken.append(f"who averages right is called a liar: {what}")
        line = f"{self._loop.time():8.3f} {what}".replace(str(self.folder), "")
        self.happened.update(line.encode())
        if self._logs:
            self.history.log.append(line)
            print(line, flush=True)

    def _heard(self, content: bytes) -> None:
        self.happened.update(b"%r" % self._loop.time())
        self.happened.update(content)

    def broke(self, what: str) -> _BrokenError:
        """The history ends."""
        error = _BrokenError(what)
        if not self._broken.done():
            self._broken.set_exception(error)
        return error

    @contextlib.contextmanager
    def _capturing(self, loop: VirtualLoop) -> Generator[None]:
        self._loop = loop
        run = self

        class Handler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                run.say(record.getMessage())

        log, handler = logger(), Handler()
        before, log.propagate = log.handlers[:], False
        log.handlers[:] = [handler]
        try:
            yield
        finally:
            log.handlers[:], log.propagate = before, True

    async def _happen(self, loop: VirtualLoop) -> None:
        self._broken = loop.create_future()
        self.world = World(self.chance, self._names, self._heard)
        self.hub = self.world.machines["a"]
        self.etcd = EtcdModel(self.chance, loop.time)
        self.sites = {
            name: _Site(self, machine, self.chance.uniform(0.3, 1.2)) for name, machine in self.world.machines.items()
        }
        with simulated(self.world, self.folder, self.chance, loop.time, self.registry.follows, self.etcd):
            work = loop.create_task(self._work())
            try:
                await asyncio.wait([work, self._broken], return_when=asyncio.FIRST_COMPLETED)
                for one in (self._broken, work):
                    if one.done():
                        one.result()
            finally:
                work.cancel()
                self._broken.cancel()
                await asyncio.gather(work, return_exceptions=True)
                for site in self.sites.values():
                    await site.stop()

    async def _work(self) -> None:
        for name in self._first:
            self._loop.call_later(self.chance.uniform(0, 3), self.sites[name].start)
        restless = asyncio.create_task(self._end_leaders()) if self._lasting == "restless" else None
        try:
            await asyncio.sleep(QUIET_S)
            if len(self._names) > len(self._first):
                await self._let_crowd_come()
            if self._faults:
                await self._let_faults_come()
            await self._peace()
        finally:
            if restless is not None:
                restless.cancel()
                await asyncio.gather(restless, return_exceptions=True)

    # ---- a crowd

    async def _let_crowd_come(self) -> None:
        """Once a state takes fewer bytes than the frames since the beginning, all others join at once."""
        while min(self._newest()[0].versions, default=0) < CROWD_COMES_AT:
            await asyncio.sleep(1)
        crowd, began = [site for name, site in self.sites.items() if name not in self._first], self._loop.time()
        for site in crowd:
            site.start()
        while self._loop.time() < began + CROWD_S:
            await asyncio.sleep(1)
            state = self._newest()[0]
            if all(site.name in state.live for site in self.sites.values()):
                self.history.crowd_s = self._loop.time() - began
                return
        away = [site.name for site in crowd if site.name not in self._newest()[0].live]
        raise self.broke(f"{len(away)} of {len(crowd)} that came at once are not ready after {CROWD_S:.0f} s")

    # ---- faults

    async def _let_faults_come(self) -> None:
        end = self._loop.time() + FAULTS_S
        under_way: list[asyncio.Task[None]] = []
        while (pause := self.chance.expovariate(1 / _EVERY_S)) < end - self._loop.time():
            await asyncio.sleep(pause)
            kind = self.chance.choices([*self._faults], [*self._faults.values()])[0]
            under_way.append(asyncio.create_task(self._fault(kind)))
        await asyncio.sleep(max(0.0, end - self._loop.time()))
        for task in under_way:
            task.cancel()
        for result in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _fault(self, kind: str) -> None:
        chance, there = self.chance, [site for site in self.sites.values() if site.machine.up]
        if not there:
            return
        site = chance.choice(there)
        self.history.faults[kind] += 1
        self.say(f"---- {kind}: {site.name}")
        match kind:
            case "agent":
                await site.kill_agent()
            case "ranks":
                await site.kill_ranks()
            case "machine":
                await site.stop()
                await asyncio.sleep(chance.uniform(0.5, 25))
                self._start_again(site)
            case "disk":
                others_up = sum(other is not site and other.machine.up for other in self.sites.values())
                if self._restoring or self._etcd_lacks_some() or others_up == 0:
                    return
                leader = self._leader_name()
                if site.name == leader or self.sites[leader].lost:
                    return  # that is what `hub` does
                await site.stop()
                shutil.rmtree(site.run_dir, ignore_errors=True)
                self.registry.terms.pop(site.name, None)
                await asyncio.sleep(chance.uniform(0.5, 25))
                self._start_again(site)
            case "all" | "frames":
                await asyncio.gather(*(one.stop() for one in there))
                for one in there if kind == "frames" else ():
                    for folder in (one.run_dir / FRAGMENTS_FOLDER).glob("*@*/"):
                        shutil.rmtree(folder)
                await asyncio.sleep(chance.uniform(0.5, 10))
                for one in there:
                    self._start_again(one)
            case "line" | "one way" | "uplink":
                await self._cut(kind, site)
            case "slow":
                self.world.lines.more_s[site.name] = self.chance.uniform(0.3, 2)
                self.world.lines.slow[site.name] = self.chance.uniform(1e3, 20e3)
                await asyncio.sleep(self.chance.uniform(5, 30))
                self.world.lines.more_s.pop(site.name, None)
                self.world.lines.slow.pop(site.name, None)
            case "mail":
                site.machine.takes_mail = False
                await asyncio.sleep(self.chance.uniform(5, 40))
                site.machine.takes_mail = True
            case "full":
                site.machine.room = self.chance.choice([Room.FOR_LITTLE, Room.FOR_LITTLE, Room.FOR_NOTHING])
                await asyncio.sleep(self.chance.uniform(1, 20))
                site.machine.room = Room.FOR_ALL
            case "hub":
                await self._lose_leader()
            case "minority":
                await self._leave_minority()
            case "litter":
                self._litter(site)
            case "removal":
                await self._remove_leader(site)
            case "strange frame":
                await self._ask_for_strange_frames(site)
            case "etcd away":
                self.etcd.away += 1
                await asyncio.sleep(chance.uniform(1, 25))
                self.etcd.away -= 1
            case "etcd line":
                self.etcd.cut[site.name] += 1
                await asyncio.sleep(chance.uniform(1, 25))
                self.etcd.cut[site.name] -= 1
            case "etcd doubt":
                self.etcd.doubtful = chance.uniform(0.2, 0.7)
                await asyncio.sleep(chance.uniform(5, 20))
                self.etcd.doubtful = 0.0
            case "etcd backup":
                await self._restore_etcd()
            case "leader":
                await self._part_from_leader()
            case _:
                raise AssertionError(kind)

    def _start_again(self, site: _Site) -> None:
        if not site.machine.up and not site.lost:
            site.start()

    async def _cut(self, kind: str, site: _Site) -> None:
        others = [name for name in self._names if name != site.name]
        if kind != "uplink":
            others = [self.chance.choice(others)]
        ways = [(site.name, other) for other in others]
        if kind != "one way":
            ways += [(other, site.name) for other in others]
        self.world.lines.cut(*ways)
        await asyncio.sleep(self.chance.uniform(1, 30))
        self.world.lines.heal(*ways)

    def _leader_name(self) -> str:
        """The site that leads by the newest journal."""
        states = [site.state()[0] for site in self.sites.values() if not site.lost]
        newest = max(states, key=lambda state: (state.term, state.head.index))
        return newest.taken_over.site if newest.taken_over is not None else "a"

    def _may_lose(self) -> bool:
        """Whether a majority is left without some: else nobody knows who leads, and a person has to say."""
        states = [site.state()[0] for site in self.sites.values()]
        all_there = all(site.machine.up and not site.lost for site in self.sites.values())
        is_settled = len({state.term for state in states}) == 1 and any(states[0].versions)
        all_ready = all(states[0].sites.get(name) is not None for name in self._names)
        return len(states) >= 3 and all_there and is_settled and all_ready

    async def _leave_minority(self) -> None:
        """One site was cut off, has an old journal, and reaches less than half of the members: nobody may promote it
        without --force."""
        if not self._may_lose():
            return
        name = self._leader_name()
        old = self.sites[self.chance.choice([other for other in self._names if other != name])]
        ways = [way for other in self._names if other != old.name for way in ((old.name, other), (other, old.name))]
        ended = self.chance.sample(
            [site for site in self.sites.values() if site not in (old, self.sites[name])], (len(self._names) - 1) // 2
        )
        self.world.lines.cut(*ways)
        try:
            await asyncio.sleep(self.chance.uniform(5, 20))
        finally:
            self.world.lines.heal(*ways)
        for one in (self.sites[name], *ended):
            if one.machine.up:
                await one.stop()
        try:
            await asyncio.sleep(self.chance.uniform(1, 5))
            with contextlib.suppress(OSError):
                await self._ask_to_lead(old)
        finally:
            for one in (self.sites[name], *ended):
                self._start_again(one)

    async def _part_from_leader(self) -> None:
        """Its machine ends, or is cut from the others; it comes back."""
        leader = self.sites[self._leader_name()]
        is_away, has_etcd = self.chance.random() < 0.5, self.chance.random() < 0.5
        pairs = [(leader.name, other) for other in self._names if other != leader.name]
        ways = pairs + [(other, one) for one, other in pairs]
        if is_away:
            await leader.stop()
        else:
            self.world.lines.cut(*ways)
            self.etcd.cut[leader.name] += not has_etcd
        try:
            await asyncio.sleep(self.chance.uniform(5, 30))
        finally:
            if is_away:
                self._start_again(leader)
            else:
                self.world.lines.heal(*ways)
                self.etcd.cut[leader.name] -= not has_etcd

    async def _restore_etcd(self) -> None:
        """From a backup, while all sites are up, or all have been ended; who has the most entries then gives them."""
        if self._restoring or not all(site.machine.up for site in self.sites.values()):
            return
        self._restoring = True
        try:
            age_s = self.chance.uniform(1, 30)
            held = self.etcd.head_index_before(age_s)
            heads = [site.state()[0].head.index for site in self.sites.values()]
            if min(heads) <= held < max(heads) or any(held < site.first - 1 for site in self.sites.values()):
                return  # one that has no more leads on from there; where one has forgotten more, the run is renamed
            ends = self.chance.random() < 0.5
            if ends:
                await asyncio.gather(*(site.stop() for site in self.sites.values()))
            self.etcd.restore(age_s)
            await asyncio.sleep(self.chance.uniform(2, 10))
            if ends:
                first = self._with_most_entries([*self.sites.values()])
                first.fills_etcd = True
                self._start_again(first)
                await asyncio.sleep(self.chance.uniform(5, 10))
                for site in self.sites.values():
                    self._start_again(site)
            else:
                await self._give_etcd_its_end()
                await asyncio.sleep(10)
        finally:
            self._restoring = False

    def _etcd_lacks_some(self) -> bool:
        return self.with_etcd and self.etcd.head_index < self._newest()[0].head.index

    def _with_most_entries(self, sites: Sequence[_Site]) -> _Site:
        return max(sites, key=lambda site: (site.state()[0].term, site.state()[0].head.index))

    async def _give_etcd_its_end(self) -> None:
        """A person starts the site that has the most entries with --lead, where etcd has lost some."""
        there = [site for site in self.sites.values() if site.machine.up]
        if not there:
            return
        newest = self._with_most_entries(there)
        if self._etcd_lacks_some() and not newest.fills_etcd:
            self.say(f"person: {newest.name} begins with --lead")
            newest.fills_etcd = True
            await newest.kill_agent()

    def _litter(self, site: _Site) -> None:
        folder = site.run_dir / FOLDER
        (folder / f"{self.chance.randint(1, 99)}.bak").mkdir(parents=True, exist_ok=True)
        for manifest in sorted(folder.glob(f"*/{MANIFEST_FILE}"))[:1]:
            manifest.write_bytes(b"{")

    async def _remove_leader(self, site: _Site) -> None:
        leader = self.sites[self._leader_name()]
        question = RemovalAsked(site=leader.name, why="a mistake")
        with contextlib.suppress(OSError):
            answer = await ask(site.machine, f"{leader.machine.host}:{PORT}", question, LeaderAnswer)
            if not answer.problem:
                raise self.broke("the site that leads could be removed")

    async def _ask_for_strange_frames(self, site: _Site) -> None:
        leader = self.sites[self._leader_name()]
        for number in range(1, 4):
            wanted = Wanted(fragment=0, version=_STRANGE + number, site=site.name, frame=f"{number:064x}", bytes=100)
            with contextlib.suppress(OSError):
                await ask_for_frame(self.world, site.machine, f"{leader.machine.host}:{PORT}", wanted)

    async def _lose_leader(self) -> None:
        """Its machine is lost, or cut off from all; a person promotes a site until one leads."""
        if not self._may_lose():
            return
        name = self._leader_name()
        leader = self.sites[name]
        leader.lost = True
        comes_back, is_cut_off = self.chance.random() < 0.6, self.chance.random() < 0.5
        ways = [way for other in self._names if other != name for way in ((name, other), (other, name))]
        try:
            if comes_back and is_cut_off:  # it leads alone, and its journal grows
                self.world.lines.cut(*ways)
                await asyncio.sleep(self.chance.uniform(5, 30))
            else:
                await leader.stop()
            await self._promote()
        finally:  # also where peace comes first
            if comes_back:
                leader.lost = False
                self.world.lines.heal(*(ways if is_cut_off else ()))
                self._start_again(leader)

    async def _promote(self) -> None:
        refused = 0
        while True:
            await asyncio.sleep(self.chance.uniform(2, 8))
            there = [one for one in self.sites.values() if one.machine.up and one.agent is not None and not one.lost]
            if not there:
                continue
            site = self.chance.choice(there)
            try:
                problem = await self._ask_to_lead(site, force=refused >= 8)
            except OSError as error:
                self.say(f"person: {site.name} does not answer: {error}")
                continue
            if not problem:
                return
            refused += 1
            if refused > 40:
                raise self.broke(f"nobody can be promoted: {problem}")

    async def _ask_to_lead(self, site: _Site, *, force: bool = False) -> str:
        """Why a site cannot be promoted; empty: it leads. Without force it has what most sites had."""
        held = Counter((one.index, one.hash) for other in self.sites.values() for one in other.state()[1])
        at = f"{site.machine.host}:{PORT}"
        answer = await ask(site.machine, at, PromotionAsked(force=force), PromotionAnswer)
        self.say(f"person: promote {site.name}: {answer.problem or 'it leads'}")
        if not answer.problem:
            self.hub = site.machine
            own = {one.index: one.hash for one in site.state()[1]}
            for (index, said), copies in held.items():
                if not force and 2 * copies > len(self.sites) and own.get(index, said) != said:
                    raise self.broke(f"{site.name} leads without entry {index}, which {copies} sites had")
        return answer.problem

    # ---- peace

    async def _peace(self) -> None:
        """All faults are over: does it go on?"""
        self.say("---- peace")
        self.world.lines.heal_all()
        for site in self.sites.values():
            site.machine.room, site.machine.takes_mail = Room.FOR_ALL, True
            self._start_again(site)
        self.etcd.away, self.etcd.doubtful = 0, 0.0
        self.etcd.cut.clear()
        leader = self._leader_name()
        if self.sites[leader].lost:
            await self._promote()
        others = [site for name, site in self.sites.items() if name != leader and not site.lost]
        if self._lasting == "headless":
            await self._go_without_leader()
        if self._lasting == "alone" and self._may_lose():
            await self._go_two_ways()
        if self._lasting == "phantom" and others:
            self._skipped = self.chance.choice(others)
            self._skipped.machine.loses_hello = True
            await self._skipped.kill_agent()  # which dials anew
            self.say(f"---- phantom: {self._skipped.name}")
        began = self._loop.time()
        state = self._newest()[0]
        first = _Place(state.head.index, [*state.versions] or [0] * FRAGMENTS)
        why = "it has not begun"
        while self._loop.time() < began + PEACE_S:
            await asyncio.sleep(2)
            if self.with_etcd:
                await self._give_etcd_its_end()
            has_waited = self._skipped is None or self._loop.time() > began + WORD_S + 4
            if not (why := self._lacks(first)) and has_waited:
                self._check_chain()
                self._check_bounds()
                return
            if self._logs:
                print(f"{self._loop.time():8.3f} not yet: {why}", flush=True)
            self._check_words(began)
        raise self.broke(f"stands still: {why}")

    async def _go_without_leader(self) -> None:
        leader, began = self.sites[self._leader_name()], self._loop.time()
        there = [site for site in self.sites.values() if site is not leader and site.machine.up]
        if not leader.machine.up:
            return
        await leader.stop()
        await asyncio.sleep(_HEADLESS_S)
        for site in there:
            if self._words.get(site.name, 0.0) < began:
                raise self.broke(f"{site.name} does not say for {_HEADLESS_S:.0f} s that nobody leads")
        self._start_again(leader)

    async def _go_two_ways(self) -> None:
        name = self._leader_name()
        leader = self.sites[name]
        ways = [way for other in self._names if other != name for way in ((name, other), (other, name))]
        fork, end = leader.state()[0].head.index, self._loop.time() + PEACE_S
        leader.lost = True
        self.world.lines.cut(*ways)
        await self._promote()
        others = [site for site in self.sites.values() if site is not leader]
        while min(site.first for site in others) <= fork and self._loop.time() < end:
            await asyncio.sleep(1)
        leader.lost = False
        self.world.lines.heal(*ways)
        term, end = self._newest()[0].term, self._loop.time() + _FOLLOWS_S
        while leader.state()[0].term < term:
            await asyncio.sleep(1)
            if self._loop.time() > end:
                raise self.broke(f"{name} does not follow the leader of term {term}, which it reaches")

    async def _end_leaders(self) -> None:
        """Again and again, before a snapshot is due by the time that a leader has led."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.6, 0.9) * self.terms.snapshot_s)
            await self.sites[self._leader_name()].kill_agent()

    def _newest(self) -> tuple[RunState, list[Entry]]:
        return max(
            (site.state() for site in self.sites.values() if not site.lost),
            key=lambda one: (one[0].term, one[0].head.index),
        )

    def _lacks(self, first: _Place) -> str:
        """What is missing before all is well again; empty: nothing."""
        state, entries = self._newest()
        if not state.versions:
            return "no run has begun"
        for fragment, version in enumerate(state.versions):
            if version < first.versions[fragment] + 3:
                return f"fragment {fragment} has had {version - first.versions[fragment]} rounds"
        counted = {
            one.site
            for entry in entries
            if isinstance(entry, AnyRound) and entry.index > first.index
            for one in entry.members
        }
        for site in self.sites.values():
            known = state.sites.get(site.name)
            if site.lost:
                continue
            if site is self._skipped:
                if known is not None and known.standing is Standing.READY:
                    return f"{site.name} is ready, and has not said a word but Hello"
                continue
            if known is None or known.standing is not Standing.READY:
                return f"{site.name} is {known.standing if known else 'unknown'}"
            if site.name not in counted:
                return f"{site.name} has not counted"
            own = site.state()[0]
            if own.head.index < state.head.index - 3 or own.term != state.term:
                return f"the journal of {site.name} ends at {own.head.index}, and that of the run at {state.head.index}"
            rank = site.rank
            if rank is None or rank._member is None:
                return f"{site.name} has no rank that trains"
            behind = [p for p, v in rank._member.versions.items() if v < state.versions[p] - 1]
            if behind:
                return f"{site.name} is behind in fragment {behind[0]}"
        copies = sum(not site.lost and site is not self._skipped for site in self.sites.values())
        if copies >= self.terms.copies and not any(index > first.index for index in state.kept):
            return "no snapshot is kept since"
        return ""

    def _check_words(self, began: float) -> None:
        """Whatever keeps a site from counting is said."""
        for name, site in self.sites.items():
            since, now = max(began, site.up_since, self.registry.counted_at.get(name, 0.0)), self._loop.time()
            said = max(since, self._words.get(name, 0.0))
            if site.machine.up and now - said > WORD_S + 2 * (said - since):  # as `Patience` goes on
                raise self.broke(f"{name} has not counted for {now - since:.0f} s, and nobody says why")

    def _check_bounds(self) -> None:
        """Nothing is kept that nobody wants."""
        for site in self.sites.values():
            strange = [path.name for path in site.run_dir.glob(f"{FRAGMENTS_FOLDER}/*@{_STRANGE // 1000}*")]
            if strange:
                raise self.broke(f"{site.name} has made a folder for {strange[0]}, a frame that was never made")
            for stream in () if site.agent is None else site.agent.streams:
                idle = stream.purpose is Purpose.FETCH and not stream.asks
                if idle and stream.used_at < self._loop.time() - _IDLE_S:
                    raise self.broke(f"{site.name} keeps a connection that it has not used for {_IDLE_S:.0f} s")

    def _check_chain(self) -> None:
        state, entries = self._newest()
        self.history.entries = state.head.index + 1
        if self.registry.broken:
            raise self.broke(self.registry.broken[0])
        if self.registry.repairs:
            raise self.broke("a site was told to repair")
        hashes = {entry.index: entry.hash for entry in entries}
        for site in self.sites.values():
            if not site.lost and site is not self._skipped:  # that one may have led, and hears of no other leader
                for entry in site.state()[1]:
                    if hashes.get(entry.index, entry.hash) != entry.hash:
                        raise self.broke(f"entry {entry.index} of {site.name} is another one")
        counted: dict[int, set[int]] = {fragment: set() for fragment in range(FRAGMENTS)}
        for one, counts in frames_of(entries):
            for listed in one.members if counts else ():
                steps = self.registry.steps[listed.frame[:16]]
                if steps & counted[one.fragment]:
                    raise self.broke(f"entry {one.index} counts steps of {listed.site} again")
                counted[one.fragment] |= steps
