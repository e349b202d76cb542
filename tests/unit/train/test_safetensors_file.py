"""Our safetensors files, read by the library of that name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from geocomm.train.export.export_record import FileFacts
from geocomm.train.export.hf_folder import SafetensorsFile

TENSORS = {
    "matrix": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "columns": torch.arange(6, dtype=torch.float64).reshape(2, 3).T,
    "half": torch.tensor([1.5, -2.0, 3.25], dtype=torch.bfloat16),
    "scalar": torch.tensor(7),
    "nothing": torch.empty(0, 4),
    "yes": torch.tensor([True, False]),
}


def write(path: Path, told: dict[str, torch.Tensor], given: dict[str, torch.Tensor]) -> SafetensorsFile:
    with SafetensorsFile(path, planned(told)) as file:
        for name, tensor in given.items():
            file.append(name, tensor)
    return file


def planned(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.empty(one.shape, dtype=one.dtype, device="meta") for name, one in tensors.items()}


def test_written_file_is_read_back_and_its_facts_are_right(tmp_path: Path) -> None:
    for count in range(1, len(TENSORS) + 1):  # headers of several lengths
        tensors = dict(list(TENSORS.items())[:count])
        path = tmp_path / f"{count}.safetensors"
        file = write(path, tensors, tensors)
        loaded = load_file(path)
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
        assert file.facts() == FileFacts.of(path)


@pytest.mark.parametrize("wrong", ["order", "shape", "dtype", "end"])
def test_what_was_not_told_is_refused(tmp_path: Path, wrong: str) -> None:
    tensors = {"a": torch.zeros(2), "b": torch.zeros(2)}
    given = {
        "order": {"b": torch.zeros(2)},
        "shape": {"a": torch.zeros(3)},
        "dtype": {"a": torch.zeros(2).half()},
        "end": {"a": torch.zeros(2)},
    }[wrong]
    with pytest.raises(RuntimeError, match="told"):
        write(tmp_path / "x", tensors, given)
