"""Weights from what torch.distributed.checkpoint wrote, of one process; and what is refused."""

from __future__ import annotations

import io
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from geocomm.core.bad_input import BadInput
from geocomm.train.export.dcp_weights import open_dcp
from support.foreign_pickles import AsOtherPythons, PathOfPython313, Planted

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _model() -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3).bfloat16())
    return nn.ModuleDict({"model": model, "lm_head": nn.Linear(3, 2)})


def _optimizer(model: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("layout", ["flat", "model", "app"])
def test_model_is_found_however_it_was_saved(tmp_path: Path, layout: str) -> None:
    model = _model()
    nested = {"model": model.state_dict(), "optim": _optimizer(model), "step": 3}
    dcp.save({"flat": model.state_dict(), "model": nested, "app": {"app": nested}}[layout], checkpoint_id=tmp_path)
    weights = open_dcp(tmp_path)
    assert set(weights) == set(model.state_dict())
    for name, value in model.state_dict().items():
        assert weights[name].dtype == value.dtype
        assert torch.equal(weights[name], value)


def test_weight_of_which_a_rank_saved_nothing_is_refused(tmp_path: Path) -> None:
    """What is in memory by chance would be exported."""
    _saved(tmp_path)
    path = tmp_path / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    stored = next(one for name, one in metadata.state_dict_metadata.items() if name.endswith("model.0.weight"))
    stored.chunks[0].sizes = torch.Size([4, 5])  # of 7 rows
    path.write_bytes(pickle.dumps(metadata))
    assert "has 20 of 35 values of model.model.0.weight" in _refusal(tmp_path)


def _saved(folder: Path) -> Path:
    dcp.save({"model": _model().state_dict()}, checkpoint_id=folder)
    return folder


def _refusal(folder: Path) -> str:
    with pytest.raises(BadInput) as caught:
        dict(open_dcp(folder))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folder_without_metadata_is_refused(tmp_path: Path) -> None:
    assert ".metadata" in _refusal(tmp_path)


def test_metadata_of_other_classes_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    path = _saved(tmp_path) / ".metadata"
    planted = tmp_path / "planted"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = Planted(planted)
    path.write_bytes(pickle.dumps(metadata))
    said = _refusal(tmp_path)
    assert "does not unpickle" in said
    assert not planted.exists()


def test_metadata_that_other_versions_of_python_wrote_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _saved(tmp_path) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.storage_meta.checkpoint_id = tmp_path
    written = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pathlib._local", SimpleNamespace(PosixPath=PathOfPython313))
        AsOtherPythons(written).dump(metadata)
    assert b"pathlib._local" in written.getvalue()
    assert b"getattr" in written.getvalue()
    path.write_bytes(written.getvalue())
    assert set(open_dcp(tmp_path)) == set(_model().state_dict())


@pytest.mark.parametrize("of", [Planted, "text", nn.Linear])
def test_getattr_in_metadata_gives_members_of_enumerations_alone(tmp_path: Path, of: object) -> None:
    path = _saved(tmp_path) / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    metadata.planner_data = Attribute(of)
    path.write_bytes(pickle.dumps(metadata))
    assert "does not unpickle" in _refusal(tmp_path)


class Attribute:
    """An attribute of something, once it is unpickled."""

    def __init__(self, of: object) -> None:
        self._of = of

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._of, "__init__")


def test_metadata_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path) / ".metadata"
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 53), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert str(path) in _refusal(tmp_path)


def test_metadata_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = _saved(tmp_path / "saved") / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for place in metadata.storage_data.values():
        (tmp_path / place.relative_path).write_bytes((path.parent / place.relative_path).read_bytes())
        place.relative_path = f"../{place.relative_path}"
    path.write_bytes(pickle.dumps(metadata))
    assert "outside of its folder" in _refusal(path.parent)


def test_missing_and_cut_off_files_are_named(tmp_path: Path) -> None:
    (path,) = _saved(tmp_path).glob("*.distcp")
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path} is cut off" in _refusal(tmp_path)
    path.unlink()
    assert f"{path} is missing" in _refusal(tmp_path)


def test_damaged_tensor_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (path,) = _saved(tmp_path).glob("*.distcp")
    path.write_bytes(bytes(path.stat().st_size))
    weights = open_dcp(tmp_path)
    with pytest.raises(BadInput, match=r"lm_head\.bias"):
        weights["lm_head.bias"]


def test_folder_without_or_with_several_models_is_refused(tmp_path: Path) -> None:
    dcp.save({"optim": {"state": torch.ones(2)}}, checkpoint_id=tmp_path / "none")
    assert "holds no model" in _refusal(tmp_path / "none")
    models = {name: {"model": _model().state_dict()} for name in ("student", "teacher")}
    dcp.save(models, checkpoint_id=tmp_path / "two")
    assert "student.model, teacher.model" in _refusal(tmp_path / "two")
