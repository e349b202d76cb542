"""An agent follows the leader that it has promised to follow, whatever becomes of the one that told it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic import following
from geocomm.elastic.following import Following
from geocomm.elastic.journal.run_state import Head
from geocomm.elastic.known_agents import KnownAgents
from geocomm.elastic.leader import LeaderChanged
from geocomm.elastic.questions import StandingAsked
from geocomm.elastic.run_view import AgentLife

BEFORE, PROMOTED, RUN = "127.0.0.1:1", "127.0.0.1:2", "0" * 32


@pytest.mark.parametrize("leads", [True, False])
def test_who_promised_to_follow_a_leader_does_so_though_it_hung_up_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """What is promised is on the disk, so it is not heard of as new a second time."""

    async def read_question(_: object) -> StandingAsked:
        return StandingAsked(run=RUN, term=1, leader=PROMOTED)

    async def leads_there(*_: object) -> bool:
        return True

    async def tell(*_: object) -> None:
        raise ConnectionResetError("it did not wait for so long")

    for name, instead in (("read_question", read_question), ("leads_there", leads_there), ("tell", tell)):
        monkeypatch.setattr(following, name, instead)

    async def followed() -> tuple[list[str], BaseException | None]:
        moved: list[str] = []
        life = AgentLife()
        known = KnownAgents(tmp_path, print)
        view: Any = SimpleNamespace(
            site="a",
            state=SimpleNamespace(genesis=SimpleNamespace(run=RUN), term=0),
            journal=SimpleNamespace(head=Head(3, "1" * 64)),
            known=known,
            leader=SimpleNamespace() if leads else None,
            leader_at=known.leader or BEFORE,
            keys=None,
            life=life,
            leave_leader=lambda: None,
            link=SimpleNamespace(move=lambda to: moved.append(str(to))),
        )
        known_saw = known.saw

        def saw(term: int, leader: str) -> None:
            known_saw(term, leader)
            view.leader_at = leader

        known.saw = saw
        agent = Following(view, Address.parse(BEFORE), lambda _: None, passes_on=False)
        stream: Any = None
        with contextlib.suppress(ConnectionResetError):
            await agent.answer(stream, "b")
        assert known.term == 1
        return moved, life.ended.exception() if life.ended.done() else None

    moved, ended = asyncio.run(followed())
    if leads:
        assert isinstance(ended, LeaderChanged)
    else:
        assert moved == [PROMOTED]
