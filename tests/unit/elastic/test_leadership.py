"""Whom an agent asks before it leads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.known_agents import About, KnownAgents
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.leading.leadership import HubLeadership
from support.hub_support import make_keys
from support.led_sequencer import Led
from support.local_jobs import free_port


def was_asked(listener: socket.socket) -> bool:
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize(("led", "again"), [(True, True), (True, False), (False, True)])
def test_a_leader_asks_the_others_first_unless_it_led_a_moment_ago(tmp_path: Path, led: bool, again: bool) -> None:
    keys = make_keys(tmp_path / "keys", "ab")["a"]
    hub = f"127.0.0.1:{free_port()}"
    About(leads=led, agent=hub).write(tmp_path)
    known = KnownAgents(tmp_path, print)
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        contextlib.closing(SqliteJournal(RunDir(tmp_path).journal)) as journal,
    ):
        other.setblocking(False)
        for entry in Led().take_part("ab").entries:
            journal.append(entry, journal.head)
        known.learn("b", f"127.0.0.1:{other.getsockname()[1]}")
        leadership = HubLeadership(hub, None, tmp_path, keys, lead=False, again=again)

        async def begin() -> tuple[bool, bool]:
            begun = await leadership.begin(journal, known, asyncio.Event())
            assert begun is not None
            begun.listener.close()
            return begun.leads, was_asked(other)

        assert asyncio.run(begin()) == (True, not (led and again))
        assert asyncio.run(begin()) == (True, True)  # later, in the same process
