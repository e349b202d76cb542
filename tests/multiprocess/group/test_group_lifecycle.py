"""Starting and ending: without an import, under a launcher, in spawned children, again and again, never destroyed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks
from support.warm_ranks import warm_ranks

# What a user writes: no import of geocomm anywhere.
PROGRAM = """
import os, sys
import torch
import torch.distributed as dist

assert not {"geocomm._C", "geocomm.group.backend", "geocomm.core.errors"} & sys.modules.keys()
dist.init_process_group("geocomm")
assert dist.get_backend() == "geocomm"
tensor = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(tensor)
assert tensor.tolist() == [3.0] * 1000
ENDING
print("done", flush=True)
"""
ENDINGS = {
    "destroyed": "dist.destroy_process_group()",
    "never destroyed": "",
    "in flight": "dist.all_reduce(torch.ones(100_000), async_op=True)",
}


def _environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
    return kept | {"OMP_NUM_THREADS": "1"} | changes


def _launch(tmp_path: Path, program: str, *, ranks: int = 2, **changes: str) -> subprocess.CompletedProcess[str]:
    """Under torch's launcher, with GEOCOMM_SITE of each rank's own."""
    script = tmp_path / "program.py"
    script.write_text("import os\nos.environ['GEOCOMM_SITE'] = 'site' + os.environ['RANK']\n" + program)
    command = [*warm_ranks().command("torch.distributed.run"), "--standalone", "--nproc-per-node", str(ranks), script]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=_environment(**changes), cwd=tmp_path, check=False
    )


@pytest.mark.parametrize(
    "ending",
    [
        # Of these two, test_wheel_install.py and test_reporting.py have programs too.
        pytest.param(ENDINGS["destroyed"], id="destroyed", marks=pytest.mark.slow),
        pytest.param(ENDINGS["never destroyed"], id="never destroyed", marks=pytest.mark.slow),
        pytest.param(ENDINGS["in flight"], id="in flight"),
    ],
)
def test_program_without_import_under_the_launcher_ends_well(tmp_path: Path, ending: str) -> None:
    ended = _launch(tmp_path, PROGRAM.replace("ENDING", ending))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("done") == 2


SPAWNING = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

def child(rank, path):
    os.environ["GEOCOMM_SITE"] = f"site{rank}"
    dist.init_process_group("geocomm", init_method="file://" + path, rank=rank, world_size=2)
    tensor = torch.ones(10)
    dist.all_reduce(tensor)
    assert tensor[0] == 2
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(child, (os.path.abspath("store"),), nprocs=2)
    print("done")
"""


def test_spawned_children_find_the_backend_without_import(tmp_path: Path) -> None:
    (tmp_path / "spawning.py").write_text(SPAWNING)
    ended = subprocess.run(
        [sys.executable, "spawning.py"],
        capture_output=True,
        text=True,
        timeout=240,
        env=_environment(),
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "done" in ended.stdout


def _reduce_and_count() -> tuple[float, int]:
    import geocomm

    tensor = torch.full((70_000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor[0].item(), geocomm.stats()["operations"]


def _open_sockets() -> int:
    links: list[str] = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return sum(link.startswith("socket:") for link in links)


def _settles_at(sockets: list[int]) -> bool:
    """Whether this rank comes to have no more sockets than that: threads of the last group may still end."""
    end = time.monotonic() + 60
    while (found := _open_sockets() <= sockets[_rank()]) is False and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _rank() -> int:
    return int(os.environ["RANK"])


def test_init_again_in_the_same_processes_works_and_leaks_no_sockets() -> None:
    with Ranks(["a", "a", "b"]) as ranks:
        sockets = []
        for round_ in range(1, 5):
            ranks.init()
            assert ranks.run(_reduce_and_count) == [(6.0, round_)] * 3
            ranks.destroy()
            sockets.append(ranks.run(_open_sockets))
        assert all(ranks.run(_settles_at, sockets[1]))


def test_init_of_one_site_after_two_delegates_plainly() -> None:
    with Ranks(["a", "b"]) as ranks:
        ranks.init()
        assert ranks.run(_reduce_and_count) == [(3.0, 1)] * 2
        ranks.destroy()
        ranks.run(_same_site)
        ranks.init()
        assert ranks.run(_reduce_and_count) == [(3.0, 1)] * 2  # nothing crossed sites any more
        assert ranks.run(_listening) == [False, False]
        ranks.destroy()


def _same_site() -> None:
    os.environ["GEOCOMM_SITE"] = "one"


def _listening() -> bool:
    """Whether geocomm's endpoint is open."""
    from geocomm.group.backend.runtime import runtime

    return runtime._endpoint is not None


def _leave_at_once(path: str, slow: int) -> None:
    import time

    from geocomm.group.backend import inner_groups

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    read = inner_groups.GatheredStore.get

    def read_late(store: inner_groups.GatheredStore, key: str) -> bytes:
        time.sleep(0.3)
        return read(store, key)

    inner_groups.GatheredStore.get = read_late if rank == slow else read
    try:
        dist.init_process_group("geocomm", store=dist.FileStore(path, size), rank=rank, world_size=size)
    finally:
        inner_groups.GatheredStore.get = read
    dist.destroy_process_group()


@pytest.mark.parametrize("sites", [["a", "a"], ["a", "a", "b"]])
def test_a_rank_may_leave_while_another_of_its_site_has_still_to_connect(sites: list[str]) -> None:
    """Which of two ranks dials depends on their addresses: each is the slow one once."""
    with Ranks(sites) as ranks:
        for slow in range(2):
            ranks.run(_leave_at_once, ranks.new_store(), slow)
