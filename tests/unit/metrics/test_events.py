"""Events of a process: who sees which, in which words, and how many are kept."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from geocomm.metrics import events, sources
from geocomm.metrics.events import KINDS, EventLog, EventReader, event_text

COMMON = {"kind", "time", "site", "rank"}
FAILURE = {"code": "PeerLost", "message": "gone", "peer": "rank 1", "op": "all_reduce", "seq": 3, "errno": 0}


def checkpoint(log: EventLog, step: int) -> None:
    log.record("checkpoint", step=step, path=f"run/{step}", seconds=0.5)


def test_line_has_what_all_events_have_and_the_fields_of_its_kind() -> None:
    log = EventLog()
    log.identify(2, "rome")
    line = log.record("checkpoint", step=4, path="run/4", seconds=0.5).line()
    assert set(line) == {*COMMON, *KINDS["checkpoint"]}
    assert (line["kind"], line["site"], line["rank"], line["step"]) == ("checkpoint", "rome", 2, 4)
    assert json.loads(json.dumps(line)) == line


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_a_kind_hides_what_all_events_have(kind: str) -> None:
    assert not COMMON & KINDS[kind].keys()


def test_event_with_other_fields_than_its_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="step, path, seconds"):
        EventLog().record("checkpoint", step=4)
    with pytest.raises(KeyError):
        EventLog().record("no such kind")


def test_each_reader_takes_each_event_once_also_those_from_before_it() -> None:
    log = EventLog()
    checkpoint(log, 1)
    early = EventReader(log)
    assert [one.fields["step"] for one in early.take()] == [1]
    checkpoint(log, 2)
    assert [one.fields["step"] for one in early.take()] == [2]
    assert early.take() == []
    assert [one.fields["step"] for one in EventReader(log).take()] == [1, 2]


def test_reader_that_comes_late_is_told_how_many_it_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CAPACITY", 3)
    log = EventLog()
    reader = EventReader(log)
    for step in range(5):
        checkpoint(log, step)
    dropped, *kept = reader.take()
    assert (dropped.kind, dropped.fields) == ("events_dropped", {"count": 2})
    assert [one.fields["step"] for one in kept] == [2, 3, 4]
    assert reader.take() == []


def test_failed_operation_is_an_event_once_at_the_time_of_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_readers", {})
    found: dict[str, Any] = {**FAILURE, "time": 12.5}
    sources.register("last error", lambda: dict(found))
    log = EventLog()
    reader = EventReader(log)
    (failed,) = reader.take()
    assert (failed.kind, failed.time, failed.fields) == ("operation_failed", 12.5, FAILURE)
    assert reader.take() == []
    found["time"] = 13.0
    assert [one.time for one in reader.take()] == [13.0]


def test_resumed_link_is_an_event_with_what_was_added_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_readers", {})
    peer: dict[str, Any] = {"peer": "rank 1", "rank": 1, "site": "rome", "outages": 0, "outage_us": 0, "resumes": 0}
    sources.register("peers", lambda: [dict(peer)])
    reader = EventReader(EventLog())
    assert reader.take() == []
    peer |= {"resumes": 2}  # two of its connections are there again, others are not
    assert reader.take() == []
    peer |= {"outages": 1, "outage_us": 1_500_000, "resumes": 4}
    (event,) = reader.take()
    named = {"peer": "rank 1", "peer_rank": 1, "peer_site": "rome"}
    assert (event.kind, event.fields) == ("link_resumed", named | {"outages": 1, "seconds": 1.5, "connections": 4})
    assert reader.take() == []
    peer |= {"outages": 3, "outage_us": 2_000_000, "resumes": 6}
    (event,) = reader.take()
    assert event.fields == named | {"outages": 2, "seconds": 0.5, "connections": 2}
    peer |= {"outages": 0, "outage_us": 0, "resumes": 0}  # a new channel
    assert reader.take() == []
    peer |= {"outages": 3, "outage_us": 250_000, "resumes": 3}  # as many as the old one had
    (event,) = reader.take()
    assert event.fields == named | {"outages": 3, "seconds": 0.25, "connections": 3}


def test_forked_child_has_no_events_of_its_parent() -> None:
    checkpoint(events.events, 1)
    child = os.fork()
    if child == 0:
        os._exit(len(EventReader(events.events).take()))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_event_has_a_sentence_whatever_its_fields_are(kind: str) -> None:
    whole = event_text(kind, {name: f"<{name}>" for name in KINDS[kind]})
    assert "?" not in whole
    assert "<" in whole
    assert "?" in event_text(kind, {})  # of a newer version at another site, say
    assert event_text(kind, dict.fromkeys(KINDS[kind], "\x1b[2J")).isprintable()


def test_event_of_a_policy_names_links_and_codecs() -> None:
    fields = {"epoch": 0, "ranks": 2, "sites": ["a", "b"], "links": "measured", "codecs": [[1024, "int8"], [0, "none"]]}
    assert event_text("policy_epoch", fields) == (
        "from now on planned by links that are measured; codecs: int8 from 1024 bytes, none from 0 bytes"
    )
    assert event_text("policy_epoch", fields | {"codecs": []}).endswith("codecs: none")
    assert event_text("new_kind", {"x": [1]}) == 'new_kind: {"x": [1]}'
