"""Which folders and files are read as a checkpoint of the driver, and what is said of the others."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.serialization import get_unsafe_globals_in_checkpoint

from geocomm.core.bad_input import BadInput
from geocomm.train.export.checkpoint_weights import CheckpointCopies, _load_mapped, _Unused, open_checkpoint
from support.foreign_pickles import AsOtherPythons, Planted

MODEL_FILE = "mp_rank_00_model_states.pt"
MANIFEST: dict[str, Any] = {
    "format": 1,
    "step": 4,
    "consumed": 64,
    "model": {"hidden_size": 8},
    "world_size": 6,
    "zero_stage": 0,
    "precision": "fp32",
    "shard_ranks": 6,
    "sync_mode": "gradients",
    "sites": {"a": 4, "b": 2},
    "site_of_rank": ["a", "b", "a", "b", "a", "a"],
}
WEIGHTS = {"layer.weight": torch.randn(3, 4), "layer.bias": torch.randn(3)}


def _checkpoint(root: Path, **changes: Any) -> Path:
    """Of ZeRO 0, in `root`."""
    folder = root / "step-00000004"
    (folder / "deepspeed").mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(MANIFEST | changes))
    _save(folder, {"module": WEIGHTS, "buffer_names": []})
    return folder


def _save(folder: Path, state: Any, name: str = MODEL_FILE) -> None:
    torch.save(state, folder / "deepspeed" / name)


def _refusal(*folders: Path) -> str:
    with pytest.raises(BadInput) as caught:
        dict(open_checkpoint(folders[0], folders[1:]).weights())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_are_read_by_name_each_time_anew(tmp_path: Path) -> None:
    weights = open_checkpoint(_checkpoint(tmp_path)).weights()
    assert list(weights) == list(WEIGHTS)
    assert "layer.bias" in weights
    assert "bias" not in weights
    weights["layer.bias"].zero_()
    assert torch.equal(weights["layer.bias"], WEIGHTS["layer.bias"])
    with pytest.raises(KeyError):
        weights["bias"]


def test_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    assert "manifest.json" in _refusal(tmp_path)


def test_partial_folder_is_refused_though_it_looks_whole(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path)
    assert "left by a crash" in _refusal(folder.rename(tmp_path / ".partial-step-00000004"))


@pytest.mark.parametrize(
    ("changes", "mention"),
    [({"format": 2}, "format 2"), ({"precision": "fp8"}, "fp8"), ({"zero_stage": 4}, "ZeRO 4")],
)
def test_manifest_of_another_version_is_refused(tmp_path: Path, changes: dict[str, Any], mention: str) -> None:
    assert mention in _refusal(_checkpoint(tmp_path, **changes))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "step": 4}'])
def test_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    folder = _checkpoint(tmp_path)
    (folder / "manifest.json").write_text(text)
    assert str(folder / "manifest.json") in _refusal(folder)


def test_missing_file_of_the_model_is_refused_and_found_in_another_copy(tmp_path: Path) -> None:
    here, there = _checkpoint(tmp_path / "a"), _checkpoint(tmp_path / "b")
    (here / "deepspeed" / MODEL_FILE).unlink()
    assert str(here / "deepspeed" / MODEL_FILE) in _refusal(here)
    assert list(open_checkpoint(here, [there]).weights()) == list(WEIGHTS)


@pytest.mark.parametrize("changes", [{"step": 5}, {"world_size": 8}, {"model": {"hidden_size": 16}}])
def test_copies_of_different_checkpoints_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    here, there = _checkpoint(tmp_path / "a"), _checkpoint(tmp_path / "b", **changes)
    said = _refusal(here, there)
    assert f"differ in {next(iter(changes))}" in said
    assert str(there) in said


def test_file_that_is_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path)
    path = folder / "deepspeed" / MODEL_FILE
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert str(path) in _refusal(folder)


def test_file_of_other_classes_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path)
    planted = tmp_path / "planted"
    _save(folder, {"module": WEIGHTS, "buffer_names": [], "more": Planted(planted)})
    said = _refusal(folder)
    assert "does not unpickle" in said
    assert "pathlib" in said
    assert not planted.exists()


def test_file_that_an_older_python_wrote_is_read_and_none_of_its_attributes_is_looked_up(tmp_path: Path) -> None:
    from deepspeed.runtime.zero.config import ZeroStageEnum

    folder = _checkpoint(tmp_path)
    state = {"module": WEIGHTS, "buffer_names": [], "zero_stage": ZeroStageEnum.weights}
    older = SimpleNamespace(Pickler=AsOtherPythons, dumps=pickle.dumps, __name__="pickle")
    torch.save(state, folder / "deepspeed" / MODEL_FILE, pickle_module=older)
    assert "builtins.getattr" in get_unsafe_globals_in_checkpoint(folder / "deepspeed" / MODEL_FILE)
    assert list(open_checkpoint(folder).weights()) == list(WEIGHTS)
    assert type(_load_mapped(folder / "deepspeed" / MODEL_FILE)["zero_stage"]) is _Unused


@pytest.mark.parametrize("state", [[1, 2], {"weights": WEIGHTS}])
def test_file_of_something_else_is_refused(tmp_path: Path, state: Any) -> None:
    folder = _checkpoint(tmp_path)
    _save(folder, state)
    assert MODEL_FILE in _refusal(folder)


def _shards(root: Path, count: int, ranks: list[int], **changes: Any) -> Path:
    folder = _checkpoint(root, shard_ranks=count, **changes)
    for rank in ranks:
        (folder / "deepspeed" / f"shard-{rank}.pt").touch()
    return folder


def test_shards_are_found_in_any_copy_and_the_first_is_taken(tmp_path: Path) -> None:
    first, second = _shards(tmp_path / "a", 6, [0, 1, 2, 3]), _shards(tmp_path / "b", 6, [3, 4, 5])
    found = CheckpointCopies([first, second]).shard_files("shard-{}.pt")
    assert [file.parents[2].name for (file,) in found] == ["a", "a", "a", "a", "b", "b"]
    assert [file.name for (file,) in found] == [f"shard-{rank}.pt" for rank in range(6)]


@pytest.mark.parametrize(("missing", "site"), [(3, "b"), (4, "a")])
def test_missing_shard_is_named_with_its_rank_and_site(tmp_path: Path, missing: int, site: str) -> None:
    folder = _shards(tmp_path, 6, [rank for rank in range(6) if rank != missing])
    with pytest.raises(BadInput) as caught:
        CheckpointCopies([folder]).shard_files("shard-{}.pt")
    for mention in (str(folder / "deepspeed" / f"shard-{missing}.pt"), f"rank {missing} of site {site}", "--shards"):
        assert mention in str(caught.value)


def test_shards_of_sites_of_different_sizes_are_not_mixed(tmp_path: Path) -> None:
    a, b = _shards(tmp_path / "a", 4, [0, 1, 2]), _shards(tmp_path / "b", 2, [0, 1])
    found = CheckpointCopies([a, b]).shard_files("shard-{}.pt")
    assert [file for (file,) in found] == [b / "deepspeed" / f"shard-{rank}.pt" for rank in range(2)]
    shutil.rmtree(b / "deepspeed")
    with pytest.raises(BadInput) as caught:
        CheckpointCopies([a, b]).shard_files("shard-{}.pt")
    assert "rank 3 of those at site a," in str(caught.value)
