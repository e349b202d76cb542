"""How a simulated rank averages frames for all, and checks the average of another one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from typing import TYPE_CHECKING

from geocomm.elastic.files.fragment_store import FragmentStore, FrameLostError
from geocomm.elastic.journal.messages import Check, Sum, SumChecked, Summed
from support.whole_run.anchors import FRAME_BYTES
from support.whole_run.registry import Registry

if TYPE_CHECKING:
    from support.whole_run.ranks import Rank


class RankAverages:
    """Those of a rank. lies: it makes something else of the frames."""

    def __init__(
        self, rank: Rank, site: str, store: FragmentStore, chance: random.Random, registry: Registry, *, lies: bool
    ) -> None:
        self._rank, self._site, self._store = rank, site, store
        self._chance, self._registry, self._lies = chance, registry, lies

    def make(self, asked: Sum) -> None:
        """Average for all."""
        self._rank.later(self._chance.uniform(0.01, 0.1), lambda: self._make(asked))

    def check(self, asked: Check) -> None:
        """Average as another site has."""
        with contextlib.suppress(OSError):
            frame = hashlib.sha256(self._sum(asked)).hexdigest()
            self._rank.say(SumChecked(**asked.named, frame=frame))

    def _make(self, asked: Sum) -> None:
        member = self._rank.member
        if member is None or member.versions[asked.fragment] != asked.version:
            return
        try:
            content = self._sum(asked)
            if self._lies:
                coded, base, attempt = json.loads(content)
                content = json.dumps([[*coded, 8], base, attempt]).encode().ljust(FRAME_BYTES)
            frame = self._store.write_frame(asked.fragment, asked.version, self._site, [content])
        except OSError as error:
            member.not_summed(asked)
            if isinstance(error, FrameLostError):
                self._rank.ask_again(error)
            return
        summed = Summed(
            **asked.named,
            frame=frame,
            coded_bytes=len(content),
            exact_bytes=0,
            counts=tuple(one.site for one in asked.members),
        )
        self._rank.do(member.summed(summed))

    def _sum(self, asked: Sum | Check) -> bytes:
        """The frame of an average."""
        read = [
            json.loads(self._store.read_frame(asked.fragment, asked.version, one.site, one.frame))
            for one in asked.members
        ]
        if any(base != read[0][1] for _, base, _ in read):
            self._registry.broken.append(f"deltas to different states are averaged: {asked}")
        coded = [value for one, _, _ in read for value in (one if isinstance(one, list) else [one])]
        return json.dumps([coded, read[0][1], asked.attempt]).encode().ljust(FRAME_BYTES)
