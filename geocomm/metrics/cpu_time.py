"""CPU time that this process did not get: what a virtual machine's host gave to others, and what a limit forbade."""

from __future__ import annotations

import os
from pathlib import Path

from geocomm.core.cgroups import lines, own_cgroups

_STEAL = 8
"""The column of /proc/stat's first line, of which the first is the line's name."""


class CpuTime:
    """Totals since the machine, or the cgroup, began."""

    def __init__(
        self,
        stat: Path = Path("/proc/stat"),
        own: Path = Path("/proc/self/cgroup"),
        mounted: Path = Path("/sys/fs/cgroup"),
    ) -> None:
        """The files that the kernel tells it in."""
        self._stat = stat
        self._limits = [at for group in own_cgroups("cpu", own, mounted) if (at := group / "cpu.stat").is_file()]
        self._per_second = os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)

    def lost(self) -> dict[str, float]:
        """Counters of a report. cpu_stolen_seconds: of the mean CPU. cpu_periods, cpu_throttled_periods: of the limit
        that was used up most often. Not of what the kernel does not tell."""
        found: dict[str, float] = {}
        if (columns := next(iter(lines(self._stat)), "").split())[_STEAL:]:
            found["cpu_stolen_seconds"] = int(columns[_STEAL]) / self._per_second
        told = [numbers for limit in self._limits if (numbers := _numbers(limit)).get("nr_periods")]
        if told:
            most = max(told, key=lambda one: one["nr_throttled"])
            found |= {"cpu_periods": most["nr_periods"], "cpu_throttled_periods": most["nr_throttled"]}
        return found


def _numbers(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
