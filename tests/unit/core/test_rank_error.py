"""Which rank of a node tells a traceback, where several end in an error of geocomm at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import geocomm
from geocomm.core import rank_error

End = Callable[..., list[str]]


def _wrong_option(_: object = None) -> None:
    geocomm.Options(codec="int9")


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> End:
    """Have a rank of the node end in an error; what it says."""
    monkeypatch.setenv("GEOCOMM_HUB", "127.0.0.1:1")
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)

    def end(local_rank: int, start: str = "attempt_0", fails: Callable[[], object] = _wrong_option) -> list[str]:
        folder = tmp_path / start / str(local_rank)
        folder.mkdir(parents=True)
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(folder / "error.json"))
        monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
        rank_error.watch()
        with pytest.raises((geocomm.InvalidArgumentError, RuntimeError)) as caught:
            fails()
        sys.excepthook(caught.type, caught.value, caught.tb)
        assert (folder / "error.json").exists()
        return capsys.readouterr().err.splitlines()

    return end


def test_first_rank_that_fails_tells_the_traceback_and_the_others_a_line(ends: End) -> None:
    first = ends(1)  # it is not the one with local rank 0, which torchrun may end before it says anything
    assert first[0].startswith("Traceback")
    assert "InvalidArgumentError" in first[-1]
    for other in (0, 2):
        (line,) = ends(other)
        assert "InvalidArgumentError" in line
        assert "test_rank_error.py, line" in line


def test_error_of_a_futures_callback_is_told_as_shortly(ends: End) -> None:
    def fails_in_callback() -> None:
        future = torch.futures.Future[None]()
        done = future.then(_wrong_option)
        future.set_result(None)
        done.wait()

    said = ends(0, fails=fails_in_callback)
    assert said[-1].startswith("RuntimeError: InvalidArgumentError: option codec")
    assert not any("At:" in line or "torch/futures" in line for line in said)


def test_other_errors_of_a_futures_callback_are_told_by_all_frames(ends: End) -> None:
    def fails_in_callback() -> None:
        def fail(_: object) -> None:
            raise KeyError("mine")

        future = torch.futures.Future[None]()
        done = future.then(fail)
        future.set_result(None)
        done.wait()

    said = "\n".join(ends(0, fails=fails_in_callback))
    assert "Got the following error when running the callback: KeyError" in said
    assert "torch/futures" in said


def test_ranks_that_were_started_anew_tell_a_traceback_again(ends: End) -> None:
    for start in ("attempt_0", "attempt_1"):
        assert len(ends(0, start)) > 1


def test_rank_whose_folder_takes_no_file_tells_all(ends: End, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(Path, "touch", full)
    assert len(ends(0)) > 1
    assert len(ends(1)) > 1
