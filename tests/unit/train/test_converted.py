"""`geocomm export` to ONNX and GGUF: from a checkpoint, and from the folder that a run left."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch.distributed.checkpoint as dcp

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import ExportRecord, read_record
from geocomm.train.export.export_run import export_converted, export_hf
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


def convert(saved: Path, out: Path, source: str, **more: object) -> ExportRecord:
    given = Given(model=saved / "model", tokenizer="byte") if source == "dcp" else Given()
    settings: dict[str, object] = {"kind": "gguf", "dtype": None, "verify": 2} | more
    return export_converted(saved / source, out, given, say=lambda line: None, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["dcp", "run", "run/export"])
def test_gguf_is_made_of_whatever_there_is(saved: Path, tmp_path: Path, source: str) -> None:
    pytest.importorskip("gguf")
    record = convert(saved, tmp_path / "out", source, dtype="bf16" if source == "dcp" else None)
    assert (record.format, record.dtype) == ("gguf", "bf16" if source == "dcp" else "fp32")
    assert set(record.files) == {"README.md", "model.gguf"}
    assert read_record(tmp_path / "out") == record
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow  # test_onnx_export.py has the same from a folder
def test_onnx_has_the_logits_of_the_model(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    record = convert(saved, tmp_path / "out", "run", kind="onnx")
    assert record.verify is not None
    assert 0 < record.verify.max_logit_difference <= 1e-4
    assert {"model.onnx", "config.json", "tokenizer.json", "README.md"} <= set(record.files)


def test_what_cannot_be_converted_is_refused_and_leaves_nothing(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fp32"):
        convert(saved, tmp_path / "out", "run", kind="onnx", dtype="bf16")
    with pytest.raises(BadInput, match="does not exist"):
        convert(saved, tmp_path / "out", "absent")
    assert not list(tmp_path.iterdir())
