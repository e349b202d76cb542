"""CPU time that sites did not get, as evidence of why one computes slowly, or stops."""

from __future__ import annotations

from collections.abc import Sequence

from geocomm.observe.diagnosis.run_window import RunWindow

_STOLEN, _THROTTLED = 0.02, 0.05
"""Less is usual, and told of no site."""


def cpu_rows(window: RunWindow, site: str = "") -> list[tuple[str, str]]:
    """What was lost at a site, at its rank that lost most; at all sites: without a name."""
    rows: list[tuple[str, str]] = []
    for name, stolen, throttled in _lost(window, site):
        if stolen >= _STOLEN:
            rows.append((f"CPU time that {name}'s host gave to other machines (steal)", f"{stolen:.0%}"))
        if throttled >= _THROTTLED:
            rows.append((f"periods in which {name} used up its CPU limit (cgroup)", f"{throttled:.0%}"))
    return rows


def cpu_fix(window: RunWindow, site: str = "") -> str:
    """What helps, to be put before what else helps; empty: nothing was lost."""
    found = [*_lost(window, site)]
    fix = ""
    if any(throttled >= _THROTTLED for _, _, throttled in found):
        fix += "Raise the CPU limit of the container or the job. "
    if any(stolen >= _STOLEN for _, stolen, _ in found):
        fix += "The virtual machine shares its CPUs: take one with CPUs of its own. "
    return fix


def _lost(window: RunWindow, site: str) -> Sequence[tuple[str, float, float]]:
    sites = sorted({rank.place[0] for rank in window.ranks if site in ("", rank.place[0])})
    return [
        (
            name,
            max(rank.stolen for rank in window.ranks if rank.place[0] == name),
            max(rank.throttled for rank in window.ranks if rank.place[0] == name),
        )
        for name in sites
    ]
