"""Counters are read through what others register, and a process without a group has none."""

from __future__ import annotations

import subprocess
import sys

from geocomm.metrics import sources

STATS_ALONE = """
import sys, geocomm
found = geocomm.stats()
assert found["operations"] == 0 and found["exposed_seconds"] == 0.0 and found["ratio"] is None, found
assert (found["groups"], found["peers"], found["memory"], found["gradients"]) == ([], [], {}, []), found
assert not {"torch", "geocomm.group.backend", "geocomm._C"} & sys.modules.keys()
"""


def test_source_is_read_anew_each_time_and_unknown_before_it_is_registered() -> None:
    numbers = iter([1, 2])
    assert sources.read("numbers of this test", "none") == "none"
    sources.register("numbers of this test", lambda: next(numbers))
    assert [sources.read("numbers of this test", "none") for _ in range(2)] == [1, 2]


def test_stats_of_a_process_without_groups_are_zeros_and_load_no_torch() -> None:
    subprocess.run([sys.executable, "-c", STATS_ALONE], check=True)
