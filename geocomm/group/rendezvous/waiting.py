"""What a node says while it waits for others, and how often."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from geocomm.core.patience import Patience


class Waiting:
    """Says what is being waited for, now and then (`Patience`)."""

    def __init__(self, log: Callable[[str], None], now: Callable[[], float] = time.monotonic) -> None:
        self._log, self._patience = log, Patience(now)

    def tell(self, what: Callable[[], str]) -> None:
        """`what` is asked only where a line is due."""
        if self._patience.left_s <= 0:
            self._patience.put_off()
            self._log(f"waiting for {what()}")


def nodes_text(away: Sequence[int], nodes: int, sites: Mapping[int, str | None]) -> str:
    """`node 1 of 2 (site virginia)`; the site where `sites` knows it, from a round before or from who is here."""
    named = [f"{node} (site {sites[node]})" if sites.get(node) else str(node) for node in away]
    if len(away) == 1:
        word, _, site = named[0].partition(" ")
        text = f"node {word} of {nodes}{site and ' ' + site}"
    else:
        text = f"nodes {', '.join(named)} of {nodes}"
    if any(sites.get(node) for node in away):
        return text
    here = [f"node {node} (site {site})" for node, site in sorted(sites.items()) if node not in away and site]
    return text + (f"; {', '.join(here)} {'is' if len(here) == 1 else 'are'} here" if here else "")


def without_telemetry(has_it: Sequence[bool | None], sites: Mapping[int, str | None]) -> str:
    """What to say where some nodes collect telemetry and others do not; empty: all do, or none does."""
    silent = [node for node, has in enumerate(has_it) if not has]
    if len(silent) in (0, len(has_it)):
        return ""
    nodes = nodes_text(silent, len(has_it), sites)
    return (
        f"no telemetry of {nodes}: start every node with --telemetry FOLDER, else geocomm why and top do not know what "
        "is done there"
    )
