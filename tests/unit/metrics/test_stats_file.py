"""The stats file: lines, the last one, disks that fail."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from geocomm.metrics.events import EventLog, EventReader
from geocomm.metrics.exporters import StatsFile

LONG_S = 3600.0


class Counter:
    """Stands for stats(): another value each time, and tells of the reads."""

    def __init__(self) -> None:
        self.reads = 0
        self.read = threading.Event()

    def __call__(self) -> dict[str, int]:
        self.reads += 1
        self.read.set()
        return {"operations": self.reads}


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def join(file: StatsFile) -> None:
    """Until the thread has given up, or the test's time limit."""
    file._thread.join(30)
    assert not file._thread.is_alive()


def test_file_gets_a_line_per_interval_and_a_last_one(tmp_path: Path) -> None:
    counter = Counter()
    file = StatsFile(str(tmp_path / "rank{rank}.jsonl"), 0.01, 3, "rome", counter, EventReader(EventLog()))
    while counter.reads < 4:
        time.sleep(0.01)
    file.close()
    join(file)
    lines = lines_of(tmp_path / "rank3.jsonl")
    assert [line["operations"] for line in lines] == list(range(1, counter.reads + 1))
    assert [line["final"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert {(line["rank"], line["site"]) for line in lines} == {(3, "rome")}
    times = [line["time"] for line in lines]
    assert times == sorted(times)


def test_close_before_the_first_interval_writes_one_line(tmp_path: Path) -> None:
    counter = Counter()
    file = StatsFile(str(tmp_path / "stats"), LONG_S, 0, "", counter, EventReader(EventLog()))
    assert not counter.read.is_set()
    file.close()
    join(file)
    assert [line["final"] for line in lines_of(tmp_path / "stats")] == [True]


def test_file_of_an_earlier_process_is_continued(tmp_path: Path) -> None:
    for rank in (0, 1):
        file = StatsFile(str(tmp_path / "stats"), LONG_S, rank, "", Counter(), EventReader(EventLog()))
        file.close()
        join(file)
    assert [line["rank"] for line in lines_of(tmp_path / "stats")] == [0, 1]


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/at/all", "/proc/version"])
def test_failing_disk_costs_one_warning(path: str, caplog: pytest.LogCaptureFixture) -> None:
    counter = Counter()
    file = StatsFile(path, 0.01, 0, "", counter, EventReader(EventLog()))
    join(file)  # nobody closed it
    file.close()
    (told,) = caplog.records
    assert path in told.getMessage()
    assert (told.name, told.levelname) == ("geocomm", "WARNING")
    assert counter.reads <= 1


def test_counters_that_cannot_be_read_end_the_file_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> dict[str, int]:
        raise RuntimeError("no counters")

    file = StatsFile(str(tmp_path / "stats"), 0.01, 0, "", broken, EventReader(EventLog()))
    join(file)
    assert "no counters" in caplog.text


def test_close_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hanging() -> dict[str, int]:
        release.wait(60)
        return {}

    monkeypatch.setattr(StatsFile, "_CLOSE_S", 0.05)
    file = StatsFile(str(tmp_path / "stats"), LONG_S, 0, "", hanging, EventReader(EventLog()))
    file.close()
    assert file._thread.is_alive()
    release.set()
    join(file)


def test_events_come_before_the_counters_of_their_interval_each_once(tmp_path: Path) -> None:
    log = EventLog()
    log.identify(3, "rome")
    reader = EventReader(log)
    checkpoint = log.record("checkpoint", step=5, path="p", seconds=0.5)
    for _ in range(2):  # the reader goes on in the next file
        file = StatsFile(str(tmp_path / "stats"), LONG_S, 3, "rome", Counter(), reader)
        file.close()
        join(file)
    lines = lines_of(tmp_path / "stats")
    assert [line["kind"] for line in lines] == ["checkpoint", "stats", "stats"]
    assert lines[0] == checkpoint.line()
