"""What the ranks of a run have found equal or settled before their process group: see `preflight`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from geocomm.core.place import Place
from geocomm.data.corpus.packing import Sequences
from geocomm.train.loop.train_config import RunConfig


@dataclass(frozen=True)
class Seat:
    """Which sequences of a step a rank reads."""

    rank: int
    ranks: int
    """That read one line of sequences together, and which of them this is."""
    first: int
    """Sequences of a step that come before theirs in that line."""
    whole: int
    """Sequences that all ranks of the job read in a step."""


@dataclass(frozen=True)
class Agreed:
    """A run, as this rank takes part in it."""

    config: RunConfig
    place: Place
    device: str
    resume_step: int | None
    site_of_rank: tuple[str, ...]
    """The site of every rank."""
    batch_of_rank: tuple[int, ...]
    """Sequences that every rank reads in a step."""
    data: Sequences
    model_config: Any
    """The configuration of transformers."""
    elastic: bool = False
    """Whether all ranks are one site of an elastic run, which knows nothing here of the others."""

    @property
    def sites(self) -> dict[str, int]:
        """How many ranks each site has, in the order of the lowest of them."""
        return {site: self.site_of_rank.count(site) for site in dict.fromkeys(self.site_of_rank)}

    @property
    def batches(self) -> dict[str, int]:
        """Sequences that each site reads in a step."""
        pairs = list(zip(self.site_of_rank, self.batch_of_rank, strict=True))
        return {name: sum(batch for site, batch in pairs if site == name) for name in self.sites}

    @property
    def seat(self) -> Seat:
        """Where this rank reads: text in one line for all ranks; sites with batches of their own one after the other,
        and those of a catalog each in a line of its own."""
        whole, catalog = sum(self.batch_of_rank), self.config.data.source == "catalog"
        if not catalog and len(set(self.batch_of_rank)) == 1:
            return Seat(self.place.rank, self.place.world_size, 0, whole)
        place = self.site_of_rank[: self.place.rank].count(self.place.site)
        before = list(self.batches)[: list(self.batches).index(self.place.site)]
        first = 0 if catalog else sum(self.batches[site] for site in before)
        return Seat(place, self.sites[self.place.site], first, whole)

    @property
    def shard_ranks(self) -> int:
        """Over how many ranks ZeRO cuts what it shards."""
        return self.sites[self.place.site] if self.config.shards_in_sites() else self.place.world_size

    def manifest(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that resumes it."""
        from geocomm.train.models.model_factory import model_identity

        return {
            "model": model_identity(self.model_config),
            "data": self.data.fingerprint,
            "world_size": self.place.world_size,
            "zero_stage": self.config.training.zero_stage,
            "precision": self.config.training.precision,
            "shard_ranks": self.shard_ranks,
            "sync_mode": self.config.sync.mode,
            "feedback": self.config.reduces_gradients,
            "sites": self.sites,
            "site_of_rank": self.site_of_rank,
        }
