"""What a simulated rank trains: as small as can be.

A fragment is an integer, a step adds to it, a frame rounds the delta down to a multiple of 8 and keeps the residual.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from geocomm.core.records import Hash
from geocomm.elastic.files.fragment_store import digest_of
from geocomm.elastic.journal.entries import FRAME_BYTES as SAID_FRAME_BYTES
from geocomm.elastic.journal.messages import Model
from support.whole_run.data import Sequence

FRAGMENTS = 2
EVERY = 6
"""Steps from one round of a fragment to the next."""
FRAME_BYTES = 10_000
STATE_BYTES = 40_000
MODEL = Model(settings={SAID_FRAME_BYTES: "100000"}, layout="0" * 32, fragments=FRAGMENTS, every=EVERY)
_HEAD = struct.Struct("<q16s")
_REST = bytes(STATE_BYTES - _HEAD.size)


@dataclass(frozen=True)
class Anchor:
    """A fragment at a version."""

    version: int
    value: int = 0
    chain: bytes = bytes(16)
    """Stands for the momentum: depends on every frame, and on their order."""

    @staticmethod
    def read(version: int, content: bytes) -> Anchor:
        """Out of its file: any bytes are a state, as of floats. ValueError: they are too many or too few."""
        if len(content) != STATE_BYTES:
            raise ValueError(f"a state of {len(content)} bytes")
        value, chain = _HEAD.unpack_from(content)
        rest = content[_HEAD.size :]
        return Anchor(version, value, chain if rest == _REST else hashlib.md5(content).digest())

    @property
    def content(self) -> bytes:
        """Its file."""
        return _HEAD.pack(self.value, self.chain) + _REST

    @property
    def digest(self) -> str:
        """That a site says of it."""
        return digest_of(self.version, [self.content])

    def after(self, coded: list[int], version: int) -> Anchor:
        """The next one, by a round of these frames; none: the round is void."""
        chain = hashlib.md5(self.chain + str(coded).encode()).digest() if coded else self.chain
        return Anchor(version, self.value + sum(coded), chain)


class Step(NamedTuple):
    """A step that does not count yet."""

    number: int
    """Over all sites."""
    added: int
    """To the fragment."""
    taken: int
    """Tokens that the site had read when it ended; of data that the run deals."""
    read: tuple[Sequence, ...]
    """What it has read."""


@dataclass
class Own:
    """An own frame, as long as it may count."""

    residual: int
    local: int
    steps: int


@dataclass
class Part:
    """The rank's copy of a fragment."""

    anchor: Anchor
    local: int
    residual: int = 0
    uncounted: list[Step] = field(default_factory=list[Step])
    frames: dict[Hash, Own] = field(default_factory=dict[Hash, Own])
