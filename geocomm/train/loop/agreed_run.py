"""What the ranks of a run have found equal or settled before their process group: see `preflight`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from geocomm.core.place import Place
from geocomm.data.corpus.packing import Sequences
from geocomm.data.run_sequences import readings_of
from geocomm.train.loop.train_config import RunConfig


@dataclass(frozen=True)
class Agreed:
    """A run, as this rank takes part in it."""

    config: RunConfig
    place: Place
    device: str
    resume_step: int | None
    site_of_rank: tuple[str, ...]
    """The site of every rank."""
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
    def shard_ranks(self) -> int:
        """Over how many ranks ZeRO cuts what it shards."""
        return self.sites[self.place.site] if self.config.shards_in_sites() else self.place.world_size

    def manifest(self) -> dict[str, Any]:
        """What a checkpoint must have in common with the run that resumes it."""
        from geocomm.train.models.model_factory import model_identity

        return {
            "model": model_identity(self.model_config),
            "data": self.data.fingerprint,
            "readings": readings_of(self.data),
            "world_size": self.place.world_size,
            "zero_stage": self.config.training.zero_stage,
            "precision": self.config.training.precision,
            "shard_ranks": self.shard_ranks,
            "sync_mode": self.config.sync.mode,
            "feedback": self.config.reduces_gradients,
            "sites": self.sites,
            "site_of_rank": self.site_of_rank,
        }
