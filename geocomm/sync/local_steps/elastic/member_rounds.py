"""The rounds of one rank in an elastic run: frames go from rank to rank, and the agent says what counts.

One thread does all of it, so no step waits for the agent or for another site. It drives the pure logic of
`journal.member` and carries out its acts: frames lie in the run folder before anything is said of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

import torch

from geocomm.core.errors import AbortedError, InvalidArgumentError, ReplicaMismatchError
from geocomm.core.message_log import CalmLog, logger
from geocomm.data.deal_records import SiteDeal
from geocomm.elastic.files.fragment_store import FragmentStore, FrameLostError
from geocomm.elastic.files.snapshots import Layout
from geocomm.elastic.journal.entries import AnyRound, Away, Join, Left, Removed, Skip, Snapshot, TermBegun
from geocomm.elastic.journal.member import (
    Act,
    CheckSum,
    Frame,
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
    Check,
    Down,
    EntrySaid,
    Fetched,
    Leave,
    Leaving,
    Model,
    Offer,
    Open,
    Owner,
    Pass,
    Peers,
    RankHello,
    RankWelcome,
    Refused,
    Stop,
    Sum,
    SumChecked,
)
from geocomm.elastic.rank_starts import say_ended_by_run
from geocomm.elastic.site.rank_socket import RankSocket
from geocomm.sync.local_steps.elastic.frame_mail import Expected, FrameMail
from geocomm.sync.local_steps.elastic.member_frames import Decided, Delta, MemberFrames
from geocomm.sync.local_steps.elastic.member_records import MemberRecords
from geocomm.sync.local_steps.elastic.member_states import MemberStates
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.outer.anchor import AnchoredFragment
from geocomm.sync.local_steps.outer.call_thread import CallThread
from geocomm.sync.local_steps.outer.rounds import Coding, wait_for
from geocomm.sync.local_steps.outer.schedule import LineClock

if TYPE_CHECKING:
    from geocomm._C import Mail

BEAT_S = 3.0
_COMPLAINT_S = 60.0


class MemberRounds:
    """The rounds of the fragments that this rank owns: `begin` first, then `go`, `close` last."""

    def __init__(
        self,
        site: str,
        place: int,
        owners: int,
        host: str,
        mail: Mail,
        agent: str,
        run_dir: str,
        fragments: Sequence[Fragment],
        model: Model,
        coding: Coding,
    ) -> None:
        """place: of this rank among the ranks that own fragments. host: where others reach `mail`. fragments: its own.

        Raises StoreError for a run folder that cannot be used.
        """
        self.site = site
        self.line = LineClock()
        """Runs while frames are coded or averaged."""
        self._place, self._owners = place, owners
        self._owner = Owner(id=mail.id.hex(), host=host, port=mail.port)
        self._mail = mail
        self._store = FragmentStore(run_dir)
        self._fragments = frozenset(fragment.index for fragment in fragments)
        self._model = model
        self._due_a_step = -(-len(fragments) // model.every)
        self._agent = RankSocket(agent, self._hello, self._heard)
        self._answer = Future[RankWelcome | Refused | Stop]()
        """To the first hello."""
        self._thread = CallThread("geocomm-member")
        self._trains = False
        self.is_leaving = False
        """The site is to end in good order: `say_leave` once its last steps have counted."""
        self.has_left = False
        """Whether the journal says that this site has left: nothing of it counts any more."""
        self.leader = ""
        """Who deals, for messages."""
        self._dealt = deque[SiteDeal]()
        self._records = MemberRecords(site, self._is_past)
        # Of several threads: used under the lock.
        self._lock = threading.Lock()
        self._member: Member | None = None
        self._digests: dict[int, str] = {}
        self._decided: dict[int, Decided] = {}
        self._beat = Beat(step=0, tokens=0, step_s=0.0, line_s=0.0, free_bytes=0)
        # The thread's own.
        self._early: list[Down] | None = []  # what was heard before `go`
        self._state_numels: dict[int, int] = {}
        self._frame_mail = FrameMail(mail, site, model.fragments, self._mail_came)
        by_index = {fragment.index: fragment for fragment in fragments}
        self._frames = MemberFrames(site, self._store, by_index, coding, self.line)
        self._states = MemberStates(self._store, self._fragments)
        self._complaints = CalmLog(logger().warning, _COMPLAINT_S)

    # ---- the training thread

    def begin(self, digests: Mapping[int, str]) -> RankWelcome:
        """Say hello, and wait for the welcome. digests: of the own fragments, at version 0.

        Raises InvalidArgumentError where the run refuses this site; a wait is logged.
        """
        self._digests = dict(digests)
        self._thread.start()
        self._agent.start()

        def whom() -> str:
            if self._agent.connected:
                return "the other ranks of this site and the run's leader"
            return f"the agent at {self._agent.path}"

        wait_for(lambda seconds: bool(futures.wait([self._answer], seconds).done), "the beginning", whom)
        answer = self._answer.result()
        if not isinstance(answer, RankWelcome):
            raise _not_taken_in(answer.why)
        return answer

    def go(self, held: Mapping[int, AnchoredFragment], head: int) -> None:
        """Take part from the versions on that the own fragments have, as loaded from the disk. head: see `Member`."""
        self._state_numels = {index: one.state_numel for index, one in held.items()}
        digests = {index: one.digest() for index, one in held.items()}
        with self._lock:
            self._digests = digests
            self._member = Member(self.site, {index: one.version for index, one in held.items()}, head=head)
        self._thread.post(self._take_early)

    def decided(self) -> dict[int, Decided]:
        """The own fragments of which a round is to be applied now. Raises what the thread has failed with."""
        self.check()
        with self._lock:
            return dict(self._decided)

    def check(self) -> None:
        """Raise what the thread has failed with."""
        if self._thread.failure is not None:
            raise self._thread.failure

    def take_dealt(self) -> list[SiteDeal]:
        """What was dealt to the site since the last call; at the rank that owns fragment 0."""
        return [self._dealt.popleft() for _ in range(len(self._dealt))]

    def to_begin(self) -> dict[int, Open]:
        """The own fragments of which a frame is to be made now: `offer` or `give_nothing` follows for each."""
        with self._lock:
            return {opened.fragment: opened for opened in self._require_member().begins()}

    def due(self, fragment: int) -> None:
        """The site's schedule says that it is time for a round of the fragment."""
        with self._lock:
            version = self._require_member().versions[fragment]
        self._records.of(fragment, version).due()
        acts = self._told(lambda member: member.due(fragment))
        self._thread.post(lambda: self._act(acts))

    def offer(self, opened: Open, delta: Delta) -> None:
        """Make a frame of the delta, send it and offer it."""
        self._records.of(opened.fragment, opened.version).begun(delta.own.step, delta.weight)
        with self._lock:
            self._require_member().begun(opened)
        self._thread.post(lambda: self._make(opened, delta))

    def give_nothing(self, opened: Open) -> None:
        """The site has nothing to offer in this attempt."""
        acts = self._told(lambda member: member.made(Pass(**opened.named)))
        self._thread.post(lambda: self._act(acts))

    def applied(self, decided: Decided, held: AnchoredFragment) -> None:
        """What was decided is done, and `held` is at its new version."""
        settled, digest = decided.settled, held.digest()
        with self._lock:
            del self._decided[settled.fragment]
            self._digests[settled.fragment] = digest
            acts = self._require_member().applied(settled, digest)
        self._thread.post(lambda: self._after_applied(settled, acts))
        self._states.passed(settled.fragment, settled.after)
        self._records.applied(settled.fragment, settled.version, settled.after)

    def write_state(self, held: AnchoredFragment) -> None:
        """Keep a copy of the state in the run folder, and let go of what it makes needless."""
        fragment, version = held.fragment.index, held.version
        copies = [part.clone() for part in held.parts]
        self._thread.post(lambda: self._keep_state(fragment, version, copies))

    def read_state(self, held: AnchoredFragment, version: int) -> None:
        """Load the state of a version from the run folder. Raises CorruptDataError for one of another size."""
        held.take(self._states.read(held.fragment.index, version, held.state_numel), version)

    def wants_state(self, fragment: int, version: int) -> bool:
        """Whether the state of the fragment at this version is to be written: for a site that has joined since the last
        one, and would have to replay long, or for a snapshot. Said once. Asked before a round is applied: the entry of
        a snapshot may have come with that of the next round."""
        return self._states.wants(fragment, version)

    def write_layout(self, layout: Layout) -> None:
        """Keep, in the run folder, where the parameters lie in the fragments."""
        try:
            self._states.write_layout(layout)
        except OSError as error:
            self._complain(error)

    def kept_weights(self) -> list[tuple[int, torch.Tensor | None]]:
        """Fragment and weights, kept for the merge, of each own frame under way."""
        return self._frames.kept_weights()

    def tell(self, beat: Beat) -> None:
        """How the site does; goes out every BEAT_S."""
        with self._lock:
            self._beat, self._trains = beat, True

    def say_leave(self) -> None:
        """Say that what this rank has offered counts, and that the site may end."""
        self._agent.say(Leave())

    def leave(self, limit_s: float) -> None:
        """Say that the site ends in good order; what it has offered before is its last. Waits until it is sent."""
        self._agent.say(Leave(finished=not self.is_leaving))
        self._agent.close(limit_s)

    def close(self) -> None:
        """End the thread, and let go of everything. Idempotent."""
        self._thread.stop()
        self._agent.close()
        self._mail.close(2.0)

    # ---- the thread of the agent's socket

    def _heard(self, message: Down) -> None:
        if isinstance(message, RankWelcome | Refused | Stop) and not self._answer.done():
            self._answer.set_result(message)
        self._thread.post(partial(self._on_down, message))

    def _hello(self) -> RankHello:
        with self._lock:
            return RankHello(
                place=self._place,
                owners=self._owners,
                owner=self._owner,
                model=self._model,
                digests=dict(self._digests),
                versions=dict.fromkeys(self._fragments, 0) if self._member is None else self._member.versions,
                trains=self._member is not None,
            )

    # ---- the thread

    def _say_beat(self) -> None:
        self._thread.post_later(BEAT_S, self._say_beat)
        with self._lock:
            beat = self._beat
        if self._place == 0:
            self._agent.say(beat.model_copy(update={"free_bytes": self._store.free_bytes}))

    def _take_early(self) -> None:
        early, self._early = self._early or [], None
        for message in early:
            self._on_down(message)
        self._say_beat()

    def _on_down(self, message: Down) -> None:
        if self._early is not None:
            self._early.append(message)
            if isinstance(message, Peers):  # to connect takes seconds, in which the frames of the past are fetched
                self._frame_mail.meet(message.peers, self._fragments)
            return
        match message:
            case Stop(again=True):
                raise self._ended_by_run(message.why)
            case Stop() if self._trains:
                raise AbortedError(f"local steps: the run has stopped this site: {message.why}")
            case Refused() | Stop():
                raise _not_taken_in(message.why)
            case Open() if message.fragment in self._fragments:
                self._records.opened(message)
                self._frame_mail.expect(message)
            case Peers():
                self._frame_mail.meet(message.peers, self._fragments)
            case Fetched():
                self._records.arrived(message.fragment, message.version, message.site)
            case EntrySaid():
                self._follow(message)
            case Leaving():
                self.is_leaving = True
            case SiteDeal():
                self._dealt.append(message)
            case RankWelcome():
                self.leader = message.leader
            case _:
                pass
        self._act(self._told(lambda member: member.on_down(message)))

    def _follow(self, said: EntrySaid) -> None:
        if isinstance(said.entry, AnyRound | Skip):
            self._records.decided(said.entry)
        if isinstance(said.entry, Left) and said.entry.site == self.site:
            self.has_left = self.is_leaving  # else it had left before these ranks began
        if isinstance(said.entry, TermBegun):
            self.leader = f"the leader, {said.entry.site} at {said.entry.address},"
        if isinstance(said.entry, Away | Left | Removed):
            self._frame_mail.forget(said.entry.site)
        if isinstance(said.entry, Snapshot):
            self._states.take_snapshot(said.entry)
        if isinstance(said.entry, Join) and said.entry.site != self.site:
            self._states.joined()

    def _require_member(self) -> Member:
        if self._member is None:
            raise InvalidArgumentError("local steps: the rounds have not begun")
        return self._member

    def _is_past(self, fragment: int, version: int) -> bool:
        """Whether a round is applied, or the fragment is another rank's. From any thread."""
        with self._lock:
            return version < self._require_member().versions.get(fragment, version + 1)

    def _told(self, what: Callable[[Member], list[Act]]) -> list[Act]:
        """Tell the member something, from any thread: what is to be done on this one, `_act`."""
        with self._lock:
            return what(self._require_member())

    def _act(self, acts: Iterable[Act]) -> None:
        for act in acts:
            match act:
                case Say(message):
                    self._agent.say(message)
                case SendFrame(offer, peers):
                    content = self._frames.content(Frame(offer.fragment, offer.version, self.site, offer.frame))
                    self._frame_mail.send(offer, peers, content)
                case MakeSum(asked):
                    self._thread.post(partial(self._make_sum, asked))
                case CheckSum(asked):
                    self._thread.post(partial(self._check_sum, asked))
                case Recompute(fragment):
                    raise ReplicaMismatchError(
                        f"local steps: fragment {fragment} of this site differs from that of the others; start its "
                        "ranks again, and they take it over"
                    )
                case StartAgain(fragment, version, why):
                    self._store.remove_states_after(fragment, version)
                    raise self._ended_by_run(why)
        self._show()

    def _show(self) -> None:
        """Let the training thread see what is decided: of each fragment what comes next, and no more averages at a time
        than what is due in a step, and one."""
        while True:
            with self._lock:
                settled = self._require_member().next_settled(self._decided)
                if settled is None or len(self._decided) > self._due_a_step:
                    return
            try:
                state = partial(self._states.read, numel=self._state_numels[settled.fragment])
                decided = self._frames.decide(settled, self._records.of(settled.fragment, settled.version), state)
            except FrameLostError as lost:  # others of the round may be too: they show when this one has come
                self._ask_again(lost)
                continue
            with self._lock:
                self._decided[settled.fragment] = decided

    def _ask_again(self, lost: FrameLostError) -> None:
        """The disk has not kept a frame: where a round needs it, the agent gets it from other sites."""
        logger().warning(f"local steps: {lost}: it is fetched where a round needs it")
        with self._lock:
            says = self._require_member().lost(lost.fragment, lost.version, lost.site, lost.frame)
        for say in says:
            self._agent.say(say.message)

    def _mail_came(self, expected: Expected, content: torch.Tensor | None, why: str) -> None:
        """On a thread of the native core."""
        if content is not None:
            self._records.arrived(expected.fragment, expected.version, expected.site, content.numel())
        self._thread.post(lambda: self._on_mail(expected, content, why))

    def _on_mail(self, expected: Expected, content: torch.Tensor | None, why: str) -> None:
        fragment, version, _, site = expected
        self._frame_mail.stop_expecting(expected)
        if content is None:
            logger().debug(f"local steps: the frame of site {site!r} did not come by mail: {why}")
            return
        if self._is_past(fragment, version):
            return
        try:
            frame = self._frames.keep(fragment, version, site, content)
        except OSError as error:
            self._complain(error)
            return
        self._act(self._told(lambda member: member.arrived(fragment, version, site, frame, by_mail=True)))

    def _make(self, opened: Open, delta: Delta) -> None:
        """Make a frame of the delta, and offer it."""
        said: Offer | Pass
        try:
            said = self._frames.make(opened, delta, self._records.of(opened.fragment, opened.version))
        except OSError as error:
            self._complain(error)
            said = Pass(**opened.named)
        self._act(self._told(lambda member: member.made(said)))

    def _make_sum(self, asked: Sum) -> None:
        """Average for all sites."""
        if self._is_past(asked.fragment, asked.version):
            return
        try:
            said = self._frames.make_sum(asked, self._records.of(asked.fragment, asked.version))
        except OSError as error:
            with self._lock:
                self._require_member().not_summed(asked)
            if isinstance(error, FrameLostError):
                self._ask_again(error)
            else:
                self._complain(error)
            return
        self._act(self._told(lambda member: member.summed(said)))

    def _check_sum(self, asked: Check) -> None:
        """Average as another site has."""
        try:
            frame = self._frames.sum_hash(asked)
        except OSError as error:  # another site may say
            logger().debug(f"local steps: an average of another site cannot be checked: {error}")
            return
        self._agent.say(SumChecked(frame=frame, **asked.named))

    def _ended_by_run(self, why: str) -> AbortedError:
        """What ends these ranks: others in their place go on with what the run has."""
        say_ended_by_run(self._store.files, why)
        return AbortedError(f"local steps: {why}; start the ranks of this site again")

    def _complain(self, error: OSError) -> None:
        self._complaints(
            f"local steps: {self._store.run_dir} cannot be written to ({error.strerror or error}): this site trains "
            "on, and does not count until there is room"
        )

    def _after_applied(self, settled: Settled, acts: Sequence[Act]) -> None:
        fragment, version = settled.fragment, settled.after - 1
        self._frames.forget(fragment, version)
        self._frame_mail.end_rounds(fragment, settled.version - 1, version)
        self._act(acts)

    def _keep_state(self, fragment: int, version: int, parts: Sequence[torch.Tensor]) -> None:
        if self._thread.failure is not None:  # the state may be void
            return
        try:
            self._states.keep(fragment, version, parts)
        except OSError as error:
            self._complain(error)


def _not_taken_in(why: str) -> InvalidArgumentError:
    """The error of a site that the run refuses."""
    return InvalidArgumentError(f"local steps: the run does not take this site in: {why}")
