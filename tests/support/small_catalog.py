"""Catalogs of a few small shards, of which only the leader's side needs to know."""

from __future__ import annotations

from pathlib import Path

from geocomm.data.catalog import Catalog, Rules, Shard, Version

RULES = Rules.model_validate(
    {
        "sites": {"a": "eu", "b": "us", "c": "us"},
        "stores": {"s": {"url": "/nowhere"}},
        "labels": {"eu": {"readers": ["eu"]}},
    }
)


def shard(number: int, tokens: int = 45, labels: tuple[str, ...] = ()) -> Shard:
    """One that does not exist."""
    return Shard(f"{number:064x}", "s", f"{number}.tokens", 0, tokens, labels)


def add_version(folder: Path, number: int, *parts: list[Shard]) -> Version:
    """A version of these parts, whatever those before it have."""
    version = Version(number=number, tokenizer="byte", vocabulary=256, dtype="<u2", rules=RULES, parts=())
    for place, part in enumerate(parts):
        version = Catalog(str(folder)).add(version, part)
        if place < len(parts) - 1:
            (folder / f"{number:06}.json").unlink()
    return version
