"""What befalls a simulated run."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.messages import Wanted
from geocomm.elastic.leading.questions import LeaderAnswer, RemovalAsked
from support.whole_run.agents import ask, ask_for_frame
from support.whole_run.damage import damage
from support.whole_run.machines import PORT, Room
from support.whole_run.sites import Site

if TYPE_CHECKING:
    from support.whole_run.whole_run import WholeRun

FAULTS_S = 36.0
_EVERY_S = 3.0
_AT_ONCE_S = 30.0
"""A leader's last lines take 5 s; etcd may take longer to answer that it takes the lease back."""
STRANGE = 1_000_000
"""A version that no run here comes to."""

FAULTS = {
    "agent": 3.0,
    "ranks": 2.0,
    "machine": 3.0,
    "line": 3.0,
    "one way": 1.0,
    "uplink": 2.0,
    "slow": 1.0,
    "mail": 0.7,
    "full": 0.7,
    "disk": 1.0,
    "all": 0.3,
    "frames": 0.3,
    "hub": 0.7,
    "minority": 0.7,
    "litter": 0.5,
    "removal": 0.3,
    "strange frame": 0.3,
    "leave": 1.0,
    "journal": 1.0,
    "journals": 0.5,
    "files": 1.0,
}
"""How often each comes, beside the others. `machine`: it ends, and comes back. `line`: two sites are cut from each
other; `uplink`: one from all. `slow`: all lines of a site take a second or two longer, and files come slowly. `mail`:
no frame comes to or from its ranks by mail. `full`: its disk takes no frames and states, or nothing at all. `disk`: a
machine ends and its disk is lost. `all`: all machines end at once; `frames`: and all frames are lost, but no states.
`hub`: the leader's machine is lost, for good or until another leads, or is cut off from all meanwhile; and a person
promotes another site. `minority`: so many machines end that a site which had been cut off is left, and a person
promotes it. `litter`: what is no snapshot lies beside them, and a manifest cannot be read. `removal`: a person removes
the site that leads. `strange frame`: somebody asks the leader for frames that were never made. `leave`: a site is told
to leave, a second time if it has not ended by then, and comes back. `journal`: a machine ends, and its disk has changed
some bytes of the journal, or has lost it; `journals`: those of two at once; where too few sites are left to know what
counted, a person promotes one with --force. `files`: of frames, states and snapshots that it has while it is up, or is
given for a while."""

OF_ETCD = {
    "etcd away": 1.0,
    "etcd line": 2.0,
    "etcd doubt": 2.0,
    "etcd backup": 1.0,
    "leader": 2.0,
}
"""Where etcd says who leads, beside the others but those of BY_HAND. `etcd away`: nobody reaches it; `line`: one
machine does not; `doubt`: answers are lost, of what was done, is done later, or never; `backup`: it is restored from
one, and a person starts the site that has the most entries with --lead. `leader`: its machine ends, or is cut from the
others and perhaps from etcd, and comes back."""
OF_DATA = {"version": 1.0, "catalog": 1.0}
"""Where the run deals data, beside the others. `version`: a person adds a version to the set, with more shards, and
takes some away or lets others read them. `catalog`: nobody reads it for a while."""
OF_REGIONS = {"head": 4.0}
"""Where there are regions, beside the others. `head`: one of OF_HEADS befalls a site that shares a region."""
OF_HEADS = ("ranks", "agent", "machine", "line", "one way", "uplink", "slow", "mail", "full", "leave")
BY_HAND = {"hub", "minority", "removal"}
"""A person says who leads."""

LASTING = {
    "": 8.0,
    "phantom": 1.0,
    "restless": 1.0,
    "headless": 1.0,
    "alone": 1.0,
    "leave": 2.0,
    "full": 1.0,
    "last": 1.0,
    "two lines": 1.0,
}
"""What goes on when all else is over. `phantom`: a site's lines to the leader break after each Hello. `restless`: the
leader's agent ends before a snapshot is due, again and again. `headless`: the leader's machine is away for a while.
`alone`: the leader is cut off from all and goes on, another site is promoted, and they meet once that one has let go of
the entries of before. `leave`: once all is well, all sites are told to leave, one by one. `full`: the disk of a
site takes no frames until the others have gone on without it, and then there is room. `last`: one site trains alone
and leaves, while the ranks of another one are away and its agent ends again and again; then all come back. `two
lines`: the sites are cut into two sides, on each of which one is promoted with --force, and they meet."""
LASTING_WITH_ETCD = {"": 8.0, "phantom": 1.0, "restless": 1.0, "leave": 2.0, "full": 1.0}


