"""What a node says while it waits, and how often."""

from __future__ import annotations

import asyncio

import pytest

from geocomm.core import patience
from geocomm.core.patience import Waiting, comes, for_ever, said_meanwhile
from geocomm.group.rendezvous.agents_store import nodes_text
from geocomm.group.rendezvous.hub_rendezvous import without_telemetry


def test_a_line_comes_after_10_30_and_90_seconds() -> None:
    lines: list[str] = []
    at = 0.0
    waiting = Waiting(lines.append, lambda: at)
    for tenths in range(1200):
        at = tenths / 10
        waiting.tell(lambda at=at: f"a thing, at {at:g} s")
    assert lines == [f"waiting for a thing, at {seconds} s" for seconds in (10, 30, 90)]


def test_work_that_awaits_something_long_says_so_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.0)
    monkeypatch.setattr(patience, "_LOOK_S", 0.0)
    lines: list[str] = []

    async def run() -> None:
        async with said_meanwhile(lines.append, lambda: "the hub"):
            while not lines:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert lines[0] == "waiting for the hub"


def test_an_event_comes_in_time_or_not() -> None:
    async def run() -> None:
        event = asyncio.Event()
        assert not await comes(event, 0.01)
        event.set()
        assert await comes(event, 3600)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_site_is_named_where_it_is_known() -> None:
    assert nodes_text([1], 2, {0: "frankfurt", 1: "virginia"}) == "node 1 of 2 (site virginia)"
    assert nodes_text([1], 2, {0: "frankfurt"}) == "node 1 of 2; node 0 (site frankfurt) is here"
    assert nodes_text([1, 3], 4, {0: "a", 2: "b"}) == "nodes 1, 3 of 4; node 0 (site a), node 2 (site b) are here"
    assert nodes_text([1, 3], 4, {0: "a", 2: "b", 3: "c"}) == "nodes 1, 3 (site c) of 4"
    assert nodes_text([1], 2, {}) == "node 1 of 2"
    assert nodes_text([0], 2, {0: None, 1: "b"}) == "node 0 of 2; node 1 (site b) is here"


def test_nodes_without_telemetry_are_named_where_others_have_it() -> None:
    sites = {0: "frankfurt", 1: "virginia", 2: "tokyo"}
    assert without_telemetry([True, True, True], sites) == ""
    assert without_telemetry([False, None, False], sites) == ""
    said = without_telemetry([True, False, None], sites)
    assert said.startswith("no telemetry of nodes 1 (site virginia), 2 (site tokyo) of 3: ")


def test_work_without_an_end_that_ends_is_told_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_AGAIN_S", 0.0)
    lines: list[str] = []
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise KeyError("not foreseen")
        if begun > 2:
            await asyncio.Event().wait()

    async def run() -> None:
        doing = asyncio.create_task(for_ever("what reaps", work, lines.append))
        while begun < 3:
            await asyncio.sleep(0)
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)
        assert doing.cancelled()

    asyncio.run(run())
    assert "what reaps has ended by an error of this program" in lines[0]
    assert "not foreseen" in lines[0]
    assert lines[1:] == ["what reaps has ended with no reason; it begins again"]
