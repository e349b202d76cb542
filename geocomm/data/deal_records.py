"""What a run's leader deals to a site, as its agent says it to the ranks. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from geocomm.core.records import MAX_TEXT, Hash, Record, Text, Whole

StoreId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
"""A random name: of a run, or of a site's run folder."""


class DealtSet(Record):
    """The data set that a run deals."""

    set: Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
    """Where its catalog lies: a URL, or a folder."""
    sequence_length: Annotated[int, Field(ge=1, lt=2**31)]
    """In tokens."""
    held_out_every: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """One sequence of this many in a shard is never trained on; 0: all are."""


class DealtData(DealtSet):
    """A version of it."""

    number: Annotated[int, Field(ge=1, le=999_999)]
    """The number of the version."""
    sha256: Hash
    """The hash of the version's file, and so of all that it names."""


class LineBegun(Record):
    """Where a site's line of deals begins for ranks that have just started."""

    run: StoreId
    taken: Whole = 0
    """Tokens that the site has read and that count in every fragment; of dealt data in whole sequences."""
    data: DealtData | None = None
    """The version of the data set that deals are of; None: the run deals no data."""


class SiteDeal(Record):
    """From the agent to its ranks, after RankWelcome: what the site reads next, in the order of its line."""

    kind: Literal["site_deal"] = "site_deal"
    at: Whole
    """The place in the site's line of the first sequence; this and what follows in sequences."""
    sequences: Annotated[int, Field(ge=1, lt=2**63)]
    start: Whole
    """The first one, in the order of the deal."""
    deal: Whole
    """The index of the entry that dealt the shards."""
    shards: Text
    """All of that deal, as in `dealt_shards`."""
    of: Annotated[int, Field(ge=1, lt=2**63)]
    """How many that deal had."""
    number: Annotated[int, Field(ge=1, le=999_999)]
    """The number of the version that the shards are of."""
    sha256: Hash
    """The hash of that version."""
