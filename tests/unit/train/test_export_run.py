"""`geocomm export` of a checkpoint of torch.distributed, and of what it cannot use."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
import torch.distributed.checkpoint as dcp

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype, ExportRecord, TrainedBy, read_record
from geocomm.train.export.export_run import export_hf
from geocomm.train.export.export_source import Given
from support.exported_models import deepseek_config, random_model, stored_tensors


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A DCP folder, the same model's config.json, and what `save_pretrained` makes of it."""
    folder = tmp_path_factory.mktemp("saved")
    model = random_model(deepseek_config())
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "dcp", no_dist=True)
    model.save_pretrained(folder / "expected")
    deepseek_config().save_pretrained(folder / "model")
    return {name: folder / name for name in ("dcp", "expected", "model")}


@contextmanager
def largest_file(count_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def export(source: Path, out: Path, verify: int = 0, **given: object) -> ExportRecord:
    return export_hf(source, out, Given(**given), None, verify, lambda line: None)  # type: ignore[arg-type]


def test_torch_checkpoint_becomes_a_folder(saved: dict[str, Path], tmp_path: Path) -> None:
    record = export(saved["dcp"], tmp_path / "out", 4, model=saved["model"], tokenizer="byte")
    found, expected = stored_tensors(tmp_path / "out"), stored_tensors(saved["expected"])
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert read_record(tmp_path / "out") == record
    assert record.verify is not None
    assert (record.verify.sequences, record.verify.held_out) == (4, False)
    assert (record.held_out, record.source) == (None, TrainedBy(path=str(saved["dcp"])))
    assert record.held_out_reason
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_full_disk_leaves_nothing(saved: dict[str, Path], tmp_path: Path) -> None:
    with largest_file(50_000), pytest.raises(BadInput, match="MB free"):
        export(saved["dcp"], tmp_path / "out", model=saved["model"], tokenizer="byte")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({}, {}, "--model"),
        ({}, {"preset": "tiny"}, "another model"),
        ({}, {"preset": "tinny"}, "did you mean 'tiny'"),
        ({"num_hidden_layers": 4}, {}, "another model"),
        ({"hidden_size": 64}, {}, "another model"),
        ({}, {"tokenizer": None}, "--tokenizer"),
        ({}, {"tokenizer": "/absent"}, "/absent"),
        ({}, {"shards": ["/absent"]}, "--shards"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(
    saved: dict[str, Path], tmp_path: Path, changes: dict[str, int], given: dict[str, object], words: str
) -> None:
    out = tmp_path / "out"
    more: dict[str, object] = {"tokenizer": "byte"}
    if changes or "--tokenizer" in words or "/absent" in words:
        deepseek_config(**changes).save_pretrained(tmp_path / "model")
        more["model"] = tmp_path / "model"
    with pytest.raises(BadInput, match=words):
        export(saved["dcp"], out, **(more | given))
    assert not list(tmp_path.glob("*out*"))


def test_folder_that_holds_something_is_refused_and_stays(saved: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1")
    with pytest.raises(BadInput, match="not empty"):
        export(saved["dcp"], tmp_path, model=saved["model"], tokenizer="byte")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture(scope="module")
def run(saved: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has nothing but its export."""
    folder = tmp_path_factory.mktemp("run")
    export(saved["dcp"], folder / "export", model=saved["model"], tokenizer="byte")
    return folder


@pytest.mark.parametrize("source", ["", "export"])
def test_run_that_has_nothing_but_its_export_is_copied(run: Path, tmp_path: Path, source: str) -> None:
    said: list[str] = []
    record = export_hf(run / source, tmp_path / "out", Given(), None, 32, said.append)
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (run / "export").iterdir()}
    assert record == read_record(run / "export")
    assert str(run / "export") in said[0]


@pytest.mark.parametrize(
    ("given", "dtype", "words"),
    [
        ({}, "bf16", "leave out --dtype"),
        ({"tokenizer": "byte"}, None, "--tokenizer"),
        ({"preset": "tiny"}, None, "--preset"),
        ({"shards": [Path("elsewhere")]}, None, "--shards"),
    ],
)
def test_what_a_copy_cannot_change_is_refused(
    run: Path, tmp_path: Path, given: dict[str, object], dtype: Dtype | None, words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        export_hf(run, tmp_path / "out", Given(**given), dtype, 0, lambda line: None)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_type_that_the_model_has_may_be_named(run: Path, tmp_path: Path) -> None:
    assert export_hf(run, tmp_path / "out", Given(), "fp32", 0, lambda line: None).dtype == "fp32"


def damage(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        weights.write(b"?")


def lose(folder: Path) -> None:
    (folder / "config.json").unlink()


def list_a_file_of_another_folder(folder: Path) -> None:
    (folder.parent / "other").write_text("1")
    record = json.loads((folder / "export.json").read_text())
    record["files"]["../other"] = {"bytes": 1, "sha256": hashlib.sha256(b"1").hexdigest()}
    (folder / "export.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("harm", "words"),
    [(damage, "SHA-256"), (lose, "config.json is missing"), (list_a_file_of_another_folder, r"\.\./other")],
)
def test_export_that_was_changed_is_not_copied(
    run: Path, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    shutil.copytree(run / "export", tmp_path / "export")
    harm(tmp_path / "export")
    with pytest.raises(BadInput, match=words):
        export(tmp_path / "export", tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_damaged_record_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(json.dumps({"format": "hf"}))
    with pytest.raises(BadInput, match="export the model again"):
        read_record(tmp_path)
    assert read_record(tmp_path / "absent") is None
