"""What tests say where the process that they are forked from is not there."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.warm_command import WarmPythonError, exit_status
from support.warm_python import WarmPython


def test_module_that_cannot_be_imported_is_told_to_everybody_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_preload.py").write_text("1 / 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    first, second = (WarmPython("broken", ["broken_preload"]) for _ in range(2))
    for warm in (first, first, second):
        with pytest.raises(WarmPythonError, match="ZeroDivisionError"):
            warm.start("json.tool", [], os.environ)
    with pytest.raises(WarmPythonError, match="broken_preload cannot be imported"):
        second.wait()
    ended = subprocess.run(first.command("json.tool"), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr
    assert "warm_command.main" not in ended.stderr  # not its own traceback


def test_process_to_fork_from_that_is_killed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deadly_preload.py").write_text(f"import os\nos.kill(os.getpid(), {int(signal.SIGKILL)})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    warm = WarmPython("deadly", ["deadly_preload"])
    for ask in (warm.wait, lambda: WarmPython("deadly", ["deadly_preload"])):
        with pytest.raises(WarmPythonError, match="has ended"):
            ask()
    ended = subprocess.run(warm.command("json.tool"), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    Path(warm.command("json.tool")[-2]).unlink()  # its address, which it could not remove


def test_exit_status_that_nobody_tells_any_more_is_an_error_in_a_sentence() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    with pytest.raises(WarmPythonError, match="has ended before it"):
        exit_status(ours)
    os.close(ours)
