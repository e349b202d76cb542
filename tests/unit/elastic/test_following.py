"""An agent follows the leader that it has promised to follow, whatever becomes of the one that told it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import Head
from geocomm.elastic.leading.leader import LeaderChanged
from geocomm.elastic.leading.questions import StandingAsked
from geocomm.elastic.site import following
from geocomm.elastic.site.following import Following
from geocomm.elastic.site.run_view import AgentLife

BEFORE, PROMOTED, RIVAL, RUN = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "0" * 32


class View(SimpleNamespace):
    """A `RunView`, as far as it is asked here."""

    known: KnownAgents

    @property
    def leader_at(self) -> str:
        return self.known.leader or BEFORE


@pytest.mark.parametrize(("leads", "before"), [(True, ""), (False, ""), (False, "claimed"), (False, "promised")])
def test_who_promised_to_follow_a_leader_does_so_though_it_hung_up_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, leads: bool, before: str
) -> None:
    """What is promised is on the disk, so it is not heard of as new a second time. before: this agent has asked for
    the same term, or promised to follow a third site in it, and another one got it."""

    async def read_question(_: object) -> StandingAsked:
        return StandingAsked(run=RUN, term=1, leader=PROMOTED)

    async def leads_there(*asked: object) -> bool:
        assert asked[-1] == ("" if before else "b")  # to a rival that has not begun it does not agree
        return True

    async def tell(*_: object) -> None:
        raise ConnectionResetError("it did not wait for so long")

    for name, instead in (("read_question", read_question), ("leads_there", leads_there), ("tell", tell)):
        monkeypatch.setattr(following, name, instead)

    async def followed() -> tuple[list[str], BaseException | None]:
        moved: list[str] = []
        life = AgentLife()
        known = KnownAgents(tmp_path, print)
        if before == "claimed":
            known.claim(0, BEFORE, force=False)
        elif before:
            known.saw(1, RIVAL)
        view: Any = View(
            site="a",
            state=SimpleNamespace(genesis=SimpleNamespace(run=RUN), term=0),
            journal=SimpleNamespace(head=Head(3, "1" * 64)),
            known=known,
            leader=SimpleNamespace() if leads else None,
            keys=None,
            life=life,
            leave_leader=lambda: None,
            link=SimpleNamespace(move=lambda to: moved.append(str(to))),
        )
        agent = Following(view, Address.parse(BEFORE), lambda _: None, passes_on=False)
        stream: Any = None
        with contextlib.suppress(ConnectionResetError):
            await agent.answer(stream, "b")
        assert (known.term, known.leader, known.claims_after(0)) == (1, PROMOTED, False)
        return moved, life.ended.exception() if life.ended.done() else None

    moved, ended = asyncio.run(followed())
    if leads:
        assert isinstance(ended, LeaderChanged)
    else:
        assert moved == [PROMOTED]


def test_who_agrees_to_one_while_another_asks_for_the_same_term_keeps_to_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, told = KnownAgents(tmp_path, print), list[object]()

    async def read_question(_: object) -> StandingAsked:
        return StandingAsked(run=RUN, term=1, leader=PROMOTED)

    async def leads_there(*_: object) -> bool:
        known.saw(1, RIVAL)  # meanwhile
        return True

    async def tell(*_: object) -> None:
        told.append((known.term, known.leader))

    for name, instead in (("read_question", read_question), ("leads_there", leads_there), ("tell", tell)):
        monkeypatch.setattr(following, name, instead)
    view: Any = View(
        site="a",
        state=SimpleNamespace(genesis=SimpleNamespace(run=RUN), term=0),
        journal=SimpleNamespace(head=Head(3, "1" * 64)),
        known=known,
        leader=None,
        keys=None,
    )
    stream: Any = None
    asyncio.run(Following(view, Address.parse(BEFORE), lambda _: None, passes_on=False).answer(stream, "b"))
    assert told == [(1, RIVAL)]
