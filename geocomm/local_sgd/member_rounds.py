"""The rounds of one rank in an elastic run: frames go from rank to rank, and the agent says what counts.

One thread does all of it, so no step waits for the agent or for another site. It drives the pure logic of
`journal.member` and carries out its acts: frames travel by `geocomm._C.Mail`, and lie in the run folder before anything
is said of them.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
import xxhash

from geocomm.codecs.tensor_codec import compress_bound
from geocomm.core.errors import AbortedError, CorruptDataError, InvalidArgumentError, ReplicaMismatchError
from geocomm.core.message_log import logger
from geocomm.core.native import native
from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.rank_socket import RankSocket
from geocomm.elastic.snapshots import Layout, Snapshots
from geocomm.journal.entries import Away, Join, Left, Listed, Removed, Round, Skip, Snapshot
from geocomm.journal.member import Act, Frame, Member, Recompute, Say, SendFrame, Settled, StartAgain
from geocomm.journal.messages import (
    Beat,
    Down,
    EntrySaid,
    Fetched,
    Leave,
    Leaving,
    Model,
    Need,
    Offer,
    Open,
    Owner,
    Pass,
    RankHello,
    RankWelcome,
    Refused,
    StateKept,
    Stop,
)
from geocomm.local_sgd.anchor import AnchoredFragment
from geocomm.local_sgd.averaging import average_deltas
from geocomm.local_sgd.delta_frames import DeltaFrames, encode_delta, sound_delta
from geocomm.local_sgd.fragments import BYTES_PER_ELEMENT, Fragment
from geocomm.local_sgd.frame_mail import Expected, FrameMail
from geocomm.local_sgd.host_memory import host_empty
from geocomm.local_sgd.pace import LineClock
from geocomm.local_sgd.round_records import ROUNDS, RoundRecord
from geocomm.local_sgd.rounds import Coding
from geocomm.local_sgd.waiting import wait_for

if TYPE_CHECKING:
    from geocomm._C import Mail

BEAT_S = 3.0
_KEPT_S = 120.0
"""Frames are kept for at least so long."""
_MAIL_PATIENCE_S = 2.0
"""A listed frame may be under way by mail for so long, before the agent is asked to fetch it."""
_MAIL_LOOK_S = 0.25
"""How often it is looked whether anything comes from its site."""


@dataclass(frozen=True)
class OwnFrame:
    """What becomes of the site if a frame of its own is listed."""

    weight: int
    """Of the site when the frame was made: what it counts for is taken off the uncounted."""
    step: int
    residual: torch.Tensor | None
    """What the codec has lost by then."""
    local_at_begin: torch.Tensor | None
    """The weights that the delta was taken of, where the merge needs them."""
    wire_bytes: int


@dataclass(frozen=True)
class Delta:
    """What a frame is made of: given away."""

    values: torch.Tensor
    residual: torch.Tensor | None
    weight: int
    """What it counts for."""
    own: OwnFrame
    """Without residual and bytes, which are known once it is coded."""
    step: int
    """Of the run."""
    squared_norm: float
    rate: float
    every: int
    taken: int
    """Tokens that the site has read in the run so far."""


@dataclass(frozen=True)
class Decided:
    """A round whose entry is there, with its average; or a state that is taken over in place of rounds."""

    settled: Settled
    average: torch.Tensor | None
    """float32, in the order of the fragment; None: the round is void, or there is a state."""
    own: OwnFrame | None
    """Of the site's own frame that counts; None: none does."""
    state: torch.Tensor | None = None
    """See `AnchoredFragment.take`."""


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
        self._snapshots = Snapshots(self._store)
        self._fragments = {fragment.index: fragment for fragment in fragments}
        self._model = model
        self._coding = coding
        self._agent_path = agent
        self._lock = threading.Lock()
        self._versions = dict.fromkeys(self._fragments, 0)
        self._digests: dict[int, str] = {}
        self._state_numels: dict[int, int] = {}
        self._decided: dict[int, Decided] = {}
        self._to_begin: dict[int, Open] = {}
        self._answered: dict[int, tuple[int, int]] = {}  # the member hears of that once the frame is made
        self._failure: BaseException | None = None
        self._beat = Beat(step=0, tokens=0, step_s=0.0, line_s=0.0, free_bytes=0)
        self._every = model.every
        self._trains = False
        self.is_leaving = False
        """The site is to end in good order: `say_leave` once its last steps have counted."""
        self.has_left = False
        """Whether the journal says that this site has left: nothing of it counts any more."""
        self._wanted_states: set[int] = set()
        self._snapshot: Snapshot | None = None
        self._wanted_versions: dict[int, int] = {}
        self._own: dict[str, OwnFrame] = {}
        self._own_rounds: dict[str, tuple[int, int]] = {}
        self._records: dict[tuple[int, int], RoundRecord] = {}
        self._welcome: queue.SimpleQueue[RankWelcome | Refused | Stop] = queue.SimpleQueue()
        # The thread's own.
        self._member: Member | None = None
        self._opens: dict[int, Open] = {}
        self._states: dict[int, list[tuple[float, int]]] = {}
        self._frames = FrameMail(mail, site, model.fragments, self._mail_came)
        self._contents: dict[Frame, torch.Tensor] = {}
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._socket: RankSocket | None = None
        self._ended = threading.Event()

    # ---- the training thread

    def begin(self, digests: Mapping[int, str]) -> RankWelcome:
        """Say hello, and wait for the welcome. digests: of the own fragments, at version 0.

        Raises InvalidArgumentError where the run refuses this site; a wait is logged.
        """
        self._digests = dict(digests)
        self._socket = RankSocket(self._agent_path, self._hello)
        threading.Thread(target=self._pump, name="geocomm-hear", daemon=True).start()
        found: list[RankWelcome | Refused | Stop] = []

        def arrived(seconds: float) -> bool:
            with suppress(queue.Empty):
                found.append(self._welcome.get(timeout=min(seconds, 1.0)))
            return bool(found)

        wait_for(arrived, "the beginning", self._whom)
        answer = found[0]
        if not isinstance(answer, RankWelcome):
            raise _not_taken_in(answer.why)
        return answer

    def go(self, held: Mapping[int, AnchoredFragment]) -> None:
        """Take part from the versions on that the own fragments have: what was loaded from the disk."""
        self._state_numels = {index: one.state_numel for index, one in held.items()}
        with self._lock:
            self._versions |= {index: one.version for index, one in held.items()}
            self._digests |= {index: one.digest() for index, one in held.items()}
        self._member = Member(self.site, {index: self._versions[index] for index in self._fragments})
        threading.Thread(target=self._run, name="geocomm-member", daemon=True).start()

    @property
    def every(self) -> int:
        """Optimizer steps between two rounds of a fragment, as the journal says."""
        return self._every

    def decided(self) -> dict[int, Decided]:
        """The own fragments of which a round is to be applied now. Raises what the thread has failed with."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            return dict(self._decided)

    def to_begin(self) -> dict[int, Open]:
        """The own fragments of which a frame is to be made now: `offer` or `give_nothing` follows for each."""
        with self._lock:
            return dict(self._to_begin)

    def due(self, fragment: int) -> None:
        """The site's schedule says that it is time for a round of the fragment."""
        with self._lock:
            self._record(fragment, self._versions[fragment]).due()
        self._post(lambda: self._act(self._require_member().due(fragment)))

    def offer(self, opened: Open, delta: Delta) -> None:
        """Make a frame of the delta, send it and offer it."""
        with self._lock:
            self._record(opened.fragment, opened.version).begun(delta.own.step, delta.weight)
            self._to_begin.pop(opened.fragment, None)
            self._answered[opened.fragment] = (opened.version, opened.attempt)
        self._post(lambda: self._make(opened, delta))

    def give_nothing(self, opened: Open) -> None:
        """The site has nothing to offer in this attempt."""
        with self._lock:
            self._to_begin.pop(opened.fragment, None)
            self._answered[opened.fragment] = (opened.version, opened.attempt)
        nothing = Pass(fragment=opened.fragment, version=opened.version, attempt=opened.attempt)
        self._post(lambda: self._act(self._require_member().made(nothing)))

    def applied(self, decided: Decided, held: AnchoredFragment) -> None:
        """What was decided is done, and `held` is at its new version."""
        fragment, digest = decided.settled.fragment, held.digest()
        with self._lock:
            self._decided.pop(fragment, None)
            self._versions[fragment] = held.version
            self._digests[fragment] = digest
            self._record(fragment, decided.settled.version).applied()
            for past in [one for one in self._records if one[0] == fragment and one[1] < held.version]:
                del self._records[past]
        self._post(lambda: self._after_applied(decided.settled, digest))

    def write_state(self, held: AnchoredFragment) -> None:
        """Keep a copy of the state in the run folder, and let go of what it makes needless."""
        fragment, version = held.fragment.index, held.version
        parts = [held.anchor] if held.momentum is None else [held.anchor, held.momentum]
        copies = [part.clone() for part in parts]
        self._post(lambda: self._keep_state(fragment, version, copies))

    def read_state(self, held: AnchoredFragment, version: int) -> None:
        """Load the state of a version from the run folder. Raises CorruptDataError for one of another size."""
        held.take(self._state_values(held.fragment.index, version, held.state_numel), version)

    def wants_state(self, fragment: int, version: int) -> bool:
        """Whether the state of the fragment at this version is to be written: for a site that has joined since the last
        one, and would have to replay long, or for a snapshot. Said once."""
        with self._lock:
            wanted = fragment in self._wanted_states or self._wanted_versions.get(fragment) == version
            if wanted:
                self._wanted_states.discard(fragment)
                self._wanted_versions.pop(fragment, None)
        return wanted

    def write_layout(self, layout: Layout) -> None:
        """Keep, in the run folder, where the parameters lie in the fragments."""
        try:
            self._snapshots.write_layout(layout)
        except OSError as error:
            self._complain(error)

    def kept_weights(self) -> list[tuple[int, torch.Tensor | None]]:
        """Of own frames under way, the fragment and the weights that were kept for the merge."""
        with self._lock:
            return [(self._own_rounds[name][0], own.local_at_begin) for name, own in self._own.items()]

    def tell(self, beat: Beat) -> None:
        """How the site does; goes out every BEAT_S."""
        with self._lock:
            self._beat, self._trains = beat, True

    def say_leave(self) -> None:
        """Say that what this rank has offered counts, and that the site may end."""
        self._require_socket().say(Leave())

    def leave(self, limit_s: float) -> None:
        """Say that the site ends in good order; what it has offered before is its last. Waits until it is sent."""
        if self._socket is not None:
            self._socket.say(Leave())
            self._socket.close(limit_s)

    def close(self) -> None:
        """End the thread, and let go of everything. Idempotent."""
        self._calls.put(None)
        self._ended.set()
        if self._socket is not None:
            self._socket.close()
        self._mail.close(2.0)

    def _state_values(self, fragment: int, version: int, numel: int) -> torch.Tensor:
        content = self._store.read_state(fragment, version)
        if len(content) != numel * BYTES_PER_ELEMENT:
            raise CorruptDataError(
                f"local steps: {self._store.state_path(fragment, version)} has {len(content)} bytes, and fragment "
                f"{fragment} has {numel * BYTES_PER_ELEMENT}; remove the file"
            )
        return torch.frombuffer(bytearray(content), dtype=torch.float32)

    # ---- the thread

    def _hello(self) -> RankHello:
        with self._lock:
            return RankHello(
                place=self._place,
                owners=self._owners,
                owner=self._owner,
                model=self._model,
                digests=dict(self._digests),
                versions=dict(self._versions),
                trains=self._member is not None,
            )

    def _record(self, fragment: int, version: int) -> RoundRecord:
        """Of a round that is not applied here yet. The caller has the lock."""
        key = fragment, version
        if key not in self._records:
            self._records[key] = ROUNDS.open(fragment, version, elastic=True)
        return self._records[key]

    def _record_to_come(self, fragment: int, version: int) -> RoundRecord | None:
        """None: another rank owns the fragment, or the round is applied."""
        with self._lock:
            is_to_come = fragment in self._versions and version >= self._versions[fragment]
            return self._record(fragment, version) if is_to_come else None

    def _whom(self) -> str:
        there = self._socket is not None and self._socket.connected
        return "the other ranks of this site and the run's leader" if there else f"the agent at {self._agent_path}"

    def _post(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def _pump(self) -> None:
        """Hand over what the agent says."""
        socket = self._socket
        welcomed = False
        while socket is not None and not self._ended.is_set():
            if not socket.wait(1.0):
                continue
            for message in socket.received():
                if not welcomed and isinstance(message, (RankWelcome, Refused, Stop)):
                    welcomed = isinstance(message, RankWelcome)
                    self._welcome.put(message)
                self._post(partial(self._on_down, message))

    def _run(self) -> None:
        native().wait_in_background()  # what this thread waits for holds up no step
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + BEAT_S
                self._say_beat()
            while self._later and self._later[0][0] <= now:
                self._guarded(heapq.heappop(self._later)[2])
            until = min([next_beat, *(due for due, _, _ in self._later[:1])])
            try:
                call = self._calls.get(timeout=max(0.0, until - now))
            except queue.Empty:
                continue
            if call is None:
                return
            self._guarded(call)

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:  # it is raised at the next step
            with self._lock:
                self._failure = self._failure or error

    def _say_beat(self) -> None:
        with self._lock:
            beat = self._beat
        if self._socket is not None and self._place == 0:
            self._socket.say(beat.model_copy(update={"free_bytes": self._store.free_bytes}))

    def _on_down(self, message: Down) -> None:
        match message:
            case Refused() | Stop():
                if self._trains:
                    raise AbortedError(f"local steps: the run has stopped this site: {message.why}")
                raise _not_taken_in(message.why)
            case Open() if message.fragment in self._fragments:
                self._opens[message.fragment] = message
                if record := self._record_to_come(message.fragment, message.version):
                    record.awaits(peer.site for peer in message.peers if peer.site != self.site and peer.owners)
                self._frames.expect(message)
            case Fetched():
                if message.site != self.site and (record := self._record_to_come(message.fragment, message.version)):
                    record.arrived(message.site)
            case EntrySaid():
                self._follow(message)
            case Leaving():
                self.is_leaving = True
            case _:
                pass
        self._act(self._require_member().on_down(message))

    def _follow(self, said: EntrySaid) -> None:
        if isinstance(said.entry, Round) and said.entry.every:
            self._every = said.entry.every
        if isinstance(said.entry, Round | Skip):
            self._log_decision(said.entry)
        if isinstance(said.entry, Left) and said.entry.site == self.site:
            self.has_left = True
        if isinstance(said.entry, Away | Left | Removed):
            self._frames.forget(said.entry.site)
        if isinstance(said.entry, Snapshot):
            with self._lock:
                self._snapshot = said.entry
                self._wanted_versions = {index: said.entry.versions[index] for index in self._fragments}
        if isinstance(said.entry, Join) and said.entry.site != self.site:
            with self._lock:
                self._wanted_states |= self._fragments.keys()

    def _log_decision(self, entry: Round | Skip) -> None:
        record = self._record_to_come(entry.fragment, entry.version)
        if record is None:
            return
        members = entry.members if isinstance(entry, Round) else ()
        for one in members:
            if one.site != self.site:
                record.describe(one.site, one.coded_bytes + one.exact_bytes, one.step, one.weight)
        record.listed(one.site for one in members)

    def _require_member(self) -> Member:
        if self._member is None:
            raise InvalidArgumentError("local steps: the rounds have not begun")
        return self._member

    def _act(self, acts: Iterable[Act]) -> None:
        for act in acts:
            match act:
                case Say(Need() as need):
                    self._ask_for(need)
                case Say(message):
                    self._require_socket().say(message)
                case SendFrame(offer, peers):
                    content = self._content(Frame(offer.fragment, offer.version, self.site, offer.frame))
                    self._frames.send(offer, peers, content)
                case Recompute(fragment):
                    raise ReplicaMismatchError(
                        f"local steps: fragment {fragment} of this site differs from that of the others; start its "
                        "ranks again, and they take it over"
                    )
                case StartAgain(fragment, version, why):
                    self._store.remove_states_after(fragment, version)
                    raise AbortedError(f"local steps: {why}; start the ranks of this site again")
        self._show()

    def _show(self) -> None:
        """Let the training thread see what there is to do."""
        member = self._require_member()
        settled = member.next_settled()  # the others of this rank follow once this one is applied
        if settled is not None and settled.fragment not in self._decided and self._is_next(settled):
            decided = self._average(settled)
            with self._lock:
                self._decided[settled.fragment] = decided
        begins = {
            index: self._opens[index]
            for index in member.begins()
            if self._opens[index].version == self._versions[index]
        }
        with self._lock:
            self._to_begin = {
                index: opened
                for index, opened in begins.items()
                if self._answered.get(index, (-1, -1)) < (opened.version, opened.attempt)
            }

    def _is_next(self, settled: Settled) -> bool:
        """Whether the training thread has not applied it yet: the member hears of that a moment later."""
        with self._lock:
            return settled.version == self._versions[settled.fragment]

    def _mail_came(self, expected: Expected, content: torch.Tensor | None, why: str) -> None:
        """On a thread of the native core."""
        record = None if content is None else self._record_to_come(expected.fragment, expected.version)
        if content is not None and record is not None:
            record.arrived(expected.site, content.numel())
        self._post(lambda: self._on_mail(expected, content, why))

    def _on_mail(self, expected: Expected, content: torch.Tensor | None, why: str) -> None:
        fragment, version, _, site = expected
        self._frames.is_here(expected)
        if content is None:
            logger().debug(f"local steps: the frame of site {site!r} did not come by mail: {why}")
            return
        if version < self._versions[fragment]:
            return
        try:
            frame = self._store.write_frame(fragment, version, site, [_bytes_of(content)])
        except OSError as error:
            self._complain(error)
            return
        self._contents[Frame(fragment, version, site, frame)] = content
        self._act(self._require_member().arrived(fragment, version, site, frame, by_mail=True))

    def _ask_for(self, need: Need) -> None:
        """Ask the agent for a listed frame, once the mail has had its time."""

        def ask() -> None:
            here = self._store.has_frame(need.fragment, need.version, need.site, need.frame)
            if need.version >= self._versions[need.fragment] and not (under_way and here):
                self._require_socket().say(need)

        def look(until: float) -> None:
            now = time.monotonic()
            if now >= until or self._frames.is_silent(need.site):
                ask()
            else:
                heapq.heappush(self._later, (now + _MAIL_LOOK_S, next(self._order), partial(look, until)))

        under_way = self._frames.expects(need.fragment, need.version, need.site)
        look(time.monotonic() + _MAIL_PATIENCE_S if under_way else 0.0)

    def _make(self, opened: Open, delta: Delta) -> None:
        """Code the delta, keep the frame, and offer it."""
        fragment = self._fragments[opened.fragment]
        record = self._record_to_come(opened.fragment, opened.version)
        with self.line.running(), nullcontext() if record is None else record.coding():
            frames, residual = encode_delta(
                fragment, delta.values, delta.residual, self._coding, seed=self._seed(opened), counts=True
            )
        pieces = [piece for piece in (frames.coded, frames.exact) if piece is not None]
        content = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        try:
            frame = self._store.write_frame(opened.fragment, opened.version, self.site, [_bytes_of(content)])
        except OSError as error:
            self._complain(error)
            nothing = Pass(fragment=opened.fragment, version=opened.version, attempt=opened.attempt)
            self._act(self._require_member().made(nothing))
            return
        coded, exact = frames.sizes
        if record is not None:
            record.stored()
            record.offered(coded + exact)
        own = delta.own
        with self._lock:
            self._own[frame] = OwnFrame(own.weight, own.step, residual, own.local_at_begin, coded + exact)
            self._own_rounds[frame] = (opened.fragment, opened.version)
        self._contents[Frame(opened.fragment, opened.version, self.site, frame)] = content
        offer = Offer(
            fragment=opened.fragment,
            version=opened.version,
            attempt=opened.attempt,
            frame=frame,
            coded_bytes=coded,
            exact_bytes=exact,
            weight=delta.weight,
            step=delta.step,
            squared_norm=delta.squared_norm,
            lr=delta.rate,
            every=delta.every,
            taken=delta.taken,
        )
        self._act(self._require_member().made(offer))

    def _seed(self, opened: Open) -> int:
        """Of stochastic rounding: another one at each site, round and attempt."""
        name = f"{self.site} {opened.fragment} {opened.version} {opened.attempt}"
        return xxhash.xxh3_64(name.encode()).intdigest() >> 1

    def _complain(self, error: OSError) -> None:
        logger().warning(
            f"local steps: {self._store.run_dir} cannot be written to ({error.strerror or error}): this site trains "
            "on, and does not count until there is room"
        )

    def _content(self, frame: Frame) -> torch.Tensor:
        found = self._contents.get(frame)
        if found is None:
            found = torch.frombuffer(bytearray(self._store.read_frame(*frame)), dtype=torch.uint8)
        return found

    def _average(self, settled: Settled) -> Decided:
        entry, fragment = settled.entry, self._fragments[settled.fragment]
        own = None if settled.counted is None else self._own.get(settled.counted.frame)
        if settled.state is not None:
            logger().info(
                f"local steps: rounds {settled.version} to {settled.after - 1} of fragment {fragment.index} are taken "
                "over as a state: nobody has their frames any more"
            )
            values = self._state_values(fragment.index, settled.state, self._state_numels[fragment.index])
            return Decided(settled, None, own, values)
        if entry is None:
            return Decided(settled, None, None)
        record = self._record_to_come(settled.fragment, settled.version)
        with self.line.running(), nullcontext() if record is None else record.coding():
            deltas = {one: delta for one in entry.members if (delta := self._delta_of(settled, one)) is not None}
            if not deltas:
                return Decided(settled, None, None)
            average = host_empty(fragment.numel, pinned=False)
            weights = [one.weight for one in deltas]
            average_deltas(self._coding.averaging, fragment, list(deltas.values()), weights, out=average)
        if record is not None:
            record.averaged()
        counts = any(one.site == self.site for one in deltas)
        return Decided(settled, average, own if counts else None)

    def _delta_of(self, settled: Settled, listed: Listed) -> torch.Tensor | None:
        content = self._content(Frame(settled.fragment, settled.version, listed.site, listed.frame))
        frames = DeltaFrames.of_bytes(content, listed.coded_bytes)
        delta = sound_delta(frames, self._fragments[settled.fragment])
        if delta is None:
            logger().warning(
                f"local steps: what site {listed.site!r} sent for fragment {settled.fragment} is no delta of it, or "
                "has NaN or Inf: no site counts it"
            )
        return delta

    def _after_applied(self, settled: Settled, digest: str) -> None:
        fragment, version = settled.fragment, settled.after - 1
        for frame in [one for one in self._contents if one.fragment == fragment and one.version <= version]:
            del self._contents[frame]
        with self._lock:
            for name, place in list(self._own_rounds.items()):
                if place[0] == fragment and place[1] <= version:
                    del self._own[name], self._own_rounds[name]
        self._frames.end_rounds(fragment, settled.version - 1, version)
        self._act(self._require_member().applied(settled, digest))

    def _keep_state(self, fragment: int, version: int, parts: Sequence[torch.Tensor]) -> None:
        if self._failure is not None:  # the state may be void
            return
        try:
            self._store.write_state(fragment, version, [_bytes_of(part) for part in parts])
            self._let_go(fragment, version)
            if self._snapshot is not None and self._snapshot.versions[fragment] == version:
                self._snapshots.keep_state(self._snapshot.index, fragment, version)
                self._require_socket().say(StateKept(fragment=fragment, version=version))
        except OSError as error:
            self._complain(error)

    def _let_go(self, fragment: int, version: int) -> None:
        """Remove what nobody asks for any more: a site that comes back needs a state, and the frames since then, for
        as long as it takes to get them."""
        now, written = time.monotonic(), self._states.setdefault(fragment, [])
        written.append((now, version))
        old = [index for index, (at, _) in enumerate(written) if now - at >= _KEPT_S]
        if old:
            self._store.remove_before(fragment, written[old[-1]][1])
            del written[: old[-1]]
        for _, between in written[1:-1]:
            self._store.state_path(fragment, between).unlink(missing_ok=True)

    def _require_socket(self) -> RankSocket:
        if self._socket is None:
            raise InvalidArgumentError("local steps: the rounds have not begun")
        return self._socket


def most_frame_bytes(fragment: Fragment, coding: Coding) -> int:
    """The most bytes that a frame of the fragment has."""
    coded, exact = (torch.empty(numel) for numel in (fragment.coded_elems, fragment.numel - fragment.coded_elems))
    return sum(
        max(compress_bound(part, codec) for codec in (coding.codec, "none")) for part in (coded, exact) if part.numel()
    )


def _bytes_of(values: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return values.view(torch.uint8).numpy().data.cast("B")


def _not_taken_in(why: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"local steps: the run does not take this site in: {why}")
