"""The run store: what is kept, for how long, and who reads it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from geocomm.core.units import DAY_S
from geocomm.observe.telemetry import run_store
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import NoStoreError, RunStore
from support.reports import keep


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


def test_any_number_of_shapes_is_read_again_by_others_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "_MOST_SHAPE_BYTES", 300)
    reader = None
    said = [{"n" * (1 + i % 5): i, "kind": f"x{i}", "share": i / 7} for i in range(20)]
    for i, stats in enumerate(said):
        store = RunStore(tmp_path, write=True)
        reader = reader or RunStore(tmp_path)
        keep(store, report(i, stats=stats, events=[stats]), float(i + 1))
        store.close()
    assert reader is not None
    assert [one.report.stats for one in reader.reports()] == said
    assert [{name: row[name] for name in said[0] if name in row}["kind"] for row in reader.events()] == [
        stats["kind"] for stats in reversed(said)
    ]


def test_events_and_shapes_that_never_end_are_dropped_and_what_is_kept_is_read_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "_MOST_SHAPE_BYTES", 3000)
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
    shapes = store._db.execute("SELECT count(*), count(DISTINCT shape) FROM shapes").fetchone()
    assert shapes[0] == shapes[1] < 40
    other = RunStore(tmp_path, write=True)
    keep(other, report(1000, stats=said[0], events=[said[0]]), now)
    assert next(store.events(site="a"))["kind"] == "kind0"


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
