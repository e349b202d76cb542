"""The run's data set as its leader has read it, and which shards of it a site reads next."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module

from geocomm.data.catalog import Shard
from geocomm.data.deal_records import DealtSet, DealtShards, counted
from geocomm.data.deals import DEALS_OF_A_PASS
from geocomm.data.dealt_version import DealtVersion, ReadVersion
from geocomm.elastic.journal.run_state import RunState

_TOO_FEW = 2
"""The log names a label of which all was dealt this many times less often than other data."""


class RunData:
    """These versions: the newest one, and those that deals are of."""

    def __init__(self, versions: Mapping[int, ReadVersion], of: DealtSet) -> None:
        import_module("networkx")  # the first deal would wait for it
        self.versions = versions
        self._newest = DealtVersion(versions[max(versions)], of.sequence_length, of.held_out_every)
        self._counted = -1
        """The index of the last deal that is counted."""

    @property
    def number(self) -> int:
        """The number of the newest version."""
        return self._newest.read.version.number

    @property
    def sha256(self) -> str:
        """SHA-256 of the file of the newest version."""
        return self._newest.read.sha256

    def next_deal(self, state: RunState, site: str, speeds: Mapping[str, float]) -> tuple[str, int] | None:
        """Which shards of the version in force a site reads next, as in `text_of`, and how many sequences they
        have; None: it may read none. speeds: tokens per second of all sites that are there."""
        if state.genesis is None:
            return None
        self._count(state)
        deal = int(state.genesis.run[:16], 16), state.head.index + 1
        most = max(1, len(self._newest.shards) // (DEALS_OF_A_PASS * len(speeds)))
        text, _, sequences = self._newest.next_deal(site, deal, speeds, most)
        return (text, sequences) if sequences else None

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """Whether a site may read what was dealt, and the newest version still has it."""
        return self._newest.may_read(site, self._shards(state, deal))

    def readable(self, site: str) -> int:
        """Sequences of one pass over what the site may read."""
        return self._newest.readable(site)

    def undealt(self, state: RunState) -> int:
        """What is to be dealt until all was dealt as often as what was dealt most: the rest of a pass."""
        self._count(state)
        firsts = self._newest.firsts
        dealt = self._newest.dealt[firsts]
        return int((self._newest.sequences[firsts] * (max(1, dealt.max(initial=0)) - dealt)).sum())

    def waits(self, state: RunState, sites: Collection[str]) -> list[str]:
        """What none of these sites may read, and who may; and what is read too seldom; in words."""
        self._count(state)
        rules, all_dealt = self._newest.rules, self._newest.dealt
        most, found = all_dealt.max(initial=0), list[str]()
        for number, labels in enumerate(self._newest.labels):
            if not labels:  # a site that is there reads it next
                continue
            name, dealt = " with ".join(labels), all_dealt[self._newest.label_numbers == number]
            readers = [site for site in rules.sites if rules.may_read(site, labels)]
            if set(readers).isdisjoint(sites):
                if dealt.min() < max(1, most):
                    found.append(f"label {name} waits for {' or '.join(readers)}, and nobody else may read it")
            elif most - dealt.max() >= _TOO_FEW:  # not only what is new
                found.append(f"label {name} is read less often than other data")
        return found

    def _count(self, state: RunState) -> None:
        if self._counted < 0:
            for data, counts in state.dealt.items():
                version = self._version(state, data)
                for part, number, times in counted(counts):
                    self._newest.count([version.shard(part, number)], times)
        for index, deal in state.deals.items():
            if index > self._counted:
                self._newest.count(self._shards(state, deal))
        self._counted = max(self._counted, state.head.index)

    def _shards(self, state: RunState, deal: DealtShards) -> list[Shard]:
        return self._version(state, deal.data).dealt(deal.shards)

    def _version(self, state: RunState, data: int) -> ReadVersion:
        return self.versions[state.data[data].number]
