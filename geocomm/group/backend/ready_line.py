"""The line of a new default group over sites: that all ranks have met, and what they will send how."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from geocomm.core.options import Options, transport_keys
from geocomm.core.transport_choice import TransportChoice
from geocomm.core.units import count_text
from geocomm.group.membership.rank_record import RankInfo


def is_first_of_site(infos: Sequence[RankInfo], rank: int) -> bool:
    """Whether no other rank of the group would say the line at the site of `rank`."""
    return all(info.site != infos[rank].site for info in infos[:rank])


def ready_line(infos: Sequence[RankInfo], options: Options) -> str:
    """Such as "group ready: 2 sites (frankfurt 2 ranks, virginia 1 rank), TLS 1.3, codec none, 8 streams a peer"."""
    ranks = Counter(info.site for info in infos)
    sites = ", ".join(f"{site} {count_text(count, 'rank')}" for site, count in ranks.items())
    parts = [
        f"{len(ranks)} sites ({sites})",
        "TLS 1.3" if transport_keys(options) else "plaintext",
        f"codec {options.codec}",
        "streams as the link needs" if options.streams is None else f"{options.streams} streams a peer",
    ]
    if TransportChoice.parse(options.transport).any_rdma:
        parts.append(f"transport {options.transport}")
    return "group ready: " + ", ".join(parts)
