"""The rank of a simulated site: it decides by a real `Member`, and reads by real `SiteDeals`; what it would compute is
in `anchors`. Frames and states are real files of a real store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files.fragment_store import FrameLostError
from geocomm.elastic.files.snapshots import Layout, Snapshots
from geocomm.elastic.journal.entries import EMPTY, Join, Listed, Round, Snapshot, SumFrame, SummedRound
from geocomm.elastic.journal.mailed_frames import mailed_to
from geocomm.elastic.journal.member import (
    Act,
    CheckSum,
    MakeSum,
    Member,
    Recompute,
    Say,
    SendFrame,
    Settled,
    StartAgain,
)
from geocomm.elastic.journal.messages import (
    Beat,
    Down,
    EntrySaid,
    Leave,
    Leaving,
    Offer,
    Open,
    Owner,
    Pass,
    RankHello,
    RankWelcome,
    Refused,
    Stop,
    Summed,
    TakeState,
    Up,
)
from geocomm.elastic.rank_starts import say_ended_by_run
from geocomm.elastic.site.rank_socket import newest_head, with_head
from support.whole_run.agents import RankLine, store_of_process
from support.whole_run.anchors import EVERY, FRAGMENTS, FRAME_BYTES, MODEL, STATE_BYTES, Anchor, Own, Part, Step
from support.whole_run.data import Life
from support.whole_run.machines import Machine, World
from support.whole_run.rank_averages import RankAverages
from support.whole_run.rank_mail import RankMail
from support.whole_run.reading import Reading
from support.whole_run.registry import Registry

_MOST_STEPS = 5 * EVERY
_RETRY_S = 0.2


class _EndedError(Exception):
    """The rank ends."""


class Rank:
    """The ranks of a site, as one process that owns all fragments."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        run_dir: str,
        chance: random.Random,
        registry: Registry,
        step_s: float,
        rate: Callable[[int], float],
        reduce: str = "all",
        lies: bool = False,
    ) -> None:
        """lies: as an aggregator it makes something else of the frames."""
        self._world, self._machine, self._chance, self._registry = world, machine, chance, registry
        self._store = store_of_process(run_dir)
        self._snapshots = Snapshots(self._store)
        self._step_s, self._rate = step_s, rate
        self._model = MODEL.model_copy(update={"settings": MODEL.settings | {"reduce": reduce}})
        self._averages = RankAverages(self, machine.name, self._store, chance, registry, lies=lies)
        self._mail = RankMail(world, machine, self._store, chance, registry, self.later)
        self._expected: set[tuple[int, int, str]] = set()
        """(fragment, version, site): the mail that this rank takes, where there are regions."""
        self._unexpected: list[tuple[Offer | Summed, str, bytes]] = []
        self._owner = Owner(id=f"{chance.getrandbits(128):032x}", host=machine.host, port=1)
        self.member: Member | None = None
        self._parts = [Part(Anchor(0), 0) for _ in range(FRAGMENTS)]
        self._line: RankLine | None = None
        self._head = EMPTY
        self._answer: asyncio.Future[RankWelcome | Refused | Stop] = asyncio.get_running_loop().create_future()
        self._early: list[Down] | None = []
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._wanted: set[int] = set()
        self._for_snapshots: dict[tuple[int, int], list[Snapshot]] = {}
        self._step = 0
        self._ahead = 0
        self._next_due = [(index + 1) * EVERY // FRAGMENTS for index in range(FRAGMENTS)]
        self._since_state = [0] * FRAGMENTS
        self._news = asyncio.Event()
        """The member knows more than before."""
        self._leaves = self._has_said_leave = False
        self._reading = Reading(machine.name)
        self._life = Life(machine.name, -1)

    # ---- its life

    async def run(self) -> str:
        """Until it ends: why. Cancelled: it is killed."""
        self._registry.ranks[self._owner.id] = self
        try:
            talking = asyncio.create_task(self._talk())
            training = asyncio.create_task(self._train())
            try:
                await asyncio.wait([talking, training, self._failure], return_when=asyncio.FIRST_COMPLETED)
                for one in (self._failure, talking, training):
                    if one.done():
                        one.result()
                return "it is done"
            except _EndedError as error:
                return str(error)
            finally:
                for task in (talking, training, *self._tasks):
                    task.cancel()
                self._failure.cancel()
                await asyncio.gather(talking, training, *self._tasks, return_exceptions=True)
        finally:
            del self._registry.ranks[self._owner.id]
            if self._line is not None:
                self._line.to_agent.put_nowait(None)

    def _fail(self, why: str) -> None:
        if not self._failure.done():
            self._failure.set_exception(_EndedError(why))

    def _end_by_run(self, why: str) -> None:
        say_ended_by_run(self._store.files, why)
        self._fail(why)

    def later(self, delay: float, call: Callable[[], None]) -> None:
        """Call it then, while the rank lives."""

        async def work() -> None:
            await asyncio.sleep(delay)
            call()

        task = asyncio.create_task(work())
        self._tasks[task] = None
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failure.done():
            self._failure.set_exception(error)

    # ---- the agent

    async def _talk(self) -> None:
        while True:
            server = self._machine.rank_server
            if server is not None:
                self._line = line = server.connect(with_head(self._hello(), self._head))
                try:
                    while (down := await line.to_rank.get()) is not None:
                        self._head = newest_head(self._head, down)
                        if isinstance(down, RankWelcome | Refused | Stop) and not self._answer.done():
                            self._answer.set_result(down)
                        self._on_down(down)
                finally:
                    self._line = None
                    line.to_agent.put_nowait(None)
            await asyncio.sleep(_RETRY_S)

    def _hello(self) -> RankHello:
        member = self.member
        return RankHello(
            place=0,
            owners=1,
            owner=self._owner,
            model=self._model,
            digests={index: part.anchor.digest for index, part in enumerate(self._parts)},
            versions=dict.fromkeys(range(FRAGMENTS), 0) if member is None else member.versions,
            trains=member is not None,
        )

    def say(self, up: Up) -> None:
        """To the agent."""
        if self._line is not None:
            self._line.to_agent.put_nowait(up)

    def _on_down(self, down: Down) -> None:
        if self._early is not None:
            self._early.append(down)
            return
        match down:
            case Stop(again=True):
                self._end_by_run(down.why)
                return
            case Stop() | Refused():
                self._fail(down.why)
                return
            case EntrySaid(entry=Snapshot() as entry):
                for index in range(FRAGMENTS):
                    self._for_snapshots.setdefault((index, entry.versions[index]), []).append(entry)
            case EntrySaid(entry=(Round() | SummedRound()) as entry):
                now = asyncio.get_running_loop().time()
                self._registry.counted_at.update((one.site, now) for one in entry.members)
            case EntrySaid(entry=Join() as entry) if entry.site != self._machine.name:
                self._wanted |= set(range(FRAGMENTS))
            case SiteDeal():
                self._reading.dealt.append(down)
            case RankWelcome():
                self._reading.leader = down.leader
            case Leaving():
                self._leaves = True
            case TakeState() if not self._store.state_path(down.fragment, down.version).exists():
                self._registry.broken.append(f"{self._machine.name} is to take a state that is not on its disk")
            case _:
                pass
        if self.member is not None:
            self.do(self.member.on_down(down))
        if isinstance(down, Open) and self._registry.regions.groups:
            named = down.fragment, down.version
            self._expected |= {(*named, peer.site) for peer, _ in mailed_to(down, self._machine.name)}
            early, self._unexpected = self._unexpected, []
            for one in early:
                self.mail_came(*one)

    # ---- training

    async def _train(self) -> None:
        welcome = await self._answer
        if not isinstance(welcome, RankWelcome):
            raise _EndedError(welcome.why)
        for index, version in welcome.states.items():
            self._parts[index] = self._read(index, version)
        with contextlib.suppress(OSError):
            self._snapshots.write_layout(Layout(layout="0" * 32, fragments=((),) * FRAGMENTS, shapes={}))
        versions = {index: part.anchor.version for index, part in enumerate(self._parts)}
        self._life = Life(self._machine.name, welcome.head)
        self.member = Member(self._machine.name, versions, head=welcome.head)
        early, self._early = self._early or [], None
        for index, version in welcome.versions.items():
            if version == 0:
                self._write_state(index)
        for one in early:
            self._on_down(one)
        self._beat_for_ever()
        self._settle()
        while any(part.anchor.version < welcome.versions[index] for index, part in enumerate(self._parts)):
            self._news.clear()  # a rank that is alone, and has applied the last round, would hear of nothing any more
            await self._news.wait()
            self._settle()
        self._reading.begin(welcome)
        self._step = welcome.step
        self._next_due = [self._step + due for due in self._next_due]
        while not self._has_said_leave:
            await asyncio.sleep(self._step_s * self._chance.uniform(0.8, 1.2))
            self._take_step()
        await asyncio.sleep(60)

    def _read(self, index: int, version: int) -> Part:
        try:
            anchor = Anchor.read(version, self._store.read_state(index, version))
        except (OSError, ValueError) as error:
            raise _EndedError(f"its state cannot be read: {error}") from None
        return Part(anchor, anchor.value)

    def _take_step(self) -> None:
        member = self.member
        if member is None:
            return
        if not self._leaves and (read := self._reading.next_batch()) is not None:
            self._step += 1
            self._registry.numbers += 1
            for part in self._parts:
                added = self._chance.randint(1, 99)
                part.local += added
                part.uncounted.append(Step(self._registry.numbers, added, self._reading.taken, read))
        self._settle()
        for opened in member.begins():
            member.begun(opened)
            self._make(opened)
        for index in range(FRAGMENTS):
            if self._step >= self._next_due[index] or self._leaves:
                self.do(member.due(index))
            self._write_wanted(index)
        if self._leaves and not any(part.uncounted for part in self._parts):
            self.say(Leave())
            self._has_said_leave = True

    def _beat_for_ever(self) -> None:
        step = self._step + self._ahead
        self.say(Beat(step=step, tokens=self._reading.taken, step_s=self._step_s, line_s=0.1, free_bytes=0))
        self.later(3.0, self._beat_for_ever)

    def _make(self, opened: Open) -> None:
        index, part, member = opened.fragment, self._parts[opened.fragment], self.member
        if member is None:
            return
        self._next_due[index] = self._step + EVERY
        version = part.anchor.version
        if not part.uncounted:
            self.do(member.made(Pass(**opened.named)))
            return
        counted = part.uncounted[:_MOST_STEPS]
        rest = sum(one.added for one in part.uncounted[_MOST_STEPS:])
        delta = part.local - rest - part.anchor.value + part.residual
        coded = delta // 8 * 8
        content = json.dumps([coded, part.anchor.digest, self._chance.getrandbits(64)]).encode().ljust(FRAME_BYTES)
        local = part.local - rest
        run_step = self._step + self._ahead

        def write() -> None:
            try:
                frame = self._store.write_frame(index, version, self._machine.name, [content])
            except OSError:
                self.do(member.made(Pass(**opened.named)))
                return
            part.frames[frame] = Own(delta - coded, local, len(counted))
            self._registry.steps[frame[:16]] = frozenset(one.number for one in counted)
            self._registry.read[frame[:16]] = self._life, frozenset(one for step in counted for one in step.read)
            offer = Offer(
                **opened.named,
                frame=frame,
                coded_bytes=len(content),
                exact_bytes=0,
                weight=len(counted),
                step=run_step,
                squared_norm=float(delta**2),
                lr=self._rate(run_step),
                every=0,
                taken=counted[-1].taken,
            )
            self.do(member.made(offer))

        self.later(self._chance.uniform(0.01, 0.1), write)

    def _settle(self) -> None:
        """At the step hook: every round that is decided, and whose frames are here."""
        member = self.member
        while member is not None and (settled := member.next_settled()):
            self._write_wanted(settled.fragment)
            part = self._parts[settled.fragment]
            if part.anchor.version != settled.version:
                self._registry.broken.append(f"{self._machine.name} settles {settled.version} at another version")
            try:
                self._apply(part, settled)
            except FrameLostError as lost:
                self.ask_again(lost)
                continue
            self.do(member.applied(settled, part.anchor.digest))
            size = 0 if settled.entry is None else sum(one.size for one in settled.entry.frames)
            self._since_state[settled.fragment] += size
            if self._since_state[settled.fragment] > STATE_BYTES:
                self._write_state(settled.fragment)

    def _apply(self, part: Part, settled: Settled) -> None:
        before, entry = part.anchor, settled.entry
        if settled.state is not None:
            part.anchor = self._read(settled.fragment, settled.state).anchor
        else:
            coded: list[int] = []
            if isinstance(entry, Round):
                coded = self._coded(entry.fragment, entry.version, entry.members)
            elif entry is not None:
                coded, base = self._frame(entry.fragment, entry.version, entry.sum)[:2]
                if base != before.digest:
                    self._registry.broken.append(f"{entry.sum.site} has averaged deltas to another state")
            for one in entry.members if entry is not None else ():
                self._ahead = max(self._ahead, one.step - self._step)
            part.anchor = before.after(coded, settled.after)
        if settled.counted is None:
            part.local += part.anchor.value - before.value
        else:
            own = part.frames[settled.counted.frame]
            part.local = part.anchor.value + part.local - own.local
            part.residual = own.residual
            del part.uncounted[: own.steps]
        part.frames.clear()
        if part.local - part.anchor.value != sum(one.added for one in part.uncounted):
            self._registry.broken.append(f"{self._machine.name} has other uncounted steps than its weights say")

    def ask_again(self, lost: FrameLostError) -> None:
        """As `MemberRounds` does."""
        if self.member is not None:
            self.do([*self.member.lost(lost.fragment, lost.version, lost.site, lost.frame)])

    def _frame(self, fragment: int, version: int, listed: Listed | SumFrame) -> Any:
        """What is in a frame on this disk, which may have lost it."""
        return json.loads(self._store.read_frame(fragment, version, listed.site, listed.frame))

    def _coded(self, fragment: int, version: int, members: Iterable[Listed]) -> list[int]:
        """What is in the frames of a round, in their order."""
        coded: list[int] = []
        for one in members:
            value, base, _ = self._frame(fragment, version, one)
            if base != self._parts[fragment].anchor.digest:
                self._registry.broken.append(f"{one.site} has offered a delta to another state")
            coded.append(value)
        return coded

    def _write_wanted(self, index: int) -> None:
        key = (index, self._parts[index].anchor.version)
        if index in self._wanted or key in self._for_snapshots:
            self._wanted.discard(index)
            self._write_state(index)

    def _write_state(self, index: int) -> None:
        anchor = self._parts[index].anchor
        self._since_state[index] = 0
        snapshots = self._for_snapshots.pop((index, anchor.version), [])
        with contextlib.suppress(OSError):
            digest = self._store.write_state(index, anchor.version, [anchor.content])
            self._registry.states[self._machine.name, index, anchor.version].add(digest)
            for snapshot in snapshots:
                self._snapshots.keep_state(snapshot.index, index, anchor.version)
            held = self._store.states(index)
            if len(held) > 2:
                self._store.remove_before(index, held[-2])

    # ---- what the member wants

    def do(self, acts: list[Act]) -> None:
        """What the member wants."""
        self._news.set()
        for act in acts:
            match act:
                case Say(message):
                    self.say(message)
                case SendFrame(offer, peers):
                    for peer in peers:
                        self._mail.send(peer.site, peer.owners[0].id, offer)
                case MakeSum(asked):
                    self._averages.make(asked)
                case CheckSum(asked):
                    self._averages.check(asked)
                case Recompute(fragment):
                    self._registry.repairs += 1
                    self._fail(f"fragment {fragment} differs from that of the others")
                    return
                case StartAgain(fragment, version, why):
                    self._store.remove_states_after(fragment, version)
                    self._end_by_run(why)
                    return

    def mail_came(self, offer: Offer | Summed, site: str, content: bytes) -> None:
        """A frame of another rank's."""
        member = self.member
        if member is None or offer.version < member.versions[offer.fragment]:
            return
        if self._registry.regions.groups and (offer.fragment, offer.version, site) not in self._expected:
            self._unexpected.append((offer, site, content))
            return

        def kept() -> None:
            if member.versions[offer.fragment] > offer.version:
                return
            with contextlib.suppress(OSError):
                frame = self._store.write_frame(offer.fragment, offer.version, site, [content])
                self.do(member.arrived(offer.fragment, offer.version, site, frame, by_mail=True))

        self.later(self._chance.uniform(0.001, 0.05), kept)
