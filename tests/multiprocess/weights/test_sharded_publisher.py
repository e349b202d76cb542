"""Publishers of several ranks: each its own shards, and one version of all or of none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geocomm.weights.reader import WeightReader
from support import sharded_weights as sharded
from support.harness import Ranks
from support.weight_streams import equal

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(["a", "a"]) as ranks:
        ranks.init()
        yield ranks
        ranks.destroy()


def test_fsdp2_publishes_shards_and_a_reader_has_whole_tensors(ranks: Ranks, tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    ranks.run(sharded.make_fsdp, str(stream))
    into: dict[str, torch.Tensor] = {}
    reader = None
    for version in range(1, 6):
        whole = ranks.run(sharded.step, version)[0]
        if reader is None:
            into = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
            reader = WeightReader(str(stream), into)
        assert reader.update() == version
        assert equal(into, whole)
    said = ranks.run(sharded.fail_at, 1, str(stream))
    assert all("rank 1: " in one and "No space left" in one for one in said)
    whole = ranks.run(sharded.step, 6)[0]
    assert reader is not None
    assert reader.update() == 6
    assert equal(into, whole)
    ranks.run(sharded.close)
    layout = json.loads(next((stream / "layouts").iterdir()).read_bytes())
    boxes = [box for part in layout["parts"] for box in part[1] if layout["tensors"][box[0]][0] == "0.weight"]
    assert sorted(box[2][0] for box in boxes) == [15, 16]  # nothing was gathered


def test_plain_tensors_of_replicas_are_published_by_the_first_rank(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(sharded.plain_on_all, str(tmp_path / "stream")) == [1, 0]


@pytest.mark.parametrize("wrapper", ["ddp", "compile", "zero1", "zero2", "zero3"])
def test_wrappers_publish_what_they_wrap_by_its_own_names(ranks: Ranks, tmp_path: Path, wrapper: str) -> None:
    if wrapper.startswith("zero"):
        pytest.importorskip("deepspeed")
    whole, others = ranks.run(sharded.wrapped, wrapper, str(tmp_path / "stream"))
    assert equal(whole, others)
    into = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    assert not equal(into, whole)
    with WeightReader(str(tmp_path / "stream"), into) as reader:
        assert reader.update() == 3
    assert equal(into, whole)


@pytest.mark.slow
def test_placements_on_a_mesh_of_two_dimensions(tmp_path: Path) -> None:
    with Ranks(["a"] * 4) as ranks:
        ranks.init()
        whole = ranks.run(sharded.make_mesh, str(tmp_path / "stream"))[0]
        ranks.destroy()
    into = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    assert WeightReader(str(tmp_path / "stream"), into).update() == 1
    assert equal(into, whole)


@pytest.mark.slow
def test_fsdp2_over_tensor_parallelism_publishes_its_strided_shards(tmp_path: Path) -> None:
    with Ranks(["a"] * 4) as ranks:
        ranks.init()
        ranks.run(sharded.make_two_dimensional, str(tmp_path / "stream"))
        into: dict[str, torch.Tensor] = {}
        for version in (1, 2):
            whole = ranks.run(sharded.step, version, torch.float32)[0]
            into = into or {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
            with WeightReader(str(tmp_path / "stream"), into) as reader:
                assert reader.update() == version
            assert equal(into, whole)
        ranks.run(sharded.close)
        ranks.destroy()
