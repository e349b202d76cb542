"""Whether a version of a data set is there, and whole; and what a site may read of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.data.catalog import Shard, Version
from geocomm.data.shard_stores import folder_of
from geocomm.data.token_files import hash_of_range


def problems(version: Version, shards: Sequence[Shard], *, deep: bool) -> Iterator[str]:
    """What is wrong, a sentence each. deep: read every shard, and compare its hash."""
    for shard in shards:
        path = folder_of(version.rules.require_store(shard.store).url) / shard.path
        size = shard.tokens * version.width
        try:
            there = path.stat().st_size
            if there < shard.offset + size:
                yield f"{path} of store {shard.store} has {there} bytes, and {shard.offset + size} were added"
            elif deep and (found := hash_of_range(path, shard.offset, size)) != shard.sha256:
                yield f"{path} of store {shard.store}, {size} bytes from {shard.offset}: {found}, not {shard.sha256}"
        except OSError as error:
            yield f"{path} of store {shard.store} cannot be read: {error}"


def readable(version: Version, shards: Sequence[Shard], site: str) -> int:
    """Tokens that the site may read. Raises BadInput for an unknown one."""
    rules = version.rules
    if site not in rules.sites:
        raise BadInput(f"unknown site '{site}'{did_you_mean(site, rules.sites)}: [sites] has {', '.join(rules.sites)}")
    return sum(shard.tokens for shard in shards if rules.may_read(site, shard.labels))
