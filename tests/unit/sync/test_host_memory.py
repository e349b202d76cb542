"""Host memory of local steps: what there is, and buffers that are borrowed and given back."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.model.fragments import Tensor, make_fragments
from geocomm.sync.local_steps.model.host_memory import (
    available_memory,
    free_host_memory,
    host_empty,
    host_zeros,
    require_memory,
)
from geocomm.sync.local_steps.outer.anchor import least_memory


def test_what_is_available_is_about_what_the_kernel_says() -> None:
    found = available_memory()
    assert found is not None
    assert 2**20 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"job": ("max", 100, 0)}, 2048 * 1000),
        ({"job": ("5000", 4000, 0)}, 1000),
        ({"job": ("5000", 4000, 300)}, 1300),
        ({"job": ("5000", 6000, 0)}, 0),
        ({"": ("9000", 8500, 0), "job": ("5000", 4000, 0)}, 500),
    ],
    ids=["none", "own", "cached files", "exceeded", "of a parent"],
)
def test_limits_of_the_cgroups_above_count(tmp_path: Path, limits: dict[str, tuple[str, int, int]], left: int) -> None:
    """The least of what the machine and each cgroup leave. Files in tmp_path stand for the kernel's."""
    for name, (limit, used, cached) in limits.items():
        group = tmp_path / name
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 77\ninactive_file {cached}\nactive_file 5\n")
    meminfo, own = tmp_path / "meminfo", tmp_path / "cgroup"
    meminfo.write_text("MemTotal: 9000 kB\nMemAvailable:    2000 kB\n")
    own.write_text("1:cpu:/old\n0::/job\n")
    assert available_memory(meminfo, own, tmp_path) == left


def test_memory_that_the_kernel_does_not_describe_is_not_refused(tmp_path: Path) -> None:
    found = available_memory(tmp_path / "none", tmp_path / "none")
    assert found is None
    require_memory(2**60, 8, found)


def test_too_little_memory_is_refused_for_all_ranks_of_the_machine() -> None:
    """The state is 12 bytes an element (4 without momentum and residual), a round 16 of the largest fragment."""
    (fragment,) = make_fragments([Tensor("w", 2**20)], 1)
    needed = least_memory([fragment], momentum=True, residual=True, keeps_local=False)
    assert needed == 28 * 2**20
    assert least_memory([fragment], momentum=True, residual=True, keeps_local=True) == 32 * 2**20
    assert least_memory([fragment], momentum=False, residual=False, keeps_local=False) == 20 * 2**20
    require_memory(needed, 2, 2 * needed)
    with pytest.raises(InvalidArgumentError, match=r"0\.03 GiB of host memory for each of its 2 ranks.*0\.05 GiB left"):
        require_memory(needed, 2, 2 * needed - 1)


def test_memory_that_cannot_be_had_is_an_error_that_says_how_much() -> None:
    """2**48 bytes are more than a process can address."""
    with pytest.raises(InvalidArgumentError, match="ulimit -v"):
        host_zeros(2**46, pinned=False)


def test_memory_that_nobody_uses_any_more_is_taken_again() -> None:
    """Also for a few elements fewer, but not for half as many."""
    free_host_memory()
    first = [host_empty(100, pinned=False) for _ in range(2)]
    places = {values.data_ptr() for values in first}
    assert len(places) == 2
    assert all(values.shape == (100,) and values.dtype == torch.float32 for values in first)
    part = first[0][50:]
    del first
    smaller = host_empty(98, pinned=False)
    assert smaller.shape == (98,)
    assert smaller.data_ptr() in places - {part.data_ptr() - 200}  # a part of the other is still in use
    del part
    half, again = host_empty(50, pinned=False), host_empty(100, pinned=False)
    assert {smaller.data_ptr(), again.data_ptr()} == places
    assert half.data_ptr() not in places
    del smaller, half, again
    free_host_memory()


def test_memory_in_use_is_nobody_elses() -> None:
    """Tensors that live at a time, and threads, have memory of their own."""
    one, other = (host_empty(10, pinned=False) for _ in range(2))
    assert one.data_ptr() != other.data_ptr()
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            buffers = [host_empty(50, pinned=False) for _ in range(3)]
            for buffer in buffers:
                buffer.fill_(number)
            wrong.extend(number for buffer in buffers if not bool((buffer == number).all()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
