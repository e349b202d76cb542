"""How often each shard of a version was dealt, as runs of shards in a row that were dealt as often: short for a data
set that is read in passes, however many passes there were."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise

from geocomm.data.dealt_shards import shards_of

DealtCounts = dict[int, list[tuple[int, int]]]
"""By part: (number of a shard, times) where a run begins, ascending; it ends where the next one begins. The last one
has 0 times, as what stands before the first one."""


def count(counts: DealtCounts, shards: str) -> None:
    """The shards of a deal, as in `dealt_shards`, were dealt once more."""
    for part, number in shards_of(shards):
        _count(counts.setdefault(part, []), number)


def counted(counts: DealtCounts) -> Iterator[tuple[int, int, int]]:
    """(part, number in the part, times) of each shard that was dealt."""
    for part, runs in sorted(counts.items()):
        for (first, times), (after, _) in pairwise(runs):
            if times:
                yield from ((part, number, times) for number in range(first, after))


def _count(runs: list[tuple[int, int]], number: int) -> None:
    """The run that has the number becomes up to three."""
    after = bisect_right(runs, number, key=lambda run: run[0])
    first, times = runs[after - 1] if after else (-1, 0)
    begin = after
    before = times  # of the shard in front of it
    if first == number:
        begin = after - 1
        before = runs[begin - 1][1] if begin else 0
    new = [] if before == times + 1 else [(number, times + 1)]
    if after == len(runs) or runs[after][0] != number + 1:
        new.append((number + 1, times))
    elif runs[after][1] == times + 1:
        after += 1
    runs[begin:after] = new
