"""What carries the data between which sites: the text of the option `transport`.

- `tcp`: TCP everywhere.
- `rdma`: RDMA between all sites.
- `rdma:a,b` and `rdma:a,b;c,d`: RDMA between the sites of one group (those on one fabric), TCP between all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from geocomm.core.site import SiteNameError, check_site_name


class TransportTextError(ValueError):
    """The text is not a transport."""


@dataclass(frozen=True)
class TransportChoice:
    """Which pairs of sites use RDMA."""

    everywhere: bool = False
    fabrics: tuple[frozenset[str], ...] = ()

    @classmethod
    def parse(cls, text: object) -> TransportChoice:
        """Raise TransportTextError for what is none of the three forms."""
        kind, colon, groups = text.partition(":") if isinstance(text, str) else ("", "", "")
        if kind not in ("tcp", "rdma") or (kind == "tcp" and colon):
            raise TransportTextError("tcp, rdma, or rdma:SITE,SITE (groups of sites apart by semicolons)")
        if not colon:
            return cls(everywhere=kind == "rdma")
        fabrics = tuple(frozenset(name.strip() for name in group.split(",")) for group in groups.split(";"))
        if any(len(fabric) < 2 or "" in fabric for fabric in fabrics):
            raise TransportTextError("rdma: followed by groups of two sites or more, such as rdma:paris,lyon")
        try:
            for name in sorted(name for fabric in fabrics for name in fabric):
                check_site_name(name)
        except SiteNameError as error:
            raise TransportTextError(f"names of sites: {error}") from None
        return cls(fabrics=fabrics)

    @property
    def any_rdma(self) -> bool:
        return self.everywhere or bool(self.fabrics)

    def is_for(self, site: str | None) -> bool:
        """Whether a rank of `site` uses RDMA to anybody."""
        return self.everywhere or any(site in fabric for fabric in self.fabrics)

    def between(self, one: str | None, other: str | None) -> bool:
        """Whether two ranks of these sites use RDMA. Never inside a site, where only notices are exchanged."""
        return one != other and (self.everywhere or any({one, other} <= fabric for fabric in self.fabrics))

    def unknown_sites(self, sites: list[str]) -> list[str]:
        """Names in the text that no site has."""
        return sorted({name for fabric in self.fabrics for name in fabric} - set(sites))
