"""The leader looks at the catalog of its run while it leads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import Data
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Owner, RanksUp
from geocomm.elastic.journal.sequencer_events import Came, LeaderSettings, Said
from geocomm.elastic.leading import leader as leader_module
from geocomm.elastic.leading.leader import Leader
from support.led_sequencer import DIGESTS, MODEL, Led
from support.small_catalog import add_version, shard


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_leader_takes_over_newer_versions_and_goes_on_with_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_module, "_LOOKED_AT_EVERY_S", 0.05)
    monkeypatch.setattr(leader_module, "_RETRIED_AFTER_S", 0.05)
    logged: list[str] = []
    catalog, terms = (
        tmp_path / "catalog",
        LeaderSettings(data=DealtSet(set=str(tmp_path / "catalog"), sequence_length=10)),
    )
    journal = SqliteJournal(RunDir(tmp_path).journal)

    def versions() -> list[int]:
        return [entry.number for entry in journal.read() if isinstance(entry, Data)]

    async def lead() -> None:
        leader = Leader(journal, terms, "x:1", KnownAgents(tmp_path, logged.append), logged.append)
        leading = asyncio.create_task(leader.lead())
        leader._on(Came("a"))
        leader._on(Said("a", Led().hello_of("a")))
        owner = Owner(id="1" * 32, host="a", port=1)
        leader._on(Said("a", RanksUp(owners=(owner,), model=MODEL, digests=DIGESTS)))
        await until(lambda: any("no site is dealt more" in text for text in logged))
        assert not [*journal.read()]  # a run begins with its data
        add_version(catalog, 1, [shard(0)])
        await until(lambda: versions() == [1])
        add_version(catalog, 2, [shard(0), shard(1)])
        await until(lambda: versions() == [1, 2])
        (catalog / "000003.json").write_text("{")
        await until(lambda: any("until it can, version 2 goes on" in text for text in logged))
        (catalog / "000003.json").unlink()
        catalog.rename(tmp_path / "away")
        await asyncio.sleep(0.2)
        assert not leading.done()
        (tmp_path / "away").rename(catalog)
        add_version(catalog, 3, [shard(7)])
        await until(lambda: versions() == [1, 2, 3])
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading

    with contextlib.closing(journal):
        asyncio.run(lead())
    assert sum("version 2 goes on" in text for text in logged) <= 2  # not each time that it looks
