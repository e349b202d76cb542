"""Sites of an elastic run whose ranks train a small model (`support.elastic_training`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geocomm.elastic.journal.entries import AnyRound
from geocomm.security.key_folder import Keys
from support.elastic_sites import ElasticSite, ElasticSites
from support.hub_support import make_keys
from support.json_lines import lines_of

STEPS = 100_000  # until the file "stop" is there
EVERY = 10


@dataclass
class TrainingSite(ElasticSite):
    """A site whose ranks are those of `support.elastic_training`."""

    ranks: int = 1
    wrap: str = "plain"
    every: int = EVERY
    fragments: int = 2
    reduce: str = "all"

    def start_rank(self) -> None:
        out = str(self.folder.parent)
        arguments = [out, str(STEPS), "0.05", str(self.every), self.wrap, str(self.fragments), self.reduce]
        self.fork_ranks("support.elastic_training", *arguments, ranks=self.ranks)

    def steps(self, rank: int = 0) -> list[dict[str, Any]]:
        return lines_of(self.folder.parent / f"{self.name}.{rank}.jsonl")


def training_sites(
    folder: Path, names: str, ranks: int = 1, wrap: str = "plain", keys: dict[str, Keys] | None = None
) -> ElasticSites:
    """ranks and wrap: of the first site; the others have one rank and a plain model. keys: None makes some."""
    made = ElasticSites(folder, keys or make_keys(folder / "keys", names), wait_for=tuple(names))
    for number, (name, site) in enumerate(made.items()):
        own: dict[str, Any] = {"ranks": ranks, "wrap": wrap} if number == 0 else {}
        made[name] = TrainingSite(**vars(site), **own)
    return made


def training(sites: ElasticSites, name: str) -> TrainingSite:
    site = sites[name]
    assert isinstance(site, TrainingSite)
    return site


def rounds_of(sites: ElasticSites, name: str, at: str) -> list[AnyRound]:
    """The rounds that list the site, as `at` knows them."""
    return [one for one in sites[at].rounds() if name in [listed.site for listed in one.members]]


def has_ended(site: ElasticSite) -> bool:
    return site.rank is not None and site.rank.poll() is not None


def end_all(sites: ElasticSites, folder: Path) -> None:
    (folder / "stop").touch()
    sites.until(lambda: all(map(has_ended, sites.values())), "all end")
    assert [site.rank.returncode for site in sites.values() if site.rank is not None] == [0] * len(sites)


def assert_equal_bits(sites: ElasticSites) -> None:
    """The leader compares the digests of all sites after each round, and says where they differ."""
    assert not any("other bits" in site.text() for site in sites.values())
