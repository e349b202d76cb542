"""Threads of one rank that use groups, codecs and counters at the same time, with and without Python's GIL."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

import geocomm
from support.harness import Ranks

THREADS, ROUNDS = 4, 25
ELEMENTS = 70_000


def _uses_a_group(group: dist.ProcessGroup, seed: int) -> bool:
    values = torch.arange(ELEMENTS, dtype=torch.float32) % (seed + 2)
    for at in range(ROUNDS):
        total = values * (dist.get_rank() + 1)
        dist.all_reduce(total, group=group)
        packed = geocomm.compress(values + at, "lossless")
        if not torch.equal(total, 3 * values) or not torch.equal(geocomm.decompress(packed), values + at):
            return False
        if not geocomm.stats():
            return False
    return True


def _all_at_once() -> bool:
    groups = [dist.new_group() for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        return all(pool.map(_uses_a_group, groups, range(THREADS)))


def test_threads_use_a_group_each_at_the_same_time() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        assert ranks.run(_all_at_once) == [True, True]


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python always has a GIL")
def test_native_module_leaves_the_gil_off() -> None:
    program = "import sys; from geocomm.core.native import native; native(); sys.exit(sys._is_gil_enabled())"
    subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", program], check=True)
