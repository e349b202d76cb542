"""Whether a version of a data set is there, and whole; and what a site may read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from geocomm.data.catalog import Rules, Shard, Version
from geocomm.data.places import open_place
from geocomm.data.token_files import hash_of_range

_REQUESTS = 16
"""At a time."""


def problems(version: Version, shards: Sequence[Shard], *, deep: bool, site: str | None = None) -> Iterator[str]:
    """What is wrong, a sentence each. deep: read every shard, and compare its hash. site: only what it may read."""
    rules = version.rules
    looked_at = [one for one in shards if site is None or rules.may_read(site, one.labels)]
    files = list({one.place[:2] for one in looked_at})
    with ThreadPoolExecutor(_REQUESTS) as pool:
        sizes = dict(zip(files, pool.map(partial(_size, rules), files), strict=True))
    for shard in looked_at:
        what, size, there = f"{shard.path} of store {shard.store}", shard.tokens * version.width, sizes[shard.place[:2]]
        try:
            if isinstance(there, OSError):
                raise there
            if there < shard.offset + size:
                yield f"{what} has {there} bytes, and {shard.offset + size} were added"
            elif deep and (found := _hash(rules, shard, size)) != shard.sha256:
                yield f"{what}, {size} bytes from {shard.offset}: {found}, not {shard.sha256}"
        except OSError as error:
            yield f"{what} cannot be read: {error}"


def _size(rules: Rules, file: tuple[str, str]) -> int | OSError:
    store, path = file
    try:
        return open_place(rules.require_store(store).url, store).size(path)
    except OSError as error:
        return error


def _hash(rules: Rules, shard: Shard, size: int) -> str:
    return hash_of_range(open_place(rules.require_store(shard.store).url, shard.store), shard.path, shard.offset, size)


def readable(version: Version, shards: Sequence[Shard], site: str) -> int:
    """Tokens that the site may read. Raises BadInput for an unknown one."""
    rules = version.rules
    rules.require_site(site)
    return sum(shard.tokens for shard in shards if rules.may_read(site, shard.labels))
