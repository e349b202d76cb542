"""Publishers and subscribers that are killed at each change that they make to a file system."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from support.killed_weights import VERSIONS, tensors_at
from support.warm_ranks import warm_ranks
from support.weight_streams import equal

pytestmark = pytest.mark.timeout(280)


def killed(what: str, last: int, folder: Path) -> bool:
    """Whether it was; else it came to its end."""
    command = [*warm_ranks().command("support.killed_weights"), what, str(last), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL, 128 + signal.SIGKILL), done.stderr
    return done.returncode != 0


def check_stream(folder: Path, least: int) -> int:
    """A new reader gets the newest version, and its bytes are those of its number."""
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors_at(0).items()}
    with WeightReader(str(folder / "stream"), into, wait_s=0.1) as reader:
        found = reader.update()
    assert found >= least
    if found:
        assert equal(into, tensors_at(found))
    return found


@pytest.mark.parametrize("first", range(4))
def test_publisher_killed_anywhere_leaves_whole_versions_and_the_next_one_goes_on(tmp_path: Path, first: int) -> None:
    """Every fourth change of each; one stream for all of them."""
    found, last = 0, first
    while killed("publish", last, tmp_path):
        found = check_stream(tmp_path, found)
        last += 4
    assert last > 20
    assert check_stream(tmp_path, found) == found + VERSIONS
    kept = sorted(path.stem for path in (tmp_path / "stream/versions").glob("0*.json"))
    assert len(kept) == 2
    assert sorted({path.parent.name for path in (tmp_path / "stream/frames").glob("*/*")}) == kept


def test_subscriber_killed_anywhere_leaves_a_whole_folder_and_the_next_one_goes_on(tmp_path: Path) -> None:
    tensors = tensors_at(0)
    kills = 0
    with WeightPublisher(tmp_path / "stream", tensors, anchor_every=5) as publisher:
        for last in range(200):
            for name, value in tensors_at(publisher.last() + 1).items():
                tensors[name].copy_(value)
            publisher.publish(wait=True)
            was_killed = killed("subscribe", last, tmp_path)
            kills += was_killed
            model = tmp_path / "model"
            if model.exists():
                number = json.loads((model / "geocomm.json").read_text())["number"]
                assert equal(load_file(model / "model.safetensors"), tensors_at(number))
            if not was_killed:
                assert number == publisher.last()
                break
    assert kills > 8
    assert sum(path.is_dir() for path in tmp_path.glob(".model.*")) <= 3  # this version, the one before, frames
