"""How fast shards may come from afar: a part of the lines between sites, as `geocomm probe` has measured them."""

from __future__ import annotations

import math

from geocomm.core.bad_input import BadInput
from geocomm.core.environment import links_file
from geocomm.group.planning.link_table import Links

_SHARE = 0.5
"""The rest is for what sites send each other in rounds."""


def far_rates(links: Links) -> dict[str, float]:
    """By site, in bytes a second: by its own line's limit, or else by the fastest link to it."""
    into = zip(*links.rate_bps, strict=True) if links.down_bps is None else ((rate,) for rate in links.down_bps)
    return {site: _SHARE * max(rates) / 8 for site, rates in zip(links.sites, into, strict=True)}


def own_far_rate(site: str) -> float:
    """The rate of a site by the table that GEOCOMM_LINKS names, in bytes a second; infinite where it names none, or not
    this site. Raises BadInput."""
    path = links_file()
    if path is None:
        return math.inf
    try:
        return far_rates(Links.from_file(path)).get(site, math.inf)
    except ValueError as error:
        raise BadInput(f"GEOCOMM_LINKS: {error}") from None
