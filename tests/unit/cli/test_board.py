"""What is told of sites: a table in a terminal; lines elsewhere, and a word where a wait takes long."""

from __future__ import annotations

import asyncio
import io
import itertools
import re
from pathlib import Path

import pytest
from rich.console import Console

from geocomm.cli.ssh_sites import board as board_module
from geocomm.cli.ssh_sites.board import Board
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile
from geocomm.core import patience


@pytest.fixture
def nodes(tmp_path: Path) -> list[Node]:
    path = tmp_path / "sites.toml"
    path.write_text('hub = "h:1"\n[sites.paris]\nssh = "a"\n[sites.oslo]\nssh = ["[x]", "n2"]\n')
    return SitesFile.read(path).nodes


def test_terminal_has_a_line_for_each_machine_with_state_and_steps(nodes: list[Node]) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)

    async def work() -> None:
        async with Board(nodes, console) as board:
            for node in nodes:
                board.say(node, "runs", waiting=False)
            board.steps({"paris": "step 5, loss 0.1"})
            board.last(nodes[1], "[bold]not markup")
            board.tell("an [event]")
            board.tell("\x1b[31mred\x1b[0m, \x1b]52;c;eA==\x07 of a site")

    asyncio.run(work())
    last = file.getvalue().splitlines()[-4:-1]
    assert "an [event]" in file.getvalue()
    assert "red, ?]52;c;eA==? of a site" in file.getvalue()
    assert "[bold]paris" not in file.getvalue()
    assert all(name in line for name, line in zip(("paris", "oslo ([x])", "oslo (n2)"), last, strict=True)), last
    assert "step 5, loss 0.1" in last[0]
    assert "[bold]not markup" in last[1]


def test_names_and_states_stay_in_a_narrow_terminal_whatever_a_site_writes(nodes: list[Node]) -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None, soft_wrap=True)

    async def work() -> None:
        async with Board(nodes, console) as board:
            for node in nodes:
                board.say(node, "runs", waiting=False)
                board.last(node, "x" * 1000)
            board.say(nodes[0], "away, its run may go on; trying again")
            board.last(nodes[2], "two\nlines,\ta tab")

    asyncio.run(work())
    last = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in file.getvalue().splitlines()][-4:-1]
    assert last[0].split()[:3] == ["paris", "away,", "its"]
    assert last[1].startswith("oslo ([x])  runs ")
    assert last[2].startswith("oslo (n2)   runs ")
    assert last[2].endswith(" two lines, a tab")
    assert [line[-1] for line in last[:2]] == ["…", "…"]
    assert max(map(len, last)) == 80


def test_elsewhere_steps_come_at_once_then_each_some_seconds_and_never_empty(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, now = io.StringIO(), [1000.0]
    monkeypatch.setattr(board_module.time, "monotonic", lambda: now[0])
    board = Board(nodes, Console(file=file, width=40, soft_wrap=True))
    told: list[tuple[float, str]] = []
    for second in range(600):
        now[0] = 1000.0 + second
        if second:
            board.steps({"paris": f"step {second}", "oslo": f"step 1, {second} s/step"} if second > 9 else {})
        told += [(second, line) for line in file.getvalue().splitlines()]
        file.seek(0)
        file.truncate()
    assert told[:2] == [(10, "paris: step 10"), (10, "oslo: step 1, 10 s/step")]
    assert all(line == f"paris: step {second}" for second, line in told[2:])
    times = [second for second, _ in told[1:]]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2, 30)


def test_elsewhere_each_change_is_a_line_and_a_long_wait_is_named_again(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.1)
    file = io.StringIO()

    async def work() -> None:
        async with Board(nodes, Console(file=file, width=40, soft_wrap=True)) as board:
            board.say(nodes[0], "waiting for a to answer ssh")
            board.say(nodes[0], "waiting for a to answer ssh")
            board.say(nodes[1], "runs", waiting=False)
            while "still" not in file.getvalue():
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(work(), 60))
    lines = file.getvalue().splitlines()
    assert lines[:2] == ["paris: waiting for a to answer ssh", "oslo ([x]): runs"]
    assert lines[2].startswith("paris: still waiting for a to answer ssh, for ")
