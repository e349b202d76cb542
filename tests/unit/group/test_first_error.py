"""The last line of `geocomm run`: the first error of any site."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from geocomm.core.errors import PeerLostError
from geocomm.group.rendezvous.first_error import tell_failure


def failed(folder: Path, rank: int, told: str = "", status: int = 1, age_s: int = 0) -> ProcessFailure:
    """A rank that torchrun saw fail, and what it had said."""
    file = folder / f"error{rank}.json"
    if told:
        extra = {"py_callstack": "", "timestamp": str(int(time.time()) - age_s)}
        file.write_text(json.dumps({"message": {"message": told, "extraInfo": extra}}))
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=status, error_file=str(file))


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_error_that_another_one_followed_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures = {
        0: failed(tmp_path, 0, "PeerLostError: rank 1 has left", age_s=9),
        1: failed(tmp_path, 1, "ValueError: boom\nsecond line", age_s=5),
        2: failed(tmp_path, 2, "TypeError: later"),
    }
    tell_failure(ChildFailedError("train.py", failures), "rome")
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "geocomm run: ranks 0, 1, 2 of this node ended with exit status 1",
        "geocomm run: first error: rank 1 (site rome): ValueError: boom second line",
    ]


def test_rank_that_said_nothing_is_told_by_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tell_failure(ChildFailedError("train.py", {3: failed(tmp_path, 3, status=-9)}), "rome")
    assert last_line(capsys) == "geocomm run: first error: rank 3 (site rome): signal SIGKILL"
    tell_failure(ChildFailedError("train.py", {3: failed(tmp_path, 3, status=7)}), "rome")
    assert "rank 3 (site rome): it ended with exit status 7" in last_line(capsys)


def test_site_whose_ranks_only_lost_a_peer_tells_the_error_of_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    cause = ChildFailedError("train.py", {1: failed(tmp_path, 1, "ValueError: boom")})
    follows = ChildFailedError("train.py", {0: failed(tmp_path, 0, "PeerLostError: rank 1 has left")})
    tell_failure(cause, "oslo", store, nodes=2)
    assert last_line(capsys) == "geocomm run: first error: rank 1 (site oslo): ValueError: boom"
    tell_failure(follows, "rome", store, nodes=2)
    assert last_line(capsys) == "geocomm run: first error: rank 1 (site oslo): ValueError: boom"


def test_error_of_a_gradient_hooks_callback_is_that_of_the_lost_peer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def end(_: torch.futures.Future[None]) -> None:
        raise PeerLostError("rank 1 has left")

    future = torch.futures.Future[None]()
    done = future.then(end)
    future.set_result(None)
    with pytest.raises(RuntimeError, match="running the callback") as caught:
        done.wait()
    failures = {0: failed(tmp_path, 0, f"RuntimeError: {caught.value}"), 1: failed(tmp_path, 1, "ValueError: boom")}
    tell_failure(ChildFailedError("train.py", {0: failures[0]}), "rome")
    told = "geocomm run: first error: rank 0 (site rome): PeerLostError: rank 1 has left"
    assert last_line(capsys) == told
    tell_failure(ChildFailedError("train.py", failures), "rome")
    assert last_line(capsys) == "geocomm run: first error: rank 1 (site rome): ValueError: boom"


def test_what_another_site_says_cannot_steer_a_terminal_or_end_the_launcher(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = dist.HashStore()
    store.add("failures/count", 2**40)
    store.set("failures/1", '{"rank": 1, "site": "oslo"}')
    store.set("failures/2", "\x1b")
    lie = {"rank": 1, "site": "oslo", "told": "ValueError: \x1b[2J\n" + 9000 * "x", "follows": False}
    store.set("failures/3", json.dumps(lie))
    follows = ChildFailedError("train.py", {0: failed(tmp_path, 0, "PeerLostError: rank 1 has left")})
    tell_failure(follows, "rome", store, nodes=3)
    told = last_line(capsys)
    assert told.startswith("geocomm run: first error: rank 1 (site oslo): ValueError: ?[2J?xxx")
    assert len(told) < 2000
