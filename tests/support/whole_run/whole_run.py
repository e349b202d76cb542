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
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from geocomm.core.message_log import logger
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.admission import members_of
from geocomm.elastic.journal.entries import Entry
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.whole_run.agents import simulated
from support.whole_run.anchors import FRAGMENTS
from support.whole_run.checks import WORD_S, Checks, Place
from support.whole_run.data import SET, SimulatedSet
from support.whole_run.etcd import EtcdModel
from support.whole_run.faults import BY_HAND, FAULTS, LASTING, LASTING_WITH_ETCD, OF_DATA, OF_ETCD, OF_REGIONS, Faults
from support.whole_run.learning_rates import any_schedule
from support.whole_run.machines import Room, World, current_or_none, task_of_process
from support.whole_run.people import Person
from support.whole_run.regions import SimulatedRegions
from support.whole_run.registry import Registry
from support.whole_run.sites import Site
from support.whole_run.virtual_loop import StuckError, VirtualLoop

TERMS = LeaderSettings(attempt_s=12.0, lost_s=20.0, lost_said_s=40.0, snapshot_s=15.0)
"""Those of a real run, but for what takes minutes there."""

QUIET_S, PEACE_S = 8.0, 150.0
CROWD_COMES_AT = 12
CROWD_S = 60.0
LEAVE_S = 200.0
"""A site's last steps and offers may take 65 s, and to give out its last frames 60 s; the leader's come after that."""
_FOLLOWS_S = 20.0
_COPIED_S = 30.0
"""What a site that leads has left behind is fetched within this time: it leads on, and gives it out meanwhile."""
_BESIDE_FULL_S = 90.0
_HEADLESS_S = 40.0
"""A link that is silent is given up after 9 s, a dial after 15."""


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


class BrokenError(AssertionError):
    """Something does not hold."""


