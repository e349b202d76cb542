"""The ranks of the sites of a simulated run: their steps, their frames, and how these come to other sites."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from geocomm.elastic.journal.entries import AnyRound, Digest, Round, Skip, Snapshot
from geocomm.elastic.journal.member import Act, Frame, MakeSum, Member, Recompute, Say, SendFrame, StartAgain
from geocomm.elastic.journal.messages import (
    Down,
    EntrySaid,
    Fetched,
    Lost,
    Model,
    Need,
    Offer,
    Open,
    Owner,
    Pass,
    RanksGone,
    RanksUp,
    ReadySaid,
    SnapshotHeld,
    Sum,
    Summed,
)
from support.journal.simulated_chain import FRAGMENTS, Content, Contents, State
from support.journal.simulated_checks import BrokenRunError, Checks, RunHasEnded
from support.journal.simulated_data import read_after
from support.journal.simulated_leader import SimulatedLeader
from support.journal.simulated_lines import LEADER, Lines
from support.journal.simulated_site import OwnFrame, Part, Ranks, Site, Step
from support.journal.simulated_time import SimulatedTime

_MAIL_PATIENCE_S = 2.0
"""A listed frame may be under way by mail for so long."""
_EVERY = 6
"""Steps from one round of a fragment to the next."""
_MOST_STEPS = 5 * _EVERY
"""That a frame stands for: a longer delta is shortened."""


class SimulatedRanks:
    """They decide by a real `Member`.

    A fragment is an integer, a step adds to it, a frame rounds the delta down to a multiple of 8 and keeps the
    residual."""

    def __init__(
        self,
        time: SimulatedTime,
        lines: Lines,
        sites: Mapping[str, Site],
        leader: SimulatedLeader,
        checks: Checks,
        contents: Contents,
        member: type[Member],
        reduce: str,
    ) -> None:
        """contents: of all frames; those that are made are added. reduce: as in LocalSettings."""
        self._settings = {} if reduce == "all" else {"reduce": reduce}
        self._time = time
        self._random = time.random
        self._lines = lines
        self._sites = sites
        self._leader = leader
        self._checks = checks
        self._contents = contents
        self._member = member
        self._mail_sent: dict[tuple[str, str], float] = {}
        self._steps = 0

    # ---- up and down

    def start(self, site: Site) -> None:
        """They come up in a moment."""
        ranks = Ranks(self._time.hex())

        def up() -> None:
            if site.ranks is None and not site.gone:
                site.ranks = ranks
                self.changed(site)
                site.later(site.step_s, lambda: self._step(site, ranks))

        site.later(self._random.uniform(0.5, 2), up)

    def end(self, site: Site, why: str) -> None:
        """They end, and others come."""
        site.ranks, site.has_wrong_bits = None, False
        site.needs.clear()
        self._leader.say(site, RanksGone(why=why))
        self.start(site)

    def changed(self, site: Site) -> None:
        """Ranks, a welcome or an entry are new: ranks are introduced, welcomed or said to be ready."""
        ranks = site.ranks
        if ranks is None or site.welcome is None:
            return
        state = site.state
        if ranks.introduced_to is not site.welcome:
            ranks.introduced_to = site.welcome
            digests = tuple(State(0).digest for _ in range(FRAGMENTS))
            model = Model(settings=self._settings, layout="0" * 32, fragments=FRAGMENTS, every=_EVERY)
            owner = Owner(id=ranks.id, host=site.name, port=1)
            self._leader.say(site, RanksUp(owners=(owner,), model=model, digests=digests))
            if ranks.member is not None:
                self._say_ready(site, ranks)
        known = state.sites.get(site.name)
        if ranks.member is None and known is not None and state.head.index >= site.welcome.head:
            self._welcome_ranks(site, ranks)

    def _welcome_ranks(self, site: Site, ranks: Ranks) -> None:
        states = [self._first_state(site, p) for p in range(FRAGMENTS)]
        if not all(states):
            return  # and again with the next entry
        states = [state for state in states if state is not None]
        ranks.parts = [Part(state, state.anchor) for state in states]
        ranks.goals = [*site.state.versions]
        ranks.read = site.state.sites[site.name].taken
        self._checks.reads_again(self._leader.chain, read_after(site.state, site.name, ranks.read))
        versions = {p: state.version for p, state in enumerate(states)}
        ranks.member = self._member(site.name, versions, sorted(site.disk.frames), site.state.head.index)
        for entry in site.disk.journal:
            # A state behind a void round is not loaded: such an entry is of a version that is to come.
            if isinstance(entry, AnyRound | Skip) and entry.version >= states[entry.fragment].version:
                self._do(site, ranks.member.on_down(EntrySaid(entry=entry)))
        for one in site.opens.values():
            self.tell(site, one)
        self._say_ready(site, ranks)

    def _first_state(self, site: Site, fragment: int) -> State | None:
        """From which the journal goes on: of the own disk, or another's; None: nobody who is reached has one."""
        least, most = site.disk.replayed_from(fragment), site.state.versions[fragment]
        own = site.disk.states.get(fragment, State(0))
        if own.version >= least:
            return own
        for one in self._can_be_asked(site, [*self._sites, LEADER]):
            state = one.disk.states.get(fragment)
            knows = one.state.skipped == site.state.skipped and one.state.term >= site.state.term
            if state is not None and knows and least <= state.version <= most:
                site.disk.states[fragment] = state
                return state
        if not any(self._goes_on(one, fragment) for one in self._sites.values() if not one.gone):
            raise RunHasEnded  # all that had a state have lost their disks
        return None

    @staticmethod
    def _goes_on(site: Site, fragment: int) -> bool:
        """Whether it has a state of the fragment, or begins at one of its own disk."""
        own = site.disk.states.get(fragment, State(0))
        member = None if site.ranks is None else site.ranks.member
        return member is not None or own.version >= site.disk.replayed_from(fragment)

    def _say_ready(self, site: Site, ranks: Ranks) -> None:
        if all(part.state.version >= goal for part, goal in zip(ranks.parts, ranks.goals, strict=True)):
            self._leader.say(site, ReadySaid())

    def tell(self, site: Site, message: Down) -> None:
        """The agent passes on what the leader says."""
        if site.ranks is not None and site.ranks.member is not None:
            self._do(site, site.ranks.member.on_down(message))

    # ---- steps and rounds

    def _step(self, site: Site, ranks: Ranks) -> None:
        if site.ranks is not ranks:
            return
        site.later(site.step_s * self._random.uniform(0.8, 1.2), lambda: self._step(site, ranks))
        if ranks.member is None or site.leaving:
            if ranks.member is not None:
                self._settle(site, ranks)
            return
        line = read_after(site.state, site.name, ranks.read)
        if not line:  # it waits for the leader
            self._settle(site, ranks)
            return
        site.steps += 1
        self._steps += 1
        self._checks.read[line[0]] += 1
        for part in ranks.parts:
            added = self._random.randint(1, 99)
            part.local += added
            part.uncounted.append(Step(self._steps, added, ranks.read, line[0]))
        ranks.read += 1
        self._settle(site, ranks)
        for fragment in range(FRAGMENTS):
            if site.ranks is ranks and (site.steps + fragment * _EVERY // FRAGMENTS) % _EVERY == 0:
                self._do(site, ranks.member.due(fragment))
        for opened in ranks.member.begins() if site.ranks is ranks else []:
            self._make(site, ranks, opened)

    def _make(self, site: Site, ranks: Ranks, opened: Open) -> None:
        fragment, part = opened.fragment, ranks.parts[opened.fragment]
        version = part.state.version
        if not part.uncounted:
            nothing = Pass(fragment=fragment, version=version, attempt=opened.attempt)
            self._do(site, ranks.member.made(nothing) if ranks.member is not None else [])
            return
        counted = part.uncounted[:_MOST_STEPS]
        rest = sum(step.added for step in part.uncounted[_MOST_STEPS:])
        delta = part.local - rest - part.state.anchor + part.residual
        coded = delta // 8 * 8
        text = f"{self._time.hex()} {coded}"
        frame = Frame(fragment, version, site.name, hashlib.sha256(text.encode()).hexdigest())
        steps, read = frozenset(step.number for step in counted), frozenset(step.sequence for step in counted)
        self._contents[frame.hash] = Content(frame, coded, part.state.digest, steps, read)
        part.frames[frame.hash] = OwnFrame(delta - coded, part.local - rest, len(counted))
        offer = Offer(
            fragment=fragment,
            version=version,
            attempt=opened.attempt,
            frame=frame.hash,
            coded_bytes=8,
            exact_bytes=0,
            weight=len(counted),
            step=site.steps,
            squared_norm=float(delta**2),
            lr=0.001,
            every=0,
            taken=counted[-1].token + 1,
        )

        def on_disk() -> None:
            if site.ranks is ranks and ranks.member is not None:
                self._write(site, frame)
                self._do(site, ranks.member.made(offer))

        site.later(self._random.uniform(0.01, 0.1), on_disk)

    def _settle(self, site: Site, ranks: Ranks) -> None:
        """Written back at the step hook: every round that is decided, and whose frames are here."""
        while site.ranks is ranks and ranks.member is not None and (settled := ranks.member.next_settled()):
            part = ranks.parts[settled.fragment]
            before = part.state
            if before.version != settled.version:
                raise BrokenRunError(f"{site.name} settles {settled.version} at version {before.version}")
            coded = self._coded(settled.entry)
            part.state = before.after(coded)
            if settled.counted is None:
                part.local += part.state.anchor - before.anchor
            else:
                own = part.frames[settled.counted.frame]
                part.local = part.state.anchor + part.local - own.local
                part.residual = own.residual
                del part.uncounted[: own.steps]
            part.frames.clear()
            self._checks.check_part(site, settled.fragment, part)
            disk = site.disk
            if self._random.random() < 0.3:
                disk.states[settled.fragment] = part.state
                old = part.state.version
                disk.frames = {one for one in disk.frames if one[0] != settled.fragment or one.version >= old}
            self._do(site, ranks.member.applied(settled, self._digest_said(site, part.state.digest)))
            self._say_ready(site, ranks)

    def _coded(self, entry: AnyRound | None) -> list[int]:
        """What is in the frames of a round, in their order."""
        if entry is None:
            return []
        if isinstance(entry, Round):
            return [self._contents[one.frame].coded for one in entry.members]
        return self._contents.sums[entry.sum.frame]

    def _make_sum(self, site: Site, asked: Sum) -> None:
        """The site averages for all."""
        ranks = site.ranks
        text = f"{self._time.hex()} {[one.frame for one in asked.members]}"
        frame = Frame(asked.fragment, asked.version, site.name, hashlib.sha256(text.encode()).hexdigest())
        self._contents.sums[frame.hash] = [self._contents[one.frame].coded for one in asked.members]
        summed = Summed(
            fragment=asked.fragment,
            version=asked.version,
            attempt=asked.attempt,
            frame=frame.hash,
            coded_bytes=8,
            exact_bytes=0,
            counts=tuple(one.site for one in asked.members),
        )

        def on_disk() -> None:
            if ranks is not None and site.ranks is ranks and ranks.member is not None:
                self._write(site, frame)
                self._do(site, ranks.member.summed(summed))

        site.later(self._random.uniform(0.01, 0.5), on_disk)

    def _digest_said(self, site: Site, digest: Digest) -> Digest:
        if not site.says_wrong_bits:
            return digest
        site.says_wrong_bits, site.has_wrong_bits = False, True
        self._checks.wrong_bits_said += 1
        return hashlib.md5(f"{site.name} {digest}".encode()).hexdigest()

    def take_snapshot(self, site: Site, entry: Snapshot) -> None:
        """Keep the states on disk once the site has come as far; of a later version, too, here."""
        ranks = site.ranks
        if ranks is None or ranks.member is None or site.state.snapshot != entry:
            return
        if any(part.state.version < entry.versions[p] for p, part in enumerate(ranks.parts)):
            site.later(site.step_s, lambda: self.take_snapshot(site, entry))
            return
        site.disk.states |= {p: part.state for p, part in enumerate(ranks.parts)}
        site.disk.snapshots.add(entry.index)
        self._leader.say(site, SnapshotHeld(snapshot=entry.index, digest=f"{entry.index:032x}"))

    def _do(self, site: Site, acts: list[Act]) -> None:
        for act in acts:
            match act:
                case Say(Need() as need):
                    frame = Frame(need.fragment, need.version, need.site, need.frame)
                    if frame not in site.needs and frame[:2] not in site.state.skipped:
                        site.needs.add(frame)
                        site.later(_MAIL_PATIENCE_S, lambda frame=frame: self._fetch_listed(site, frame))
                case Say():
                    self._leader.say(site, act.message)
                case SendFrame():
                    for peer in act.peers:
                        self._mail(site, peer.site, peer.owners[0].id, act.offer)
                case MakeSum():
                    self._make_sum(site, act.asked)
                case Recompute():
                    self._checks.repairs(site)
                    self.end(site, "they repair a fragment")
                    return
                case StartAgain():
                    self.end(site, act.why)
                    return

    def _fetch_listed(self, site: Site, frame: Frame) -> None:
        self.fetch(site, frame, [*self._sites, LEADER], again=True)

    def _mail(self, site: Site, name: str, process: str, offer: Offer | Summed) -> None:
        peer = self._sites[name]
        frame = Frame(offer.fragment, offer.version, site.name, offer.frame)
        pair = (site.name, name)
        self._mail_sent[pair] = max(self._mail_sent.get(pair, 0), self._time.now + self._time.way())
        sender = site.ranks

        def arrives() -> None:
            if peer.ranks is None or peer.ranks.id != process or site.ranks is not sender or not peer.up:
                return
            if not self._lines.reach(*pair):
                # A channel resumes; where the cut is long, it does not.
                if self._random.random() < 0.7:
                    self._time.after(2, arrives)
                return
            peer.later(self._random.uniform(0.01, 0.1), lambda: on_disk(peer.ranks))

        def on_disk(ranks: Ranks | None) -> None:
            if ranks is None or ranks.id != process:
                return
            if ranks.member is not None:
                self._write(peer, frame)
                peer.needs.discard(frame)
                self._do(peer, ranks.member.arrived(*frame, by_mail=True))

        self._time.at(self._mail_sent[pair], arrives)

    # ---- files

    def fetch(self, site: Site, frame: Frame, sources: list[str], *, again: bool) -> None:
        """From one of the sources; `again`: until it is here, or a state behind that round is."""
        if frame in site.disk.frames:
            site.later(0, lambda: self._fetched(site, frame))
            return
        holders = [one for one in self._can_be_asked(site, sources) if frame in one.disk.frames]
        if holders:
            site.later(self._random.uniform(0.1, 1), lambda: self._fetched(site, frame))
            return
        if not again or frame not in site.needs:
            return
        skips = len(site.state.skipped)
        for one in self._can_be_asked(site, sources):
            state = one.disk.states.get(frame.fragment)
            fits = state is not None and frame.version < state.version <= site.state.versions[frame.fragment]
            knows = one.state.skipped == site.state.skipped and one.state.term >= site.state.term
            if state is not None and fits and knows:
                site.later(
                    self._random.uniform(0.2, 2), lambda state=state: self._take_state(site, frame, state, skips)
                )
                return
        if site.welcome is not None and site.state.head.index >= site.welcome.head:
            self._leader.say(
                site, Lost(fragment=frame.fragment, version=frame.version, site=frame.site, frame=frame.hash)
            )
        site.later(4, lambda: self.fetch(site, frame, sources, again=True))

    def _can_be_asked(self, site: Site, sources: list[str]) -> list[Site]:
        """Who is reached, by itself or through the leader's agent."""
        leader = LEADER in sources and self._leader.sequencer is not None and self._lines.reach(site.name, LEADER)
        return [
            one
            for one in self._sites.values()
            if one is not site
            and (one.up or one.gone)
            and one.paused_until <= self._time.now
            and (
                (one.name in sources and self._lines.reach(site.name, one.name))
                or (leader and self._lines.reach(LEADER, one.name))
            )
        ]

    def _fetched(self, site: Site, frame: Frame) -> None:
        self._write(site, frame)
        site.needs.discard(frame)
        self.tell(site, Fetched(fragment=frame.fragment, version=frame.version, site=frame.site, frame=frame.hash))

    def _take_state(self, site: Site, frame: Frame, state: State, skips: int) -> None:
        """Unless a skip came meanwhile, after which that state may be another one."""
        if frame in site.needs and len(site.state.skipped) == skips:
            site.disk.states[frame.fragment] = state
            self.end(site, "they take a state")
        else:
            self.fetch(site, frame, [*self._sites, LEADER], again=True)

    def _write(self, site: Site, frame: Frame) -> None:
        site.disk.frames.add(frame)
        self._checks.written(site.disk.store, frame)
