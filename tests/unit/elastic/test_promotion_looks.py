"""A site that is to lead looks twice who is there: before its term is known to others, and after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.files.fetch import Fetcher
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.leading.agent_link import LeaderLink
from geocomm.elastic.leading.questions import AgentStanding, PromotionAnswer, PromotionAsked, StandingAsked
from geocomm.elastic.site import promotion
from geocomm.elastic.site.promotion import Candidate
from geocomm.elastic.site.run_view import AgentLife, RunView
from support.hub_support import make_keys
from support.led_sequencer import Led

LEADER, OTHER, OWN = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


def promoted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leader_of_c: Callable[[int], str],
    *,
    claimed: bool = False,
    force: bool = False,
) -> tuple[PromotionAnswer, list[int], bool]:
    """How b is promoted, the terms with which it asks the others, and whether it has an entry more. leader_of_c: whom c
    follows, by how often it was asked; empty: it does not answer. claimed: b has claimed term 1 before."""
    entries = Led().take_part("abc").entries
    journal = SqliteJournal(tmp_path / "journal")
    journal.append_all(entries, journal.head)
    state, known = journal.state(), KnownAgents(tmp_path, print)
    known.learn("a", LEADER)
    known.learn("c", OTHER)
    if claimed:
        known.claim(0, OWN, force=False)
    keys = make_keys(tmp_path / "keys", "b")["b"]
    store = FragmentStore(tmp_path / "run")
    link = LeaderLink(Address.parse(LEADER), keys, str, lambda _: None, lambda: None, print)
    asked: list[int] = []

    async def standings(
        addresses: Collection[str], _: object, question: StandingAsked, limit_s: float
    ) -> dict[str, AgentStanding]:
        asked.append(question.term)
        leader = leader_of_c(len(asked))
        answer = AgentStanding(
            site="c",
            run=question.run,
            head=journal.head.index,
            head_hash=journal.head.hash,
            chain=0,
            term=question.term,
            leader=leader,
            leads=False,
        )
        return {OTHER: answer} if leader else {}

    async def hear(*_: Any) -> bool:
        return False

    monkeypatch.setattr(promotion, "standings", standings)

    async def promote() -> PromotionAnswer:
        fetcher = Fetcher(store, keys, print)
        view = RunView("b", LEADER, keys, store, state, journal, known, None, link, fetcher, AgentLife())
        return await Candidate(view, OWN, lambda _: None, hear, set()).promote(PromotionAsked(force=force))

    answer = asyncio.run(promote())
    journal.close()
    has_more = SqliteJournal(tmp_path / "journal", read_only=True).head.index == len(entries)
    return answer, asked, has_more


@pytest.mark.parametrize("claimed", [True, False])
@pytest.mark.parametrize("stays", [True, False])
def test_promotion_is_refused_where_most_members_are_gone_once_its_term_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, stays: bool, claimed: bool
) -> None:
    """Of a, which led, b, which is to lead, and c: that one answers the first time, and the second where it `stays`.
    claimed: b has claimed a term before, to which c has agreed for another site."""
    answer, asked, has_more = promoted(
        tmp_path, monkeypatch, lambda time: LEADER if time == 1 else OWN if stays else "", claimed=claimed
    )
    assert asked == ([1, 3] if claimed else [0, 1])
    assert has_more == stays
    if stays:
        assert (answer.problem, answer.term) == ("", 3 if claimed else 1)
    else:
        assert answer.problem.startswith("2 of 3 members are not reached: a, c.")
        assert "this site asks again until it leads" in answer.problem


@pytest.mark.parametrize("rival", [True, False])
def test_a_promotion_with_force_begins_no_term_that_another_site_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rival: bool
) -> None:
    """It goes on with no term that a promotion without force may have begun elsewhere either."""
    answer, asked, has_more = promoted(
        tmp_path, monkeypatch, lambda time: OTHER if rival and time == 2 else OWN, claimed=True, force=True
    )
    assert asked == [1, 2]
    assert has_more != rival
    assert answer.problem.startswith(f"another site is promoted with --force at the same time, at {OTHER}") == rival
