"""A rank of a training is killed: what the other one says, and in which order."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from support.train_ranks import finish, start_ranks, told_user

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")
SETTINGS = ["training.steps=3000", "schedule.decay_steps=3000", "checkpoint.at_end=false", "evaluation.at_end=false"]


@pytest.mark.parametrize(("backend", "named"), [("geocomm", "rank {killed} (site site{killed}"), ("gloo", "127.0.0.1")])
@pytest.mark.parametrize("killed", [0, 1])  # rank 0 has the store
def test_survivor_of_a_killed_rank_says_so_before_any_traceback(
    tmp_path: Path, backend: str, named: str, killed: int
) -> None:
    processes = start_ranks(tmp_path, [*SETTINGS, f"distributed.backend={backend}"])
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and '"step", ' in metrics.read_text()) and time.monotonic() < end:
        time.sleep(0.1)
    processes[killed].send_signal(signal.SIGKILL)
    ended = finish(processes)
    assert ended[killed].code == -signal.SIGKILL, ended[killed].err
    survivor = ended[1 - killed]
    assert survivor.code == 1, survivor.err
    before, _, traceback = survivor.err.partition("Traceback (most recent call last)")
    (sentence,) = told_user(before)
    assert sentence.startswith(f"geocomm train: rank {1 - killed} (site site{1 - killed}): ")
    assert named.format(killed=killed) in sentence
    message = sentence.partition("): ")[2]
    assert survivor.err.count(message) == 1
    # No stack of C++: neither the error's nor that of a store that is gone.
    assert "Exception raised from" not in survivor.err
    assert "Traceback" not in traceback
    # Where an error of geocomm was raised tells a user nothing.
    assert bool(traceback) == (backend == "gloo")
