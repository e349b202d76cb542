"""`geocomm bench codec`: files of every kind, a sample of large ones, verification, output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import geocomm
from geocomm.core.bad_input import BadInput
from geocomm.lab.bench import codec_bench
from geocomm.lab.bench.codec_bench import CodecBenchError, error_text, measure
from geocomm.lab.bench.codec_data import RUN_ELEMENTS, CodecInput, from_file, gaussian
from support.command_tree import APP

VALUES = torch.randn(1000, generator=torch.Generator().manual_seed(1))


def saved(folder: Path, kind: str) -> Path:
    path = folder / f"values.{kind}"
    if kind == "npy":
        np.save(path, VALUES.view(10, 100).numpy())
    elif kind == "pt":
        torch.save({"a": VALUES[:300].view(3, 100), "steps": 7, "more": [VALUES[300:], torch.arange(5)]}, path)
    elif kind == "safetensors":
        save_file = pytest.importorskip("safetensors.torch").save_file
        save_file({"a": VALUES[:300].clone(), "b": VALUES[300:].clone(), "c": torch.arange(5)}, path)
    else:
        path.write_bytes(VALUES.numpy().tobytes())
    return path


@pytest.mark.parametrize("kind", ["npy", "pt", "safetensors", "f32"])
def test_small_file_is_taken_whole(tmp_path: Path, kind: str) -> None:
    data = from_file(saved(tmp_path, kind), 5000)
    assert torch.equal(data.values, VALUES)
    assert "1000 numbers" in data.description


def test_large_file_is_sampled_in_runs_from_begin_to_end(tmp_path: Path) -> None:
    path = tmp_path / "large.npy"
    np.save(path, np.arange(10 * RUN_ELEMENTS, dtype=np.float32))
    data = from_file(path, 3 * RUN_ELEMENTS)
    runs = data.values.view(3, RUN_ELEMENTS)
    assert (runs[:, 1:] - runs[:, :-1] == 1).all()
    assert runs[0, 0] == 0
    assert runs[2, -1] == 10 * RUN_ELEMENTS - 1
    assert "0.75 Mi" in data.description or "768 Ki" in data.description


def test_tensors_of_one_16_bit_dtype_keep_it_and_of_several_become_float32(tmp_path: Path) -> None:
    torch.save([VALUES.bfloat16(), VALUES.bfloat16()], tmp_path / "one.pt")
    torch.save([VALUES.bfloat16(), VALUES.half()], tmp_path / "two.pt")
    assert from_file(tmp_path / "one.pt", 5000).values.dtype == torch.bfloat16
    assert from_file(tmp_path / "two.pt", 5000).values.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.npy", None),
        ("text.npy", b"not numpy"),
        ("text.pt", b"not torch"),
        ("text.safetensors", b"not safetensors"),
        ("odd.bin", b"12345"),
        ("empty.bin", b""),
    ],
)
def test_file_that_cannot_be_measured_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=name):
        from_file(path, 1000)


def test_file_of_pickled_objects_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(BadInput):
        from_file(tmp_path / "objects.npy", 1000)


def test_measure_gives_a_verified_row_per_codec_in_order() -> None:
    rows = measure(["none", "int8", "balanced"], gaussian(3000), rounds=2)
    assert [row.codec for row in rows] == ["none", "int8", "balanced"]
    assert [row.stands_for for row in rows] == ["", "", "bitplanes:step=0.7"]
    assert rows[0].nmse == 0
    assert 0 < rows[1].nmse < 1e-3
    assert all(row.encode_s > 0 and row.decode_s > 0 and row.copy_s > 0 for row in rows)
    assert rows[0].payload_bytes == 12000 + 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_measure_of_special_values_and_every_dtype_verifies(dtype: torch.dtype) -> None:
    values = VALUES.to(dtype)
    values[3], values[500], values[501] = torch.nan, torch.inf, -0.0
    rows = measure(codec_bench.default_codecs(), CodecInput(values, "special"), rounds=1)
    assert {row.codec for row in rows} >= set(geocomm.codec_presets())


def test_measure_finds_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    right = codec_bench.decompress

    def wrong(payload: torch.Tensor, out: torch.Tensor, **more: int) -> torch.Tensor:
        right(payload, out=out, **more)[7] += 0.01
        return out

    monkeypatch.setattr(codec_bench, "decompress", wrong)
    for codec in ("none", "int8"):
        with pytest.raises(CodecBenchError, match=codec):
            measure([codec], gaussian(100), rounds=1)


@pytest.mark.parametrize(("nmse", "text"), [(0.0, "exact"), (7e-5, "7.0e-05"), (0.0211, ".021"), (1.0, "1.000")])
def test_error_is_shown_in_few_characters(nmse: float, text: str) -> None:
    assert error_text(nmse) == text


def test_command_prints_a_table_and_draws(tmp_path: Path) -> None:
    picture = tmp_path / "codecs.png"
    ended = CliRunner().invoke(APP, ["bench", "codec", "--elements", "2000", "--rounds", "1", "--plot", str(picture)])
    assert ended.exit_code == 0, ended.output
    for preset in geocomm.codec_presets():
        assert preset in ended.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_command_prints_json_of_the_codecs_asked_for(tmp_path: Path) -> None:
    arguments = [
        "bench",
        "codec",
        "--codec",
        "int8:block=64,round=stochastic",
        "--codec",
        "none",
        "--json",
        "--rounds",
        "1",
    ]
    ended = CliRunner().invoke(APP, [*arguments, "--file", str(saved(tmp_path, "npy"))])
    assert ended.exit_code == 0, ended.output
    document = json.loads(ended.stdout)
    assert [row["codec"] for row in document["rows"]] == ["int8:block=64,round=stochastic", "none"]
    assert document["rows"][1]["ratio"] == pytest.approx(4000 / 4032)


@pytest.mark.parametrize("arguments", [["--codec", "int9"], ["--file", "/nowhere.npy"]])
def test_command_with_a_wrong_option_ends_with_2_and_says_why(arguments: list[str]) -> None:
    ended = CliRunner().invoke(APP, ["bench", "codec", *arguments])
    assert ended.exit_code == 2
    assert arguments[1] in ended.output
