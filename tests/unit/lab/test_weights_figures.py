"""The figures of the demo of weights out of what its sites say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file

from geocomm.lab.demo.demo_run import DemoError
from geocomm.lab.demo.weights_run import WeightsRun, read_run, told, weights_table, write_weights_summary
from geocomm.lab.demo.weights_seen import tensor_digests
from geocomm.lab.emulator.emulated_links import EmulatedLink

Lines = dict[str, list[dict[str, Any]]]
LINK = EmulatedLink(rate_bps=200e6, delay_s=0.05)


def good_lines() -> Lines:
    """Three versions, of which site2 never had the second one."""
    bits = {number: {"w BF16": f"bits of {number}"} for number in (1, 2, 3)}
    trained = [
        {"at": 10.0 * number, "version": number, "digests": bits[number], "changed": 10 * number - 10, "elements": 1000}
        | {"bytes": 120 if number > 1 else 1520}
        for number in (1, 2, 3)
    ]

    def follower(wait_s: float, *numbers: int) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = [{"at": 0.0, "address": "10.0.0.1"}]
        for number in numbers:
            at = 10.0 * number + wait_s
            lines.append({"at": at, "folder": number, "digests": bits[number]})
            lines.append({"at": at + 1, "answers": number, "text": f"answer {number}"})
        return lines

    return {"site0": trained, "site1": follower(2.0, 1, 2, 3), "site2": follower(3.0, 1, 3)}


def run_of(folder: Path, lines: Lines) -> WeightsRun:
    for site, said in lines.items():
        (folder / f"{site}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    return read_run(folder, 4000, None)


def test_each_version_has_its_bytes_and_the_seconds_since_it_was_published(tmp_path: Path) -> None:
    run = run_of(tmp_path, good_lines())
    assert [(one.bytes, one.whole_bytes, one.changed) for one in run.versions] == [
        *((1520, 2000, 0.0), (120, 2000, 0.01), (120, 2000, 0.02))
    ]
    assert [one.folder_s for one in run.versions] == [
        *({"site1": 2.0, "site2": 3.0}, {"site1": 2.0}, {"site1": 2.0, "site2": 3.0})
    ]
    assert run.versions[2].answer_s == {"site1": 3.0, "site2": 4.0}
    assert (run.compared, run.answers, run.parameters) == (5, 2, 1000)
    assert run.versions[0].whole_s(LINK) == pytest.approx(2000 * 8 / 200e6 + 0.05)
    write_weights_summary(run, LINK, "here", tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text())["versions"][1]["answer_s"] == {"site1": 3.0}
    console = Console(width=80, record=True)
    console.print(weights_table(run, LINK), *told(run))
    text = console.export_text()
    assert "overtaken" in text
    assert "17 times as many" in text


def _other_bits(lines: Lines) -> None:
    lines["site2"][1]["digests"] = {"w BF16": "bits of 2"}


def _fewer_tensors(lines: Lines) -> None:
    lines["site1"][1]["digests"] = {}


def _left_behind(lines: Lines) -> None:
    del lines["site2"][3:]


def _other_answer(lines: Lines) -> None:
    lines["site2"][2]["text"] = "something else"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_other_bits, "the folder of site2 has other bits than version 1 had"),
        (_fewer_tensors, "the folder of site1 has other bits than version 1 had"),
        (_left_behind, "site2 ended with version 1, and version 3 is the newest"),
        (_other_answer, "site1 and site2 answer differently by version 1"),
    ],
)
def test_what_does_not_agree_is_an_error(tmp_path: Path, change: Callable[[Lines], None], said: str) -> None:
    lines = good_lines()
    change(lines)
    with pytest.raises(DemoError, match=said):
        run_of(tmp_path, lines)


def test_digests_are_of_each_tensor_with_its_dtype(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(6).bfloat16().view(2, 3), "b": torch.ones(4)}
    save_file(tensors, tmp_path / "one", {"format": "pt"})
    first = tensor_digests(tmp_path / "one")
    assert first.keys() == {"a BF16", "b F32"}
    tensors["b"][3] = -1
    save_file(tensors, tmp_path / "two")
    second = tensor_digests(tmp_path / "two")
    assert first["a BF16"] == second["a BF16"]
    assert first["b F32"] != second["b F32"]
