"""Two ranks that are threads of one process: refused at once, on both, in words."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from geocomm.core.options import Options
from geocomm.group.backend.group_creation import create_elastic_backend
from support.harness import Ranks


def _refusals(path: str, sites: list[str]) -> list[str]:
    told = ["", ""]

    def join(rank: int) -> None:
        options = Options(site=sites[rank], security="insecure")
        try:
            create_elastic_backend(dist.FileStore(path, 2), rank, 2, timedelta(seconds=60), options)
        except Exception as error:
            told[rank] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.parametrize("sites", [["a", "b"], ["a", "a"]], ids=["1+1", "2"])
def test_ranks_that_are_threads_of_one_process_are_refused_on_each(tmp_path: Path, sites: list[str]) -> None:
    with Ranks([None]) as ranks:
        (told,) = ranks.run(_refusals, str(tmp_path / "store"), sites)
    for message in told:
        assert message.startswith("InvalidArgumentError: ")
        assert "ranks 0, 1 are threads of one process" in message
