"""Regions of sites: what crosses between two regions crosses once, however many sites they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geocomm.core.link_table import Groups

Relay = tuple[str, str, str]
"""A way from a site, over a site, to a site."""


def regions_text(groups: Groups) -> str:
    """The regions as messages name them: "a, b | c"."""
    return " | ".join(", ".join(group) for group in groups)


@dataclass(frozen=True)
class Regions:
    """The regions of sites.

    In each region a site has a *head* for each site of the other regions: it passes on what that one sends, and adds up
    what goes there. Its sites take turns, so the heads of different sites are different ones.
    """

    sites: Sequence[str]
    groups: Groups = ()
    """The sites by region; nothing: each is a region of its own."""

    def of(self, site: str) -> tuple[str, ...]:
        """The sites of the region of `site`."""
        return next((group for group in self.groups if site in group), (site,))

    def crossing(self, loads: Sequence[Sequence[float]]) -> list[float]:
        """Of what sites send, `[from][to]`, what each one sends to other regions."""
        return [
            sum(load for to, load in zip(self.sites, row, strict=True) if to not in self.of(site))
            for site, row in zip(self.sites, loads, strict=True)
        ]

    def head(self, site: str, far: str) -> str:
        """The head of the region of `site` for the site `far`, which is its own head in its own region."""
        group = self.of(site)
        return far if far in group else group[self.sites.index(far) % len(group)]

    def relays(self) -> list[Relay]:
        """The heads that pass on what a site sends to all."""
        ways = [(far, self.head(site, far), site) for far in self.sites for site in self.sites]
        return [way for way in ways if len({*way}) == 3]

    def adders(self, aggregator: str) -> list[str]:
        """The sites that add up deltas of several, where `aggregator` averages all: it is the last."""
        heads = [self.head(group[0], aggregator) for group in self.groups if len(group) > 1]
        return [*(site for site in heads if site != aggregator), aggregator]

    def adder(self, site: str, aggregator: str) -> str:
        """Where the delta of `site` goes; to itself: it stays there."""
        return aggregator if len(self.of(site)) == 1 else self.head(site, aggregator)

    def parts(self, adder: str, aggregator: str) -> dict[str, tuple[str, ...]]:
        """What an adder adds up, in its order: by who sends a frame, the sites whose deltas are in it."""
        if adder != aggregator:
            return {site: (site,) for site in self.of(adder)}
        parts: dict[str, tuple[str, ...]] = {}
        for site in self.sites:
            to = self.adder(site, aggregator)
            if to == aggregator:
                parts[site] = (site,)
            else:
                parts[to] = self.of(site)
        return parts