class Faults:
    """They come to a run, as often as is said of each kind."""

    def __init__(self, run: WholeRun, often: Mapping[str, float]) -> None:
        self._run, self._often = run, often
        self._restoring = False
        """Etcd has lost entries, and a person has them given to it."""

    async def come(self) -> None:
        """Until their time is over: what is under way then ends."""
        if not self._often:
            return
        end = self._run.loop.time() + FAULTS_S
        under_way: list[asyncio.Task[None]] = []
        while (pause := self._run.chance.expovariate(1 / _EVERY_S)) < end - self._run.loop.time():
            await asyncio.sleep(pause)
            kind = self._run.chance.choices([*self._often], [*self._often.values()])[0]
            under_way.append(asyncio.create_task(self._fault(kind)))
        await asyncio.sleep(max(0.0, end - self._run.loop.time()))
        for task in under_way:
            task.cancel()
        for result in await asyncio.gather(*under_way, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _fault(self, kind: str) -> None:
        chance, there = self._run.chance, [site for site in self._run.sites.values() if site.machine.up]
        if not there:
            return
        if kind == "head":
            there = [one for one in there if self._run.registry.regions.has_several(one.name)] or there
            kind = chance.choice(OF_HEADS)
        site = chance.choice(there)
        self._run.history.faults[kind] += 1
        self._run.say(f"---- {kind}: {site.name}")
        match kind:
            case "agent":
                await site.kill_agent()
            case "ranks":
                await site.kill_ranks()
            case "machine":
                await site.stop()
                await asyncio.sleep(chance.uniform(0.5, 25))
                self._run.start_again(site)
            case "disk":
                others_up = sum(other is not site and other.machine.up for other in self._run.sites.values())
                if self._restoring or self._run.etcd_lacks_some() or others_up == 0:
                    return
                if any(other.machine.is_damaged for other in self._run.sites.values()):
                    return  # most members are to be left with a journal
                if self._run.leads_again_soon() and len(self._run.sites) < 3:
                    return  # as also where the leader has its own from the others, and asks them whether it leads
                leader = self._run.leader_name()
                if site.name == leader or self._run.sites[leader].lost:
                    return  # that is what `hub` does
                await site.stop()
                shutil.rmtree(site.run_dir, ignore_errors=True)
                self._run.registry.terms.pop(site.name, None)
                await asyncio.sleep(chance.uniform(0.5, 25))
                self._run.start_again(site)
            case "all" | "frames":
                await asyncio.gather(*(one.stop() for one in there))
                for one in there if kind == "frames" else ():
                    for folder in RunDir(one.run_dir).fragments.glob("*@*/"):
                        shutil.rmtree(folder)
                await asyncio.sleep(chance.uniform(0.5, 10))
                for one in there:
                    self._run.start_again(one)
            case "line" | "one way" | "uplink":
                await self._cut(kind, site)
            case "slow":
                self._run.world.lines.more_s[site.name] = self._run.chance.uniform(0.3, 2)
                self._run.world.lines.slow[site.name] = self._run.chance.uniform(1e3, 20e3)
                await asyncio.sleep(self._run.chance.uniform(5, 30))
                self._run.world.lines.more_s.pop(site.name, None)
                self._run.world.lines.slow.pop(site.name, None)
            case "mail":
                site.machine.takes_mail = False
                await asyncio.sleep(self._run.chance.uniform(5, 40))
                site.machine.takes_mail = True
            case "full":
                site.machine.room = self._run.chance.choice([Room.FOR_LITTLE, Room.FOR_LITTLE, Room.FOR_NOTHING])
                await asyncio.sleep(self._run.chance.uniform(1, 20))
                site.machine.room = Room.FOR_ALL
            case "hub":
                await self._lose_leader()
            case "minority":
                await self._leave_minority()
            case "leave":
                await self._leave(site)
            case "journal" | "journals":
                others = [other for other in there if other is not site]
                more = chance.sample(others, 1) if kind == "journals" and len(others) > 1 else []
                await self._damage_journals([site, *more])
            case "files":
                if chance.random() < 0.5:
                    self._damage_files(site)
                else:
                    self._run.registry.has_damage = site.machine.changes_files = True
                    await asyncio.sleep(chance.uniform(2, 15))
                    site.machine.changes_files = False
            case "litter":
                self._litter(site)
            case "removal":
                await self._remove_leader(site)
            case "strange frame":
                await self._ask_for_strange_frames(site)
            case "version":
                self._run.data.change()
            case "catalog":
                if self._run.newest()[0].data:  # else it is a leader's that cannot begin
                    self._run.data.is_away = True
                    await asyncio.sleep(chance.uniform(5, 30))
                    self._run.data.is_away = False
            case "etcd away":
                self._run.etcd.away += 1
                await asyncio.sleep(chance.uniform(1, 25))
                self._run.etcd.away -= 1
            case "etcd line":
                self._run.etcd.cut[site.name] += 1
                await asyncio.sleep(chance.uniform(1, 25))
                self._run.etcd.cut[site.name] -= 1
            case "etcd doubt":
                self._run.etcd.doubtful = chance.uniform(0.2, 0.7)
                await asyncio.sleep(chance.uniform(5, 20))
                self._run.etcd.doubtful = 0.0
            case "etcd backup":
                await self._restore_etcd()
            case "leader":
                await self._part_from_leader()
            case _:
                raise AssertionError(kind)

    async def _leave(self, site: Site) -> None:
        try:
            site.tell_to_leave()
            if not await site.has_left_within(self._run.chance.uniform(3, 25)):
                site.tell_to_leave()
                if not await site.has_left_within(_AT_ONCE_S):
                    raise self._run.broke(f"{site.name} was told twice to leave, and has not ended")
        finally:  # also where peace comes first
            await site.stop()
        await asyncio.sleep(self._run.chance.uniform(0.5, 15))
        self._run.start_again(site)

    async def _damage_journals(self, sites: list[Site]) -> None:
        """Not where another one's is damaged too: nobody may have all entries then."""
        others = [other for other in self._run.sites.values() if other not in sites]
        if len(sites) > 1 and self._run.chance.random() < 0.5:  # one of the others has an old journal
            ways = self._ways(self._run.chance.choice(others))
            self._run.world.lines.cut(*ways)
            try:
                await asyncio.sleep(self._run.chance.uniform(5, 15))
            finally:
                self._run.world.lines.heal(*ways)
        if self._restoring or any(other.machine.is_damaged or other.lost for other in others) or not others:
            return
        known = {site.name: KnownAgents(site.run_dir, self._run.say).addresses for site in sites}
        knows_nobody = any(not addresses.keys() - {name} for name, addresses in known.items())
        if knows_nobody or any(not one.state()[0].versions for one in self._run.sites.values()):
            # Some have no journal of a run: who knows nobody else either cannot tell whether it was the only one that
            # had it, says so, and ends.
            return
        if not any(self._run.newest()[0].versions):
            return
        if not self._run.with_etcd:  # else it has them
            self._run.person.to_outlive |= self._run.person.held_by_most()
        for site in sites:
            site.machine.is_damaged = site.machine.was_damaged = True
        try:
            await asyncio.gather(*(site.stop() for site in sites))
            for site in sites:
                if (path := RunDir(site.run_dir).journal).exists():
                    self._run.say(f"---- {site.name}: {damage(path, self._run.chance)}")
            await asyncio.sleep(self._run.chance.uniform(0.5, 10))
        finally:
            for site in sites:
                self._run.start_again(site)
        while any(site.machine.is_damaged and site.machine.up for site in sites):  # until they have whole ones
            await asyncio.sleep(1)
            await self._run.person.lead_past_damage()

    def _damage_files(self, site: Site) -> None:
        """A few. A snapshot's states are those of the fragments, as long as those are there."""
        folder = RunDir(site.run_dir)
        files = sorted(folder.fragments.glob("**/*.frame")) + sorted(folder.fragments.glob("*.state"))
        files += sorted(folder.snapshots.glob("*/*"))
        for path in self._run.chance.sample(files, min(3, len(files))):
            self._run.registry.has_damage = True
            self._run.say(f"---- {path.name} of {site.name}: {damage(path, self._run.chance)}")

    async def _cut(self, kind: str, site: Site) -> None:
        others = [name for name in self._run.names if name != site.name]
        if kind != "uplink":
            others = [self._run.chance.choice(others)]
        ways = [(site.name, other) for other in others]
        if kind != "one way":
            ways += [(other, site.name) for other in others]
        self._run.world.lines.cut(*ways)
        await asyncio.sleep(self._run.chance.uniform(1, 30))
        self._run.world.lines.heal(*ways)

    def _ways(self, site: Site) -> list[tuple[str, str]]:
        """Of all lines of a site."""
        others = [name for name in self._run.names if name != site.name]
        return [way for other in others for way in ((site.name, other), (other, site.name))]

    async def _leave_minority(self) -> None:
        """One site was cut off, has an old journal, and reaches less than half of the members: nobody may promote it
        without --force."""
        if not self._run.may_lose():
            return
        name = self._run.leader_name()
        old = self._run.sites[self._run.chance.choice([other for other in self._run.names if other != name])]
        ways = self._ways(old)
        ended = self._run.chance.sample(
            [site for site in self._run.sites.values() if site not in (old, self._run.sites[name])],
            (len(self._run.names) - 1) // 2,
        )
        self._run.world.lines.cut(*ways)
        try:
            await asyncio.sleep(self._run.chance.uniform(5, 20))
        finally:
            self._run.world.lines.heal(*ways)
        for one in (self._run.sites[name], *ended):
            if one.machine.up:
                await one.stop()
        try:
            await asyncio.sleep(self._run.chance.uniform(1, 5))
            with contextlib.suppress(OSError):
                await self._run.person.ask_to_lead(old)
        finally:
            for one in (self._run.sites[name], *ended):
                self._run.start_again(one)

    async def _part_from_leader(self) -> None:
        """Its machine ends, or is cut from the others; it comes back."""
        leader = self._run.sites[self._run.leader_name()]
        is_away, has_etcd = self._run.chance.random() < 0.5, self._run.chance.random() < 0.5
        pairs = [(leader.name, other) for other in self._run.names if other != leader.name]
        ways = pairs + [(other, one) for one, other in pairs]
        if is_away:
            await leader.stop()
        else:
            self._run.world.lines.cut(*ways)
            self._run.etcd.cut[leader.name] += not has_etcd
        try:
            await asyncio.sleep(self._run.chance.uniform(5, 30))
        finally:
            if is_away:
                self._run.start_again(leader)
            else:
                self._run.world.lines.heal(*ways)
                self._run.etcd.cut[leader.name] -= not has_etcd

    async def _restore_etcd(self) -> None:
        """From a backup, while all sites are up, or all have been ended; who has the most entries then gives them."""
        if self._restoring or not all(site.machine.up for site in self._run.sites.values()):
            return
        self._restoring = True
        try:
            age_s = self._run.chance.uniform(1, 30)
            held = self._run.etcd.head_index_before(age_s)
            heads = [site.state()[0].head.index for site in self._run.sites.values()]
            if min(heads) <= held < max(heads) or any(held < site.first - 1 for site in self._run.sites.values()):
                return  # one that has no more leads on from there; where one has forgotten more, the run is renamed
            ends = self._run.chance.random() < 0.5
            if ends:
                await asyncio.gather(*(site.stop() for site in self._run.sites.values()))
            self._run.etcd.restore(age_s)
            await asyncio.sleep(self._run.chance.uniform(2, 10))
            if ends:
                first = self._run.person.with_most_entries([*self._run.sites.values()])
                first.fills_etcd = True
                self._run.start_again(first)
                await first.kill_agent()  # it may have been started meanwhile, without --lead
                await asyncio.sleep(self._run.chance.uniform(5, 10))
                for site in self._run.sites.values():
                    self._run.start_again(site)
            else:
                await self._run.person.give_etcd_its_end()
                await asyncio.sleep(10)
        finally:
            self._restoring = False

    def _litter(self, site: Site) -> None:
        folder = RunDir(site.run_dir).snapshots
        (folder / f"{self._run.chance.randint(1, 99)}.bak").mkdir(parents=True, exist_ok=True)
        for manifest in sorted(folder.glob(f"*/{RunDir.MANIFEST}"))[:1]:
            manifest.write_bytes(b"{")

    async def _remove_leader(self, site: Site) -> None:
        leader = self._run.sites[self._run.leader_name()]
        question = RemovalAsked(site=leader.name, why="a mistake")
        with contextlib.suppress(OSError):
            answer = await ask(site.machine, f"{leader.machine.host}:{PORT}", question, LeaderAnswer)
            if not answer.problem:
                raise self._run.broke("the site that leads could be removed")

    async def _ask_for_strange_frames(self, site: Site) -> None:
        leader = self._run.sites[self._run.leader_name()]
        for number in range(1, 4):
            wanted = Wanted(fragment=0, version=STRANGE + number, site=site.name, frame=f"{number:064x}", bytes=100)
            with contextlib.suppress(OSError):
                await ask_for_frame(self._run.world, site.machine, f"{leader.machine.host}:{PORT}", wanted)

    async def _lose_leader(self) -> None:
        """Its machine is lost, or cut off from all; a person promotes a site until one leads."""
        if not self._run.may_lose():
            return
        name = self._run.leader_name()
        leader = self._run.sites[name]
        leader.lost = True
        comes_back, is_cut_off = self._run.chance.random() < 0.6, self._run.chance.random() < 0.5
        ways = self._ways(leader)
        try:
            if comes_back and is_cut_off:  # it leads alone, and its journal grows
                self._run.world.lines.cut(*ways)
                await asyncio.sleep(self._run.chance.uniform(5, 30))
            else:
                await leader.stop()
            await self._run.person.promote()
        finally:  # also where peace comes first
            if comes_back:
                leader.lost = False
                self._run.world.lines.heal(*(ways if is_cut_off else ()))
                self._run.start_again(leader)
