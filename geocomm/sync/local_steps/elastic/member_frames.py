"""The frames of a rank in an elastic run: makes its own, keeps all in the run folder, and averages those that count."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
import xxhash

from geocomm.core.message_log import logger
from geocomm.core.records import Hash
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.entries import Added, AnyRound, Listed, Round, SumFrame
from geocomm.elastic.journal.member import Frame, Settled
from geocomm.elastic.journal.messages import Check, Offer, Open, Sum, Summed
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.host_memory import bytes_of, host_empty
from geocomm.sync.local_steps.outer.averaging import average_deltas
from geocomm.sync.local_steps.outer.delta_frames import DeltaFrames, encode_delta, sound_delta, through_frames
from geocomm.sync.local_steps.outer.round_records import RoundRecord
from geocomm.sync.local_steps.outer.rounds import Coding
from geocomm.sync.local_steps.outer.schedule import LineClock

_NO_FRAME: Hash = "0" * 64


@dataclass(frozen=True)
class OwnFrame:
    """What becomes of the site if a frame of its own is listed."""

    weight: int
    """The site's weight where the frame ends, as are step and tokens: what it counts for is taken off the rest."""
    step: int
    tokens: int
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
    """The step of the run."""
    squared_norm: float
    rate: float
    every: int


@dataclass(frozen=True)
class Decided:
    """A round whose entry is there, with its average; or a state that is taken over in place of rounds."""

    settled: Settled
    average: torch.Tensor | None
    """float32, in the order of the fragment; None: the round is void, or there is a state."""
    own: OwnFrame | None
    """What the site keeps of its own frame that counts; None: none does."""
    state: torch.Tensor | None = None
    """See `AnchoredFragment.take`."""


