"""The links of this process as numbers for a tracker: one set for each other site."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_SUMS = ("bytes_sent", "bytes_received", "retransmitted_segments", "resumes", "outages")
_RATES = {"bytes_sent": "sent_bps", "bytes_received": "received_bps"}


class LinkScalars:
    """Reads the links of `geocomm.stats()`; rates are between two readings."""

    def __init__(
        self, peers: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """peers: rows as stats()["peers"] has them; clock: seconds."""
        self._peers = peers
        self._clock = clock
        self._before: dict[str, dict[str, float]] = {}
        self._when = clock()

    def read(self) -> dict[str, float]:
        """`link/SITE/…`: totals over the peers at that site, bits per second, the longest round trip in seconds."""
        now, sites = self._clock(), self._by_site()
        elapsed = now - self._when
        scalars: dict[str, float] = {}
        for site, values in sites.items():
            scalars |= {f"link/{site}/{name}": value for name, value in values.items()}
            before = self._before.get(site)
            if before is not None and elapsed > 0:
                for total, rate in _RATES.items():
                    # Links begin anew with each process group: totals may fall.
                    scalars[f"link/{site}/{rate}"] = max(0.0, values[total] - before[total]) * 8 / elapsed
        self._before, self._when = sites, now
        return scalars

    def _by_site(self) -> dict[str, dict[str, float]]:
        sites: dict[str, dict[str, float]] = {}
        for peer in self._peers():
            if peer["site"] is None:
                continue
            values = sites.setdefault(peer["site"], dict.fromkeys((*_SUMS, "rtt_seconds"), 0.0))
            for name in _SUMS:
                values[name] += peer[name]
            values["rtt_seconds"] = max(values["rtt_seconds"], peer["rtt_us"] * 1e-6)
        return sites
