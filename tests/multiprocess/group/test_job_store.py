"""The end of a job whose ranks met before any process group: nobody leaves before all come to their end."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.core.place import rank_variables
from support.hub_jobs import job_in
from support.local_jobs import free_port

RANK = """
import os, sys, time
from pathlib import Path
from geocomm.core.place import find_place
from geocomm.group.membership.job_store import Rendezvous

place, folder, late = find_place(os.environ), Path(sys.argv[1]), int(sys.argv[2])
rendezvous = Rendezvous(place, 60)
rendezvous.exchange({})
if place.rank == late:
    time.sleep(1)
    (folder / "came").touch()
rendezvous.linger()
assert (folder / "came").exists(), f"rank {place.rank} has left before rank {late} came to its end"
"""


@pytest.mark.parametrize("late", [0, 2])
def test_no_rank_leaves_before_all_come_to_their_end(tmp_path: Path, late: int) -> None:
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    port = str(free_port("127.0.0.1"))
    with job_in(tmp_path / "job") as job:
        for rank in range(3):
            place = rank_variables(rank, 3, rank, 3) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            job.start(str(program), str(job.folder), str(late), **place)
        assert job.end() == [0, 0, 0], job.output()
        assert "store" not in job.output().lower(), "rank 0 serves the store until all have left it"
