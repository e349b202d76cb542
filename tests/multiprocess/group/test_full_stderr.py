"""A pipe at stderr that nobody reads holds up neither links nor the end of the process."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_RANK = """
import sys
import torch
import torch.distributed as dist

dist.init_process_group("geocomm", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
total = torch.ones(300_000)
for _ in range(3):
    dist.all_reduce(total)
dist.destroy_process_group()
print(total[0].item(), flush=True)
"""


@contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Its two ends; the writing one blocks."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    try:
        yield reader, writer
    finally:
        os.close(reader)


def test_ranks_whose_stderr_is_full_reduce_and_end(tmp_path: Path) -> None:
    with full_pipe() as (reader, writer):
        room = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
        ranks = []
        for rank in range(2):
            environment = os.environ | {"GEOCOMM_SITE": "ab"[rank], "GEOCOMM_LOG": "debug", "LOCAL_RANK": "0"}
            ranks.append(
                subprocess.Popen(
                    [sys.executable, "-c", _RANK, str(tmp_path / "store"), str(rank)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=writer,
                )
            )
        os.close(writer)
        try:
            for process in ranks:
                told, _ = process.communicate(timeout=120)
                assert (process.returncode, told.split()) == (0, [b"8.0"])
        finally:
            for process in ranks:
                process.kill()
                process.wait()
        assert len(os.read(reader, 2 * room)) == room  # nobody has read: every line had to wait
