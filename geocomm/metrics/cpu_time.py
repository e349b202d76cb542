"""CPU time that this process did not get: what a virtual machine's host gave to others, and what a limit forbade."""

from __future__ import annotations

import os
from pathlib import Path

from geocomm.core.cgroups import lines, own_cgroups

LOST_CPU_TIME = ("cpu_stolen_seconds", "cpu_periods", "cpu_throttled_periods")
"""The counters of a report. Seconds are of the mean CPU, periods those of the limit that was used up most often."""
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
        """LOST_CPU_TIME, but for what the kernel does not tell."""
        stolen, periods, throttled = LOST_CPU_TIME
        found: dict[str, float] = {}
        if (columns := next(iter(lines(self._stat)), "").split())[_STEAL:]:
            found[stolen] = int(columns[_STEAL]) / self._per_second
        told = [numbers for limit in self._limits if (numbers := _numbers(limit)).get("nr_periods")]
        if told:
            most = max(told, key=lambda one: one["nr_throttled"])
            found |= {periods: most["nr_periods"], throttled: most["nr_throttled"]}
        return found


def _numbers(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in lines(path))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
