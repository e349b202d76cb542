"""What the folder of a run store tells besides the reports: members of an elastic run, the collector, the disk."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import About, tell_led
from geocomm.elastic.journal.entries import Data, Deal, Genesis, Join, Left, Ready
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import Standing
from geocomm.metrics.own_counters import keep_counters
from geocomm.observe.telemetry.overview import overview
from geocomm.observe.telemetry.run_numbers import metric_rows
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder
from support.metric_samples import samples


def put(journal: SqliteJournal, kind: Any, **fields: Any) -> None:
    head = journal.head
    journal.append(kind(index=head.index + 1, prev=head.hash, term=0, **fields), head)


def test_members_of_an_elastic_run_are_those_of_its_journal_and_who_has_left_is_none(tmp_path: Path) -> None:
    journal = SqliteJournal(RunDir(tmp_path).journal)
    put(journal, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,), every=10)
    for site in "ba":
        put(journal, Join, site=site, store="5" * 32)
        put(journal, Ready, site=site)
    put(journal, Left, site="b")
    journal.close()
    found = StoreFolder.look(tmp_path)
    assert [(one.name, one.standing) for one in found.members or ()] == [("a", Standing.READY), ("b", Standing.LEFT)]
    assert [found.has_left(site) for site in "abc"] == [False, True, False]


def test_members_of_a_run_that_deals_data_have_what_was_dealt_and_does_not_count(tmp_path: Path) -> None:
    journal = SqliteJournal(RunDir(tmp_path).journal)
    put(journal, Genesis, run="1" * 32, settings={}, layout="3" * 32, digests=("4" * 32,), every=10)
    put(journal, Data, set="cat", number=1, sha256="7" * 64, sequence_length=10)
    for site in "ab":
        put(journal, Join, site=site, store="5" * 32)
    put(journal, Ready, site="a")
    put(journal, Deal, site="a", shards="0:0", sequences=7)
    journal.close()
    found = StoreFolder.look(tmp_path)
    assert (found.dealt_tokens, found.left_tokens) == ({"a": 70, "b": 0}, None)
    About(site="a", leads=True).write(tmp_path)
    tell_led(tmp_path, [], 300, ["a", "b"])
    found = StoreFolder.look(tmp_path)
    assert (found.left_tokens, found.is_in_doubt) == (370, False)
    rows = {row.name: row.values for row in metric_rows(overview(RunStore(tmp_path, write=True), 1.0), found)}
    assert rows["geocomm_data_left_tokens"] == [((), 370)]
    assert dict(rows["geocomm_member_not_ready"]) == {("a",): 0, ("b",): 1}  # b joins, and is heard


def test_folder_of_another_run_has_no_members_but_a_disk_and_the_start_of_its_collector(tmp_path: Path) -> None:
    assert StoreFolder.look(tmp_path).collected_since == 0.0
    RunDir(tmp_path).collector_lock.touch()
    os.utime(RunDir(tmp_path).collector_lock, (7.0, 7.0))
    found = StoreFolder.look(tmp_path)
    assert (found.members, found.collected_since, found.has_left("a")) == (None, 7.0, False)
    assert found.free_bytes is not None
    assert found.size_bytes is not None
    assert 0 < found.free_bytes <= found.size_bytes


def test_counters_of_all_processes_of_the_folder_are_in_metrics_once_they_are_written(tmp_path: Path) -> None:
    refused = 0

    def read() -> dict[str, float]:
        nonlocal refused
        refused += 1
        return {"collector_reports_refused": refused}

    async def keep() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await keep_counters(tmp_path, "collector", read)

    asyncio.run(keep())
    (tmp_path / "counters-agent.json").write_text('{"leader_entries": 7, "data_repeated_tokens": 40}')
    (tmp_path / "counters-torn.json").write_text('{"lea')
    RunStore(tmp_path, write=True).close()
    found = samples(overview(RunStore(tmp_path), 1.0), StoreFolder.look(tmp_path))
    assert found["geocomm_collector_reports_refused_total"] == {(): 1.0}
    assert found["geocomm_leader_entries_total"] == {(): 7.0}
    assert found["geocomm_data_repeated_tokens_total"] == {(): 40.0}
    assert not found["geocomm_agent_connections_total"], "nobody has counted it"


def test_folder_that_is_gone_tells_nothing(tmp_path: Path) -> None:
    assert StoreFolder.look(tmp_path / "gone") == StoreFolder(None, None, None)
