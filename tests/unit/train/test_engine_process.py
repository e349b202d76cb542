"""The engine of geocomm serve, and signals that ask for its end: nothing that runs meanwhile is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from geocomm.train.serve.serving import EngineEnded, EngineProcess, Stopped, StopSignals

_SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
_DEAF = """
import signal, time
signal.signal(15, lambda *_: open('heard', 'w').close())
open('deaf', 'w').close()
time.sleep(600)
"""
pytestmark = pytest.mark.timeout(120)


def _started(command: list[str], folder: Path, stop: StopSignals) -> EngineProcess:
    return EngineProcess("engine", command, {}, folder, stop)


def test_signals_are_noted_and_interrupt_nothing() -> None:
    stop, before = StopSignals(), signal.getsignal(signal.SIGTERM)
    done: list[int] = []
    with stop.noted():
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            done.append(number)
    assert done == stop.came == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ready", [True, False])
def test_a_wait_for_the_engine_ends_by_a_signal(tmp_path: Path, number: signal.Signals, ready: bool) -> None:
    stop = StopSignals()
    with stop.noted():
        engine = _started(_SLEEPS, tmp_path, stop)
        try:
            threading.Timer(0.1, os.kill, [os.getpid(), number]).start()
            with pytest.raises(Stopped) as stopped:
                engine.wait() if ready else engine.wait_ready("127.0.0.1", 9, "/health", 100)
            assert stopped.value.number == number
        finally:
            engine.end(signal.SIGTERM)
    assert str(engine.wait()) == "engine ended by SIGTERM by itself; its last lines are above"


def test_a_second_signal_kills_an_engine_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geocomm.train.serve.serving._STOP_SECONDS", 600.0)
    stop = StopSignals()
    with stop.noted():
        engine = _started([sys.executable, "-c", _DEAF], tmp_path, stop)
        os.kill(os.getpid(), signal.SIGTERM)
        while not (tmp_path / "deaf").exists():
            time.sleep(0.01)

        def kill_once_heard() -> None:
            while not (tmp_path / "heard").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        second = threading.Thread(target=kill_once_heard)
        second.start()
        engine.end(signal.SIGTERM)
        second.join()
    assert str(engine.wait()).startswith("engine ended by SIGKILL")
    assert len(stop.came) == 2


def test_an_engine_that_ends_by_itself_is_told_of(tmp_path: Path) -> None:
    engine = _started([sys.executable, "-c", "raise SystemExit(3)"], tmp_path, StopSignals())
    with pytest.raises(EngineEnded, match="with status 3 before it was ready"):
        engine.wait_ready("127.0.0.1", 9, "/health", 100)