class MemberFrames:
    """The frames of the fragments that a rank owns. Used by one thread, but for `kept_weights`."""

    def __init__(
        self, site: str, store: FragmentStore, fragments: Mapping[int, Fragment], coding: Coding, line: LineClock
    ) -> None:
        """site: the own one. line: runs while frames are coded or averaged."""
        self._site, self._store, self._fragments, self._coding, self._line = site, store, fragments, coding, line
        self._contents: dict[Frame, torch.Tensor] = {}
        """Those on disk that are in memory, too."""
        self._lock = threading.Lock()
        self._own: dict[Frame, OwnFrame] = {}

    def make(self, opened: Open, delta: Delta, record: RoundRecord) -> Offer:
        """Code a delta, and keep the frame. OSError: no room."""
        index, version = opened.fragment, opened.version
        with self._line.running(), record.coding():
            frames, residual = encode_delta(
                self._fragments[index],
                delta.values,
                delta.residual,
                self._coding,
                seed=self._seed(opened),
                counts=True,
            )
        frame = self.keep(index, version, self._site, frames.content)
        coded, exact = frames.sizes
        record.stored()
        record.offered(coded + exact)
        with self._lock:
            self._own[Frame(index, version, self._site, frame)] = replace(
                delta.own, residual=residual, wire_bytes=coded + exact
            )
        return Offer(
            **opened.named,
            frame=frame,
            coded_bytes=coded,
            exact_bytes=exact,
            weight=delta.weight,
            step=delta.step,
            squared_norm=delta.squared_norm,
            lr=delta.rate,
            every=delta.every,
            taken=delta.own.tokens,
        )

    def keep(self, fragment: int, version: int, site: str, content: torch.Tensor) -> Hash:
        """Take a frame, on disk and in memory. OSError: no room."""
        frame = self._store.write_frame(fragment, version, site, [bytes_of(content)])
        self._contents[Frame(fragment, version, site, frame)] = content
        return frame

    def make_sum(self, asked: Sum, record: RoundRecord) -> Summed:
        """Average frames, which are on disk, and keep the frame of the average, for all sites. FrameLostError: one is
        not; another OSError: no room."""
        with self._line.running(), record.coding():
            frames, counts = self._sum(asked)
        coded, exact = frames.sizes
        frame = _NO_FRAME
        if counts:
            frame = self.keep(asked.fragment, asked.version, self._site, frames.content)
        return Summed(
            **asked.named,
            frame=frame,
            coded_bytes=coded,
            exact_bytes=exact,
            counts=tuple(counts),
        )

    def sum_hash(self, asked: Check) -> Hash:
        """What `make_sum` says of the frame of the average, which nobody keeps here. Raises FrameLostError."""
        with self._line.running():
            frames, counts = self._sum(asked)
        return hashlib.sha256(bytes_of(frames.content)).hexdigest() if counts else _NO_FRAME

    def _sum(self, asked: Sum | Check) -> tuple[DeltaFrames, list[str]]:
        """The frame of an average, equal at all sites, and the sites in it."""
        average, counts = self._average(asked.fragment, asked.version, asked.members)
        if average is None:
            return DeltaFrames(None, None), []
        return through_frames(average, self._fragments[asked.fragment], self._coding, asked.attempt), counts

    def content(self, frame: Frame) -> torch.Tensor:
        """The bytes of a frame that is on disk. Raises FrameLostError."""
        found = self._contents.get(frame)
        if found is None:
            found = torch.frombuffer(bytearray(self._store.read_frame(*frame)), dtype=torch.uint8)
        return found

    def own(self, offer: Offer) -> OwnFrame | None:
        """What was kept for an own frame, until its round is forgotten."""
        with self._lock:
            return self._own.get(Frame(offer.fragment, offer.version, self._site, offer.frame))

    def kept_weights(self) -> list[tuple[int, torch.Tensor | None]]:
        """Fragment and weights, kept for the merge, of each own frame under way. From any thread."""
        with self._lock:
            return [(frame.fragment, own.local_at_begin) for frame, own in self._own.items()]

    def decide(self, settled: Settled, record: RoundRecord, state: Callable[[int, int], torch.Tensor]) -> Decided:
        """What a settled round comes to. state: reads that of a fragment and version, which is taken over.

        Raises FrameLostError for a frame that is not on disk.
        """
        entry, index = settled.entry, settled.fragment
        own = None if settled.counted is None else self.own(settled.counted)
        if settled.state is not None:
            logger().info(
                f"local steps: rounds {settled.version} to {settled.after - 1} of fragment {index} are taken over as a "
                "state: nobody has their frames any more"
            )
            return Decided(settled, None, own, state(index, settled.state))
        if entry is None:
            return Decided(settled, None, None)
        average, counted = self.average(entry, record)
        return Decided(settled, average, own if self._site in counted else None)

    def average(self, entry: AnyRound, record: RoundRecord) -> tuple[torch.Tensor | None, list[str]]:
        """The average of a round, float32, in the order of the fragment, and the sites in it. None: no frame is sound.

        Raises FrameLostError for one that is not on disk.
        """
        with self._line.running(), record.coding():
            if isinstance(entry, Round):
                average, counts = self._average(entry.fragment, entry.version, entry.members)
            else:
                average = self._delta_of(entry.fragment, entry.version, entry.sum)
                counts = [] if average is None else [one.site for one in entry.members]
        if average is not None:
            record.averaged()
        return average, counts

    def _average(
        self, index: int, version: int, members: Iterable[Listed | Added]
    ) -> tuple[torch.Tensor | None, list[str]]:
        fragment = self._fragments[index]
        deltas = {one: delta for one in members if (delta := self._delta_of(index, version, one)) is not None}
        if not deltas:
            return None, []
        average = host_empty(fragment.numel, pinned=False)
        weights = [one.weight for one in deltas]
        average_deltas(self._coding.averaging, fragment, list(deltas.values()), weights, out=average)
        return average, [one.site for one in deltas]

    def forget(self, fragment: int, version: int) -> None:
        """Let go of the memory for frames up to this version: their rounds are applied."""
        for frame in [one for one in self._contents if one.fragment == fragment and one.version <= version]:
            del self._contents[frame]
        with self._lock:
            for frame in [one for one in self._own if one.fragment == fragment and one.version <= version]:
                del self._own[frame]

    def _delta_of(self, fragment: int, version: int, listed: Listed | Added | SumFrame) -> torch.Tensor | None:
        content = self.content(Frame(fragment, version, listed.site, listed.frame))
        frames = DeltaFrames.of_bytes(content, listed.coded_bytes)
        delta = sound_delta(frames, self._fragments[fragment])
        if delta is None:
            logger().warning(
                f"local steps: what site {listed.site!r} sent for fragment {fragment} is no delta of it, or "
                "has NaN or Inf: no site counts it"
            )
        return delta

    def _seed(self, opened: Open) -> int:
        """The seed of stochastic rounding: another one at each site, round and attempt."""
        name = f"{self._site} {opened.fragment} {opened.version} {opened.attempt}"
        return xxhash.xxh3_64(name.encode()).intdigest() >> 1
