"""CPU time that a process did not get, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geocomm.metrics.cpu_time import CpuTime


def limit(folder: Path, throttled: int, periods: int = 100) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = f"usage_usec 5\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 77\n"
    (folder / "cpu.stat").write_text(told)


def lost(tmp_path: Path, own: str, stat: str = "") -> dict[str, float]:
    (tmp_path / "stat").write_text(stat)
    (tmp_path / "own").write_text(own)
    return CpuTime(tmp_path / "stat", tmp_path / "own", tmp_path / "fs").lost()


def test_this_machine_tells_what_was_stolen_since_it_began() -> None:
    told = CpuTime().lost()
    with open("/proc/uptime", encoding="ascii") as file:
        uptime = float(file.read().split()[0])
    assert 0 <= told["cpu_stolen_seconds"] <= uptime


def test_time_that_was_stolen_is_of_the_mean_cpu(tmp_path: Path) -> None:
    ticks = 3 * os.sysconf("SC_CLK_TCK") * (os.cpu_count() or 1)
    assert lost(tmp_path, "", f"cpu  1 2 3 4 5 6 7 {ticks} 9 10\ncpu0 1 2\n") == {"cpu_stolen_seconds": 3.0}


@pytest.mark.parametrize(
    ("own", "folders"),
    [
        ("0::/\n", {"": 40}),
        ("0::/pod/job\n", {"pod": 40, "pod/job": 3}),  # a pod's limit counts for its containers
        ("4:memory:/x\n1:cpu,cpuacct:/job\n0::/\n", {"cpu,cpuacct/job": 40}),
        ("0::/not/in/this/container\n", {"": 40}),
    ],
    ids=["own root", "of a parent", "version 1", "container"],
)
def test_the_limit_that_is_used_up_most_often_counts(own: str, folders: dict[str, int], tmp_path: Path) -> None:
    for name, throttled in folders.items():
        limit(tmp_path / "fs" / name, throttled)
    assert lost(tmp_path, own) == {"cpu_periods": 100, "cpu_throttled_periods": 40}


def test_what_the_kernel_does_not_tell_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "fs").mkdir()
    (tmp_path / "fs" / "cpu.stat").write_text("usage_usec 5\n")  # of no limit
    assert lost(tmp_path, "0::/\n", "cpu  1 2 3\n") == {}
