"""The run store: what is kept, for how long, and who reads it meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.core.units import DAY_S
from geocomm.observe.telemetry import run_store
from geocomm.observe.telemetry.report import BadReportError, Report
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from support.effort import effort
from support.reports import keep

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda some: st.lists(some, max_size=5) | st.dictionaries(st.text(max_size=5), some, max_size=5),
    max_leaves=20,
)


def report(sequence: int, site: str = "a", rank: int = 0, **more: Any) -> Report:
    own = {"site": site, "rank": rank, "process": "0123456789abcdef", "sequence": sequence}
    return Report.model_validate({**own, "time": 0.0, "now_ns": sequence, **more})


def test_readers_see_what_one_process_writes_while_it_writes(tmp_path: Path) -> None:
    writer = RunStore(tmp_path, write=True)
    reader = RunStore(tmp_path)
    for second in range(3):
        for rank in range(2):
            keep(writer, report(second, rank=rank, stats={"operations": second}), float(second))
    keep(writer, report(7, site="b", events=[{"kind": "checkpoint"}]), 3.0)
    assert [(r.report.site, r.report.rank, r.at) for r in reader.latest()] == [
        ("a", 0, 2.0),
        ("a", 1, 2.0),
        ("b", 0, 3.0),
    ]
    assert reader.latest()[0].report.stats == {"operations": 2}
    assert [*reader.events()] == [{"kind": "checkpoint", "at": 3.0, "site": "b", "rank": 0}]
    assert [r.at for r in reader.reports(since=1.0, site="a")] == [2.0, 2.0]


def test_an_operation_that_was_under_way_is_read_once_as_it_was_said_last(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    keep(store, report(1, operations=[{"number": 1, "ended_ns": None}]), 1.0)
    keep(store, report(2, operations=[{"number": 1, "ended_ns": 5}, {"number": 2, "ended_ns": None}]), 2.0)
    assert [row for _, row in store.rows("operations")] == [
        {"number": 1, "ended_ns": 5},
        {"number": 2, "ended_ns": None},
    ]


def test_old_reports_are_thinned_and_the_last_of_each_interval_stays(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    now = 10 * DAY_S
    times = (
        [now - 3 * DAY_S + s for s in range(120)] + [now - 7200 + s for s in range(120)] + [now - s for s in range(120)]
    )
    for number, at in enumerate(times):
        keep(store, report(number, rounds=[{"number": number}]), at)
    store.thin(now)
    kept = [r.at for r in store.reports()]
    assert [at for at in kept if at < now - 2 * DAY_S] == [now - 3 * DAY_S + 59, now - 3 * DAY_S + 119]
    assert [at for at in kept if now - 7200 <= at < now - 3600] == [now - 7200 + s for s in range(9, 120, 10)]
    assert len([at for at in kept if at > now - 3600]) == 120
    assert len(store.rows("rounds")) == 120


def test_a_folder_without_telemetry_and_another_file_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="geocomm run --telemetry"):
        RunStore(tmp_path)
    (tmp_path / "telemetry.sqlite").write_bytes(b"")
    with pytest.raises(NoStoreError, match="no run store of this version"):
        RunStore(tmp_path)


def test_a_store_of_another_format_is_refused_in_words_and_stays_as_it_is(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "telemetry.sqlite")) as old:
        old.executescript(
            "CREATE TABLE shapes (number INTEGER PRIMARY KEY, shape BLOB) STRICT;"
            "PRAGMA application_id=0x67637465; PRAGMA user_version=2;"
        )
    before = (tmp_path / "telemetry.sqlite").read_bytes()
    for write in (False, True):
        with pytest.raises(NoStoreError, match=r"format 2, not 3.*move the file away"):
            RunStore(tmp_path, write=write)
    assert (tmp_path / "telemetry.sqlite").read_bytes() == before


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3 (apt install sqlite3)")
def test_a_person_reads_the_file_with_the_sqlite3_command(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    said: dict[str, Any] = {"training": {"loss": 2.5}, "stats": {"operations": 7}, "operations": [{"number": 1}]}
    keep(store, report(1, **said, events=[{"kind": "checkpoint", "step": 9}]), 1.0)
    for query, answer in (
        ("SELECT site, said ->> '$.training.loss' FROM reports", "a|2.5"),
        ("SELECT stats ->> '$.operations', details FROM reports", '7|{"operations":[{"number":1}]}'),
        ("SELECT kind, said FROM events", 'checkpoint|{"kind":"checkpoint","step":9}'),
    ):
        file = str(tmp_path / "telemetry.sqlite")
        assert (
            subprocess.run(["sqlite3", file, query], check=True, capture_output=True).stdout.decode().strip() == answer
        )


@effort(30)
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_what_is_kept_is_what_was_said(said: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:
        try:
            keep(store, report(1, stats=said, training=said, operations=[said], events=[said]), 1.0)
        except BadReportError:
            return  # half of a surrogate pair
        (kept,) = [one.report for one in store.reports(details=True)]
        (event,) = store.events()
    own = {"at": 1.0, "site": "a", "rank": 0}
    for found in (kept.stats, kept.training, kept.operations[0], event):
        assert repr(found | own) == repr(said | own)  # not a number is not equal to itself


def test_events_that_never_end_are_dropped_and_what_is_kept_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "_MOST_EVENTS", 10)
    store, now = RunStore(tmp_path, write=True), 10 * DAY_S
    said = [{"kind": f"kind{i}", "n": i} for i in range(200)]
    for i, one in enumerate(said):
        at = now - 3 * DAY_S + i / 10
        keep(store, report(i, stats=one, events=[one]), at)
        keep(store, report(i, site="b", stats={"n": i}, events=[{"kind": "same", "n": i}] * (i > 195)), at)
    assert sum(1 for _ in store.events(site="a")) == len(said)
    store.thin(now)
    assert [row["n"] for row in store.events(site="a")] == list(range(199, 189, -1))
    assert [row["n"] for row in store.events(site="b")] == [199, 198, 197, 196]
    assert [one.report.stats["n"] for one in store.latest()] == [199, 199]


def test_events_are_read_newest_first_of_a_time_a_site_and_a_kind(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    for second in range(6):
        said = {"kind": ("checkpoint", "codec_fallback2")[second % 2], "step": second}
        for site in "ab":
            keep(store, report(second, site=site, events=[said]), float(second))

    def read(*span: float, **only: str) -> list[tuple[str, int]]:
        return [(row["site"], row["step"]) for row in store.events(*span, **only)]

    assert read(3.0) == [("b", 5), ("a", 5), ("b", 4), ("a", 4)]
    assert read(0.0, 3.0, site="a") == [("a", 3), ("a", 2), ("a", 1)]
    assert read(site="b", kind="checkpoint") == [("b", 4), ("b", 2)]
    assert read(4.0, kind="codec_fallback2") == [("b", 5), ("a", 5)]
