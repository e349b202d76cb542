"""The sequences of a data set that a job of fixed sites reads: each rank knows what is dealt to its site.

What a job reads is a function of the run's seed, of the sites, of what each reads in a step, and of what was read
before. Of one site it is a function of the seed alone, whatever the number of ranks. Imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.packing import held_out_every, named_seed
from geocomm.data.deal_sequences import DealSequences, DealtTo
from geocomm.data.dealt_version import ReadVersion
from geocomm.data.fixed_deals import FixedDeals, ReadSoFar


@dataclass(frozen=True)
class SetName:
    """A data set at a version: `folder@17`, or the newest of `folder`."""

    url: str
    number: int | None

    @staticmethod
    def parse(text: str) -> SetName:
        """Raises BadInput for a version that is no number."""
        url, at, number = text.rpartition("@")
        if not at:
            return SetName(text, None)
        if not number.isdecimal():
            raise BadInput(f"{text}: the version after @ is no number")
        return SetName(url, int(number))


class ShardSequences(DealSequences):
    """The sequences of a data set that are dealt to a site; the rest of each shard below one sequence is dropped."""

    def __init__(
        self, name: SetName, site: str, sequence_length: int, held_out_fraction: float, seed: int, order: str = ""
    ) -> None:
        """As the only site of a job, from the beginning on. site: the own one, which the rules of the data set are
        applied to. Raises BadInput."""
        super().__init__(name.url, sequence_length, held_out_every(held_out_fraction), named_seed(seed, order))
        self.name, self._site = name, site
        text = f"catalog {sequence_length} {held_out_fraction} {seed}"
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()
        self._newest = ReadVersion.read(self._catalog, name.number)
        self._read_from(self._newest.version, self._newest.shards, site)
        self.evaluate_for([site])
        self.train_count = self._train_count(self._held_out_shards)
        self.token_count = sum(self._shards[int(number)].tokens for number in self._held_out_shards)
        self._deals: FixedDeals | None = None
        self._base, self._own, self._whole, self._end = 0, 1, 1, 0

    @property
    def version_text(self) -> str:
        """What must be equal at all ranks of a job, beside the fingerprint."""
        return f"{self._newest.version.number} {self._newest.sha256}"

    def deal(
        self,
        batches: Mapping[str, int],
        before: Mapping[str, Any],
        of_all: Callable[[Any], Sequence[Any]] = lambda own: [own],
        consumed: int = 0,
    ) -> FixedDeals:
        """Deal to the sites of a job, from now on. Collective over its ranks, by `of_all`.

        Args:
            batches: Sequences that each site reads in a step.
            before: What `state` gave before, maybe in a job of other sites; empty: nothing was read. Rank 0's counts.
            of_all: Gives what each rank has, by rank, for what this one has.
            consumed: By all ranks together, at that time.

        Raises:
            BadInput: A site may not read enough, the version here is older, or what was read before is not there; at
                all ranks if at any.
        """
        before = of_all(dict(before))[0]
        deals, problem = None, None
        try:
            deals = self._begun(batches, before)
        except BadInput as error:
            problem = str(error)
        told = of_all((problem, deals and deals.make_plan()))
        if deals is None or any(one for one, _ in told):
            raise BadInput(next(one for one, _ in told if one))
        deals.take_plan(told[0][1])
        self._deals, self._end = deals, 0
        self._line.clear()
        self._base, self._own, self._whole = consumed, batches[self._site], sum(batches.values())
        return deals

    def _begun(self, batches: Mapping[str, int], before: Mapping[str, Any]) -> FixedDeals:
        newest = self._newest.version.number
        so_far = ReadSoFar.of_plain(before) if before else ReadSoFar({newest: self._newest.sha256})
        if newest < (last := max(so_far.versions)):
            raise BadInput(f"the run has read version {last} of {self.url}, and this one is {newest}")
        versions = {newest: self._newest}
        for number, sha256 in so_far.versions.items():
            if number not in versions:
                versions[number] = ReadVersion.read(self._catalog, number, sha256)
            versions[number].require(sha256)
        self.evaluate_for(batches)
        return FixedDeals(versions, self.sequence_length, self._every, self._run, batches, so_far)

    def evaluate_for(self, sites: Collection[str]) -> None:
        """Evaluate on sequences of shards that all of these sites may read."""
        rules, labels = self._newest.version.rules, {shard.labels for shard in self._newest.shards}
        strangers = [site for site in sites if site not in rules.sites]
        if any(labels) and strangers:
            raise BadInput(
                f"{self.url} has labels, and its [sites] lack this site, {strangers[0]}: GEOCOMM_SITE names it"
            )
        common = {one for one in labels if all(rules.may_read(site, one) for site in sites)}
        self._held_out_shards = self._numbered(shard for shard in self._newest.shards if shard.labels in common)

    @override
    def position(self, consumed: int) -> int:
        return (consumed - self._base) * self._own // self._whole

    @override
    def state(self, consumed: int) -> dict[str, Any]:
        return self.state_after((consumed - self._base) // self._whole)

    def state_after(self, steps: int) -> dict[str, Any]:
        """`state`, after so many steps of this job."""
        return {} if self._deals is None else self._deals.so_far(steps).plain()

    @override
    def sequence_number(self, position: int) -> int:
        while len(self._line) < 2 or self._line[-1].at <= position:  # one more, which is fetched meanwhile
            self._take_next()
        return super().sequence_number(position)

    def _take_next(self) -> None:
        deals = self._deals or self.deal({self._site: 1}, {})
        piece, shards = deals.piece(self._site, len(self._line))
        at = self._end
        self._end += piece.sequences
        self._line.append(DealtTo(at, piece.deal, self._numbered(shards), piece.start))
        self._want(self._line[-2:])