class WholeRun:
    """One history. sites: how many; None: 2 to 5. faults: see FAULTS; None: all of the kind. lasting: see LASTING;
    None: one of them. rate: the learning rate by the run's step. reduce: "all" or "aggregator"; None: one of them.
    with_etcd: that says who leads. liar: a site that averages wrong. crowd: so many sites more come at once, when the
    first faults might. data: the run deals some. regions: the sites are in two."""

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
        data: bool = False,
        regions: bool = False,
        log: bool = False,
    ) -> None:
        self.with_etcd, self.liar = with_etcd, liar
        self.reduce = reduce or ("aggregator" if seed % 2 else "all")
        if seed % 5 == 4:
            terms = replace(terms, copies=1)
        all_kinds = {kind: often for kind, often in FAULTS.items() if kind not in BY_HAND} | OF_ETCD
        all_faults = all_kinds if with_etcd else FAULTS
        if data:
            all_faults = all_faults | OF_DATA
            terms = replace(terms, data=SET, ahead_s=20.0, doubt_s=12.0)
        if regions:
            all_faults = all_faults | OF_REGIONS
        self._seed, self.logs = seed, log
        self._faults = Faults(self, all_faults if faults is None else faults)
        self.checks, self.person = Checks(self), Person(self)
        self.chance = random.Random(seed)
        count = sites or self.chance.randint(2, 5)
        self.names = list("abcde"[:count]) + [f"crowd{number:02}" for number in range(crowd)]
        self._first = self.names[:count]
        self.rate = rate or any_schedule(self.chance)
        kinds = LASTING_WITH_ETCD if with_etcd else LASTING
        drawn = self.chance.choices([*kinds], [*kinds.values()])[0]
        self._lasting = drawn if lasting is None else lasting
        self.skipped: Site | None = None
        self.words: dict[str, float] = {}
        """By site: when its agent last said something, or somebody something of it."""
        drawn = SimulatedRegions(seed, self.names if regions else (), is_healthy=regions and faults == {})
        self.registry = Registry(drawn)
        self.terms = replace(terms, regions=drawn.groups, **{"least_grace_s": 6.0} if drawn.is_healthy else {})
        self.happened = hashlib.blake2b(digest_size=16)
        self.history = History(seed)
        self._broken: asyncio.Future[None]

    def run(self) -> History:
        """Let it happen."""
        loop = VirtualLoop(self.chance)
        loop.set_task_factory(task_of_process)  # type: ignore[arg-type]
        self.folder = Path(tempfile.mkdtemp(prefix="whole-run-", dir="/dev/shm"))
        try:
            with self._capturing(loop):
                loop.run_until_complete(self._happen(loop))
        except BrokenError as error:
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
        return self.loop.time()

    def say(self, what: str) -> None:
        """To the history's log."""
        process = current_or_none()
        for name in self.names:
            by_it = what.startswith((f"{name}: ", f"{name} joins once"))
            by_it = by_it or (process is not None and process.machine.name == name)
            if by_it or f"site {name}" in what or self.world.machines[name].host in what:
                self.words[name] = self.loop.time()
        if "error of this program" in what:
            self.registry.broken.append(what)
        if process is not None and "only one that leads" in what and f"same run, at {process.machine.host}:" in what:
            self.registry.broken.append(f"{process.machine.name} takes itself for another leader")
        self.person.hear(what)
        if "averages no more" in what:
            self.history.told_liars.add(what.split(":")[0])
            if not what.startswith(f"{self.liar}: ") or not self.liar:
                self.registry.broken.append(f"who averages right is called a liar: {what}")
        line = f"{self.loop.time():8.3f} {what}".replace(str(self.folder), "")
        self.happened.update(line.encode())
        if self.logs:
            self.history.log.append(line)
            print(line, flush=True)

    def _heard(self, content: bytes) -> None:
        self.happened.update(b"%r" % self.loop.time())
        self.happened.update(content)

    def broke(self, what: str) -> BrokenError:
        """The history ends."""
        error = BrokenError(what)
        if not self._broken.done():
            self._broken.set_exception(error)
        return error

    @contextlib.contextmanager
    def _capturing(self, loop: VirtualLoop) -> Generator[None]:
        self.loop = loop
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
        self.world = World(self.chance, self.names, self._heard, self.registry.regions)
        self.hub = self.world.machines["a"]
        self.data = SimulatedSet(self.folder / "catalog", self.names, random.Random(f"data {self._seed}"))
        self.etcd = EtcdModel(self.chance, loop.time)
        self.sites = {
            name: Site(self, machine, self.chance.uniform(0.3, 1.2)) for name, machine in self.world.machines.items()
        }
        agents = simulated(self.world, self.folder, self.chance, loop.time, self.etcd, self.registry)
        with agents, self.data.put():
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
            self.loop.call_later(self.chance.uniform(0, 3), self.sites[name].start)
        restless = asyncio.create_task(self._end_leaders()) if self._lasting == "restless" else None
        try:
            await asyncio.sleep(QUIET_S)
            if len(self.names) > len(self._first):
                await self._let_crowd_come()
            await self._faults.come()
            await self._peace()
        finally:
            if restless is not None:
                restless.cancel()
                await asyncio.gather(restless, return_exceptions=True)

    # ---- a crowd

    async def _let_crowd_come(self) -> None:
        """Once a state takes fewer bytes than the frames since the beginning, all others join at once."""
        while min(self.newest()[0].versions, default=0) < CROWD_COMES_AT:
            await asyncio.sleep(1)
        crowd, began = [site for name, site in self.sites.items() if name not in self._first], self.loop.time()
        for site in crowd:
            site.start()
        while self.loop.time() < began + CROWD_S:
            await asyncio.sleep(1)
            state = self.newest()[0]
            if all(site.name in state.live for site in self.sites.values()):
                self.history.crowd_s = self.loop.time() - began
                return
        away = [site.name for site in crowd if site.name not in self.newest()[0].live]
        raise self.broke(f"{len(away)} of {len(crowd)} that came at once are not ready after {CROWD_S:.0f} s")

    # ---- what a person does, and what is so

    def start_again(self, site: Site) -> None:
        if not site.machine.up and not site.lost:
            site.start()

    def leader_name(self) -> str:
        """The site that leads by the newest journal."""
        states = [site.state()[0] for site in self.sites.values() if not site.lost]
        newest = max(states, key=lambda state: (state.term, state.head.index))
        return newest.taken_over.site if newest.taken_over is not None else "a"

    def may_lose(self) -> bool:
        """Whether a majority is left without some: else nobody knows who leads, and a person has to say."""
        states = [site.state()[0] for site in self.sites.values()]
        all_there = all(
            site.machine.up and not site.machine.is_damaged and not site.lost for site in self.sites.values()
        )
        is_settled = len({state.term for state in states}) == 1 and any(states[0].versions)
        all_ready = all(states[0].sites.get(name) is not None for name in self.names)
        return len(states) >= 3 and all_there and is_settled and all_ready

    def leads_again_soon(self) -> bool:
        """Whether the site that leads has lost its journal, and not begun a later term since."""
        leader = self.sites[self.leader_name()]
        known = KnownAgents(leader.run_dir, self.say)
        return known.lost_journal or known.claims_after(leader.state()[0].term)

    def etcd_lacks_some(self) -> bool:
        return self.with_etcd and self.etcd.head_index < self.newest()[0].head.index

    # ---- peace

    async def _peace(self) -> None:
        """All faults are over: does it go on?"""
        self.say("---- peace")
        self.world.lines.heal_all()
        for site in self.sites.values():
            site.machine.room, site.machine.takes_mail, site.machine.changes_files = Room.FOR_ALL, True, False
            self.start_again(site)
        self.etcd.away, self.etcd.doubtful, self.data.is_away = 0, 0.0, False
        self.etcd.cut.clear()
        leader = self.leader_name()
        if self.sites[leader].lost:
            await self.person.promote()
        others = [site for name, site in self.sites.items() if name != leader and not site.lost]
        if self._lasting == "headless":
            await self._go_without_leader()
        if self._lasting == "alone" and self.may_lose():
            await self._go_two_ways()
        if self._lasting == "full":
            await self._go_on_beside_full_disk()
        if self._lasting == "last":
            await self._leave_to_one_without_ranks()
        if self._lasting == "two lines":
            await self._lead_two_ways()
        members = members_of(self.newest()[0])
        strangers = [name for name, site in self.sites.items() if not site.lost and name not in members]
        if self._lasting == "phantom" and others and not strangers:  # those need most of the members, to come back
            self.skipped = self.chance.choice(others)
            self.skipped.machine.loses_hello = True
            await self.skipped.kill_agent()  # which dials anew
            self.say(f"---- phantom: {self.skipped.name}")
        began = self.loop.time()
        state = self.newest()[0]
        first = Place(state.head.index, [*state.versions] or [0] * FRAGMENTS)
        why = "it has not begun"
        while self.loop.time() < began + PEACE_S:
            await asyncio.sleep(2)
            await self.person.look()
            has_waited = self.skipped is None or self.loop.time() > began + WORD_S + 4
            if not (why := self.checks.lacks(first)) and has_waited:
                self.checks.chain()
                self.checks.bounds()
                if self._lasting == "leave":
                    await self._all_leave()
                return
            if self.logs:
                print(f"{self.loop.time():8.3f} not yet: {why}", flush=True)
            self.checks.words(began)
        raise self.broke(f"stands still: {why}")

    async def _all_leave(self) -> None:
        """Who is told to leave ends; the leader once nobody is connected to it any more."""
        there = [site for site in self.sites.values() if site.machine.up]
        for site in self.chance.sample(there, len(there)):
            self.say(f"---- {site.name} is told to leave")
            site.tell_to_leave()
            await asyncio.sleep(self.chance.uniform(0, 8))
        end = self.loop.time() + LEAVE_S
        while staying := [site.name for site in there if not site.left]:
            await asyncio.sleep(1)
            if self.loop.time() > end:
                raise self.broke(f"{', '.join(staying)} was told to leave, and does not end within {LEAVE_S:.0f} s")

    async def _go_without_leader(self) -> None:
        leader, began = self.sites[self.leader_name()], self.loop.time()
        there = [site for site in self.sites.values() if site is not leader and site.machine.up]
        if not leader.machine.up:
            return
        await leader.stop()
        await asyncio.sleep(_HEADLESS_S)
        for site in there:
            if self.words.get(site.name, 0.0) < began:
                raise self.broke(f"{site.name} does not say for {_HEADLESS_S:.0f} s that nobody leads")
        self.start_again(leader)

    async def _go_on_beside_full_disk(self) -> None:
        """Nothing lies on two disks where one of two takes no frames: the rounds go on all the same."""
        end, there = self.loop.time() + PEACE_S, [site for site in self.sites.values() if not site.lost]
        if len(there) < 2:
            return
        while any(site.name not in self.newest()[0].live for site in there):
            await asyncio.sleep(1)
            if self.loop.time() > end:
                return  # the checks say who is not ready
        site, began = self.chance.choice(there), self.loop.time()
        self.say(f"---- full: {site.name}")
        site.machine.room = Room.FOR_LITTLE
        first, end = [*self.newest()[0].versions], began + _BESIDE_FULL_S
        while any(now < before + 3 for now, before in zip(self.newest()[0].versions, first, strict=True)):
            await asyncio.sleep(1)
            if self.loop.time() > end:
                raise self.broke(f"the disk of {site.name} is full, and no round counts for {_BESIDE_FULL_S:.0f} s")
        if self.words.get(site.name, 0.0) <= began + 0.1:
            raise self.broke(f"nobody says that the disk of {site.name} takes no frames")
        site.machine.room = Room.FOR_ALL

    async def _leave_to_one_without_ranks(self) -> None:
        """What the ranks of a site lack while they are away lies there once the only site that trained has left."""
        there, leader = [site for site in self.sites.values() if not site.lost], self.sites[self.leader_name()]
        end = self.loop.time() + PEACE_S
        while len(there) < 2 or any(
            site.machine.is_damaged or site.name not in self.newest()[0].live for site in there
        ):
            await asyncio.sleep(1)
            if len(there) < 2 or self.loop.time() > end:
                return  # the checks say who is not ready
        last, waiting = self.chance.sample([leader, self.chance.choice([one for one in there if one is not leader])], 2)
        self.say(f"---- last: {last.name}, and the ranks of {waiting.name} are away")
        await asyncio.gather(*(site.stop() for site in there if site not in (last, waiting)))
        waiting.ranks_wait = True
        await waiting.kill_ranks()
        leaves_at = self.loop.time() + self.chance.uniform(15, 40)
        left_at = math.inf
        while not last.left and self.loop.time() < left_at + _COPIED_S:
            await asyncio.sleep(self.chance.uniform(0.2, 4))
            has_left = self.newest()[0].sites[last.name].standing is Standing.LEFT
            if has_left:
                left_at = min(left_at, self.loop.time())
            else:
                await waiting.kill_agent()
            if not last.is_leaving and self.loop.time() > leaves_at:
                last.tell_to_leave()
        if left_at < math.inf and (
            lacking := self.checks.lacks_copies(waiting, last)
        ):  # else it has given up to be heard
            raise self.broke(f"{last.name} has left, and its ranks will lack {lacking} at {waiting.name}")
        waiting.ranks_wait = False
        await last.stop()
        for site in there:
            self.start_again(site)

    async def _go_two_ways(self) -> None:
        name = self.leader_name()
        leader = self.sites[name]
        ways = [way for other in self.names if other != name for way in ((name, other), (other, name))]
        fork, end = leader.state()[0].head.index, self.loop.time() + PEACE_S
        leader.lost = True
        self.world.lines.cut(*ways)
        await self.person.promote()
        others = [site for site in self.sites.values() if site is not leader]
        while min(site.first for site in others) <= fork and self.loop.time() < end:
            await asyncio.sleep(1)
        leader.lost = False
        self.world.lines.heal(*ways)
        term, end = self.newest()[0].term, self.loop.time() + _FOLLOWS_S
        while leader.state()[0].term < term:
            await asyncio.sleep(1)
            if self.loop.time() > end:
                raise self.broke(f"{name} does not follow the leader of term {term}, which it reaches")

    async def _lead_two_ways(self) -> None:
        """Two promotions with --force that cannot hear of each other; both sides go on, and then they meet."""
        leader, end = self.sites[self.leader_name()], self.loop.time() + PEACE_S
        others = [site for site in self.sites.values() if site is not leader]
        if any(site.lost for site in self.sites.values()):
            return
        while not all(site.state()[0].genesis and site.name in self.newest()[0].live for site in self.sites.values()):
            await asyncio.sleep(1)
            if self.loop.time() > end:
                return  # the checks say who is not ready
        there = self.chance.sample(others, self.chance.randint(1, len(others)))
        here = [leader, *(site for site in others if site not in there)]
        ways = [way for one in here for two in there for way in ((one.name, two.name), (two.name, one.name))]
        self.say(f"---- two lines: {', '.join(site.name for site in there)} and the others")
        self.world.lines.cut(*ways)
        await asyncio.sleep(self.chance.uniform(0, 15))
        self.registry.is_cut = True
        await asyncio.gather(*(self._promote_one(side) for side in ([leader], there)))
        await asyncio.sleep(self.chance.uniform(0, 60))
        self.registry.is_cut = False
        self.world.lines.heal(*ways)

    async def _promote_one(self, sites: list[Site]) -> None:
        """With --force, as often as that is refused."""
        for _ in range(40):  # one that has led waits for a minute for a later leader
            with contextlib.suppress(OSError):
                if not await self.person.ask_to_lead(self.chance.choice(sites), force=True):
                    return
            await asyncio.sleep(self.chance.uniform(1, 5))
        raise self.broke(f"none of {', '.join(site.name for site in sites)} can be promoted with --force")

    async def _end_leaders(self) -> None:
        """Again and again, before a snapshot is due by the time that a leader has led."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.6, 0.9) * self.terms.snapshot_s)
            await self.sites[self.leader_name()].kill_agent()

    def newest(self) -> tuple[RunState, list[Entry]]:
        return max(
            (site.state() for site in self.sites.values() if not site.lost),
            key=lambda one: (one[0].term, one[0].head.index),
        )
