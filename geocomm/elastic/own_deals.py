"""What the journal deals to a site, as its agent tells the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from geocomm.journal.messages import SiteDeal
from geocomm.journal.run_state import RunState


def own_deals(state: RunState, site: str, after: int) -> Iterator[SiteDeal]:
    """The deals of a site that end behind this place in its line, in sequences."""
    known, at = state.sites.get(site), 0
    for piece in () if known is None else known.line:
        if at + piece.sequences > after:
            deal = state.deals[piece.deal]
            data = state.data[deal.data]
            yield SiteDeal(
                at=at,
                sequences=piece.sequences,
                start=piece.start,
                deal=piece.deal,
                shards=deal.shards,
                of=deal.sequences,
                number=data.number,
                sha256=data.sha256,
            )
        at += piece.sequences


def begins_with(state: RunState, before: RunState, site: str) -> bool:
    """Whether what was dealt to a site before is still its own: nothing of it was taken back."""
    old = before.sites[site].line if site in before.sites else ()
    return not old or (site in state.sites and state.sites[site].line[: len(old)] == old)
