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
from geocomm.metrics.report_sender import VERSION
from geocomm.observe.telemetry import run_store
from geocomm.observe.telemetry.overview import overview
from geocomm.observe.telemetry.report import BadReportError, Report
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from support.effort import effort
from support.reports import keep, line, operation
from support.whole_report import whole_report

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
    assert reader.latest()[0].report.stats["operations"] == 2
    assert [*reader.events()] == [{"kind": "checkpoint", "at": 3.0, "site": "b", "rank": 0}]
    assert [r.at for r in reader.reports(since=1.0, site="a")] == [2.0, 2.0]


def test_an_operation_that_was_under_way_is_read_once_as_it_was_said_last(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    keep(store, report(1, operations=[operation(1)]), 1.0)
    keep(store, report(2, operations=[operation(1, ended_ns=5), operation(2)]), 2.0)
    assert [(row["number"], row["ended_ns"]) for _, row in store.rows("operations")] == [(1, 5), (2, None)]


def test_old_reports_are_thinned_and_the_last_of_each_interval_stays(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    now = 10 * DAY_S
    times = (
        [now - 3 * DAY_S + s for s in range(120)] + [now - 7200 + s for s in range(120)] + [now - s for s in range(120)]
    )
    for number, at in enumerate(times):
        keep(store, report(number, operations=[operation(number)]), at)
    store.thin(now)
    kept = [r.at for r in store.reports()]
    assert [at for at in kept if at < now - 2 * DAY_S] == [now - 3 * DAY_S + 59, now - 3 * DAY_S + 119]
    assert [at for at in kept if now - 7200 <= at < now - 3600] == [now - 7200 + s for s in range(9, 120, 10)]
    assert len([at for at in kept if at > now - 3600]) == 120
    assert len(store.rows("operations")) == 120


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
        with pytest.raises(NoStoreError, match=r"format 2, not 4.*move the file away"):
            RunStore(tmp_path, write=write)
    assert (tmp_path / "telemetry.sqlite").read_bytes() == before


def test_reports_of_an_earlier_version_are_read_without_what_they_did_not_have_yet(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    said: dict[str, Any] = {"stats": {"operations": 7}, "operations": [operation(1)], "training": {"step": 3}}
    keep(store, report(1, version=VERSION, **said), 1.0)
    store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "telemetry.sqlite", isolation_level=None)) as old:
        old.execute(
            "UPDATE reports SET said = json_set(said, '$.version', 1), stats = json_remove(stats, '$.relayed_bytes'), "
            "details = json_remove(details, '$.operations[0].coding_ns')"
        )
    with contextlib.closing(RunStore(tmp_path)) as store:
        (last,) = store.latest()
        assert (last.report.stats["operations"], last.report.stats["relayed_bytes"]) == (7, 0)
        assert last.report.training == {"step": 3}
        ((_, row),) = store.rows("operations")
        assert row["coding_ns"] == 0
        assert next(store.newest("operations", last.rank))["coding_ns"] == 0
        overview(store, 1.0)


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs sqlite3 (apt install sqlite3)")
def test_a_person_reads_the_file_with_the_sqlite3_command(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    said: dict[str, Any] = {"training": {"loss": 2.5}, "stats": {"operations": 7}, "operations": [operation(1)]}
    keep(store, report(1, **said, events=[{"kind": "checkpoint", "step": 9}]), 1.0)
    for query, answer in (
        ("SELECT site, said ->> '$.training.loss' FROM reports", "a|2.5"),
        ("SELECT stats ->> '$.operations', details ->> '$.operations[0].kind' FROM reports", "7|all_reduce"),
        ("SELECT kind, said FROM events", 'checkpoint|{"kind":"checkpoint","step":9}'),
    ):
        file = str(tmp_path / "telemetry.sqlite")
        assert (
            subprocess.run(["sqlite3", file, query], check=True, capture_output=True).stdout.decode().strip() == answer
        )


@effort(30)
@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_what_is_kept_is_what_was_said(said: dict[str, Any]) -> None:
    told = whole_report("good", 3, "evil") | {"events": [{**said, "kind": "x"}]}
    try:
        report = line(told).report
    except BadReportError:
        return  # half of a surrogate pair
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:
        store.add([report], 1.0)
        (kept,) = [one.report for one in store.reports(details=True)]
        (event,) = store.events()
    # Not a number is not equal to itself.
    assert repr(kept.model_copy(update={"events": report.events})) == repr(report)
    assert repr(event) == repr(report.events[0] | {"at": 1.0, "site": "good", "rank": 1})


def test_events_that_never_end_are_dropped_and_what_is_kept_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "_MOST_EVENTS", 10)
    store, now = RunStore(tmp_path, write=True), 10 * DAY_S
    said = [{"kind": f"kind{i}", "n": i} for i in range(200)]
    for i, one in enumerate(said):
        at = now - 3 * DAY_S + i / 10
        keep(store, report(i, stats={"operations": i}, events=[one]), at)
        keep(store, report(i, site="b", stats={"operations": i}, events=[{"kind": "same", "n": i}] * (i > 195)), at)
    assert sum(1 for _ in store.events(site="a")) == len(said)
    store.thin(now)
    assert [row["n"] for row in store.events(site="a")] == list(range(199, 189, -1))
    assert [row["n"] for row in store.events(site="b")] == [199, 198, 197, 196]
    assert [one.report.stats["operations"] for one in store.latest()] == [199, 199]


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


def test_reports_that_never_came_are_counted_wherever_they_were_lost(tmp_path: Path) -> None:
    def lost(*sequences: int, process: str = "0123456789abcdef") -> int:
        """Of the process, once these have come too; each time by a collector that was started again."""
        with contextlib.closing(RunStore(tmp_path, write=True)) as store:
            store.add([report(sequence, process=process) for sequence in sequences], now := next(moments))
            assert store.latest()[0].at == now
            return store.latest()[0].lost

    moments = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    assert lost(1, 2, 3) == 0
    assert lost(6, 7, 9) == 3
    assert lost(10, 10, 10) == 3
    assert lost(2, process="f" * 16) == 1
    assert lost(1, 3, process="f" * 16) == 0  # the first was late


def test_a_report_that_comes_twice_tells_its_events_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path, write=True)
    for second in (1.0, 2.0):
        keep(store, report(1, events=[{"kind": "checkpoint"}]), second)
    assert len([*store.events()]) == len([*store.reports()]) == 1
