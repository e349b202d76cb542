"""`geocomm export` to ONNX: from a checkpoint, and from the folder that a run left."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch.distributed.checkpoint as dcp

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype, ExportRecord, read_record
from geocomm.train.export.export_run import export_hf, export_onnx
from geocomm.train.export.export_source import Given
from support.exported_models import deepseek_config, random_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a DCP checkpoint, its configuration, and a run that left an export."""
    folder = tmp_path_factory.mktemp("saved")
    dcp.save({"model": random_model(deepseek_config()).state_dict()}, checkpoint_id=folder / "dcp", no_dist=True)
    deepseek_config().save_pretrained(folder / "model")
    given = Given(model=folder / "model", tokenizer="byte")
    export_hf(folder / "dcp", folder / "run" / "export", given, None, 0, lambda line: None)
    return folder


def convert(saved: Path, out: Path, source: str, dtype: Dtype | None = None) -> ExportRecord:
    given = Given(model=saved / "model", tokenizer="byte") if source == "dcp" else Given()
    return export_onnx(saved / source, out, given, dtype, 2, lambda line: None)


@pytest.mark.parametrize("source", ["dcp", "run", "run/export"])
def test_onnx_is_made_of_whatever_there_is(saved: Path, tmp_path: Path, source: str) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    record = convert(saved, tmp_path / "out", source)
    assert (record.format, record.dtype) == ("onnx", "fp32")
    assert record.verify is not None
    assert 0 < record.verify.max_logit_difference <= 1e-4
    assert {"model.onnx", "config.json", "tokenizer.json", "README.md"} <= set(record.files)
    assert read_record(tmp_path / "out") == record
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fp32"):
        convert(saved, tmp_path / "out", "run", "bf16")
    with pytest.raises(BadInput, match="does not exist"):
        convert(saved, tmp_path / "out", "absent")
    assert not list(tmp_path.iterdir())
