"""The data set of a simulated run: small shards, some of which not all sites may read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from random import Random

from geocomm.data.deal_records import DealtSet
from geocomm.data.dealt_counts import counted
from geocomm.data.dealt_shards import DealtShards, Line, shards_of, text_of
from geocomm.elastic.journal.run_state import RunState

DATA = DealtSet(set="simulated", sequence_length=1)
Sequence = tuple[int, int]
"""A deal, by the index of its entry, and a place in its order."""
_SHARDS, _OF_A_DEAL = 40, 2


class SimulatedData:
    """`RunData`: the shard that was dealt least is next."""

    number, sha256 = 1, "d" * 64

    def __init__(self, random: Random, sites: Collection[str]) -> None:
        own = [frozenset(random.sample(sorted(sites), random.randint(1, len(sites)))) for _ in range(_SHARDS // 4)]
        self._readers = [own[i] if i < len(own) else frozenset(sites) for i in range(_SHARDS)]
        self._sequences = [random.randint(1, 9) for _ in range(_SHARDS)]

    def next_deal(self, state: RunState, site: str, speeds: Mapping[str, float]) -> tuple[str, int] | None:
        """See `RunData`."""
        del speeds
        dealt = Counter(number for deal in state.deals.values() for _, number in shards_of(deal.shards))
        for counts in state.dealt.values():
            dealt.update({number: times for _, number, times in counted(counts)})
        mine = [i for i in range(_SHARDS) if site in self._readers[i]]
        chosen = sorted(mine, key=lambda i: (dealt[i], i))[:_OF_A_DEAL]
        return text_of((0, i) for i in chosen), sum(self._sequences[i] for i in chosen)

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        """See `RunData`."""
        del state
        return all(site in self._readers[number] for _, number in shards_of(deal.shards))

    def readable(self, site: str) -> int:
        """See `RunData`."""
        return sum(size for size, readers in zip(self._sequences, self._readers, strict=True) if site in readers)

    def undealt(self, state: RunState) -> int:
        """See `RunData`."""
        del state
        return 0

    def waits(self, state: RunState, sites: Collection[str]) -> list[str]:
        """See `RunData`."""
        del state, sites
        return []


def read_after(state: RunState, site: str, position: int) -> list[Sequence]:
    """What the line of a site has from a position on that counts or is to be read."""
    return sequences_of(state.sites[site].line)[position - state.line_begins(site) :]


def sequences_of(line: Line) -> list[Sequence]:
    """What a line has, in its order."""
    return [(one.deal, one.start + i) for one in line for i in range(one.sequences)]
