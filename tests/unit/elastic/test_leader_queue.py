"""What waits for etcd while none of its servers answers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import EMPTY, Head
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.messages import Owner, RanksUp
from geocomm.elastic.journal.sequencer_events import Came, LeaderSettings, Said
from geocomm.elastic.leading.etcd import Etcd, EtcdAddress, EtcdJournal
from geocomm.elastic.leading.leader import MOST_UNDONE, Leader, LeaderChanged
from support.led_sequencer import DIGESTS, MODEL, Led
from support.local_jobs import free_port

pytest.importorskip("etcd3gw")


class JournalOfServersThatAreGone(EtcdJournal):
    """As the leader has it whose servers have just died: nothing was written yet."""

    def _read_head(self) -> Head:
        return EMPTY


def test_a_leader_begins_anew_before_what_waits_for_etcd_takes_its_memory(tmp_path: Path) -> None:
    logged: list[str] = []
    etcd = Etcd(EtcdAddress.parse(f"etcd://127.0.0.1:{free_port()}/run"))

    async def lead(journal: SqliteJournal) -> None:
        shared: Any = JournalOfServersThatAreGone(etcd)
        leader = Leader(
            journal, LeaderSettings(), "x:1", KnownAgents(tmp_path, logged.append), logged.append, shared, 1
        )
        leading = asyncio.create_task(leader.lead())
        led = Led()
        leader._on(Came("a"))
        leader._on(Said("a", led.hello_of("a")))
        leader._on(
            Said("a", RanksUp(owners=(Owner(id="1" * 32, host="a", port=1),), model=MODEL, digests=DIGESTS))
        )  # the run's first entry waits
        while not leading.done():
            for _ in range(100):  # a site whose line breaks again and again
                leader._on(Came("a"))
                leader._on(Said("a", led.hello_of("a")))
            assert len(leader._undone) < MOST_UNDONE + 100
            await asyncio.sleep(0)
        await leading

    journal = SqliteJournal(RunDir(tmp_path).journal)
    with contextlib.closing(journal), pytest.raises(LeaderChanged, match="away for so long"):
        asyncio.run(asyncio.wait_for(lead(journal), 60))
