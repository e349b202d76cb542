"""A site may lie in every field of what it reports. What others read stays: of the site that does not, all the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.observe.alerts.alerting import Evaluation, Messages
from geocomm.observe.dashboard.app import write_report
from geocomm.observe.dashboard.page_state import Curves, LastSteps, page_state
from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis, bottleneck_metric
from geocomm.observe.diagnosis.stuck_operations import find_hang
from geocomm.observe.diagnosis.trace_export import NoTraceError, read_trace, write_trace
from geocomm.observe.telemetry.overview import Overview, overview
from geocomm.observe.telemetry.report import BadReportError, Report, ReportLine
from geocomm.observe.telemetry.run_numbers import prometheus_text, rows_now
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder
from support.effort import effort
from support.reports import text
from support.whole_report import JUNK, lies, places, put, whole_report

NOWHERE = StoreFolder(None, None, None)
SECONDS = (1, 5, 8, 12)
T = 1e9


def believed(said: dict[str, Any]) -> Report | None:
    """What a collector makes of it. None: it is refused."""
    try:
        return ReportLine.read(text(said)).report
    except BadReportError:
        return None


def store_of(folder: Path, lying: list[dict[str, Any]]) -> RunStore:
    """A run of two sites, of which one tells this."""
    store = RunStore(folder, write=True)
    for second, lie in itertools.zip_longest(SECONDS, lying):
        told = [believed(one) for one in (lie, whole_report("good", second, "evil")) if one is not None]
        store.add([one for one in told if one is not None], T + second)
    return store


def of_good(seen: Overview) -> Any:
    return [site for site in seen.sites if site.name == "good"]


def read_all(store: RunStore, folder: Path) -> None:
    """Everything that is made of a run store."""
    evaluation, messages = Evaluation(), Messages()
    for at in (T + 5.5, T + 8.5, T + 13, T + 30):
        seen = overview(store, at)
        firing = evaluation.step(at, rows_now(seen, NOWHERE))
        for status, alert in messages.news(at, firing):
            json.dumps(alert.line(status, at))
        json.dumps(page_state(store, LastSteps(store), at), allow_nan=False)
    prometheus_text(seen, NOWHERE, [bottleneck_metric(LiveDiagnosis().look(store))])
    json.dumps(Curves(store).read(T, T + 13), allow_nan=False)
    for after_s in (0.0, 1.0):
        find_hang(store, T + 13, after_s)
    with contextlib.suppress(NoTraceError):
        write_trace(read_trace(store, T + 13, 5), folder / "trace.tar")
    write_report(store, folder / "page.html")


TRUE = [whole_report("evil", second, "good") for second in SECONDS]


@effort(25)
@given(st.tuples(*map(lies, TRUE)))
def test_no_lie_ends_a_reader_or_changes_what_is_known_of_another_site(lying: tuple[dict[str, Any], ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for inner in ("true", "lying"):
            (folder / inner).mkdir()
        with (
            contextlib.closing(store_of(folder / "true", TRUE)) as true,
            contextlib.closing(store_of(folder / "lying", list(lying))) as store,
        ):
            read_all(store, folder)
            assert repr(of_good(overview(store, T + 13))) == repr(of_good(overview(true, T + 13)))


@pytest.mark.parametrize("part", sorted({str(place[0]) for place in places(TRUE[-1])} - {"site", "rank"}))
def test_every_field_of_another_kind_is_refused_or_harmless(part: str, tmp_path: Path) -> None:
    """Not by chance: each place of a part of a report, with each thing that does not belong there, alone."""
    refused, kept, own = 0, list[Report](), [place for place in places(TRUE[-1]) if place[0] == part]
    for place, value in itertools.product(own, (*JUNK, ...)):
        lie = json.loads(json.dumps(TRUE[-1]))
        put(lie, place, value)
        told = believed(lie)
        refused += told is None
        if told is not None:
            kept.append(told.model_copy(update={"sequence": 100 + len(kept)}))
    with contextlib.closing(store_of(tmp_path, TRUE)) as store:
        store.add(kept, T + 12.5)
        read_all(store, tmp_path)
    assert refused > len(own)
    assert refused + len(kept) == len(own) * (len(JUNK) + 1)
