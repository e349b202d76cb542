"""What an agent remembers of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from geocomm.elastic.files.fragment_store import StoreError
from geocomm.elastic.files.known_agents import About, KnownAgents, TermNotKeptError, leader_address


def test_a_term_once_seen_is_never_undercut(tmp_path: Path) -> None:
    said: list[str] = []
    known = KnownAgents(tmp_path, said.append)
    known.saw(2, "b:1")
    known.saw(1, "a:1")
    known.saw(2, "c:1")
    again = KnownAgents(tmp_path, said.append)
    assert (again.term, again.leader) == (2, "b:1")
    assert said == []


def test_a_claim_stands_until_its_term_has_begun_or_a_later_one_is_seen(tmp_path: Path) -> None:
    said: list[str] = []
    assert KnownAgents(tmp_path, said.append).claim(1, "b:1", force=True) == 2
    again = KnownAgents(tmp_path, said.append)
    assert (again.term, again.leader, again.force) == (2, "b:1", True)
    assert again.claims_after(1)
    assert not again.claims_after(2)
    again.saw(3, "c:1")
    assert not again.claims_after(1)


@pytest.mark.parametrize(("after", "agreed", "forced"), [(0, 1, 2), (1, 3, 2), (2, 3, 4), (3, 5, 4)])
def test_a_promotion_with_force_claims_a_term_that_no_other_promotion_claims(
    tmp_path: Path, after: int, agreed: int, forced: int
) -> None:
    known = KnownAgents(tmp_path, print)
    assert known.claim(after, "b:1", force=False) == known.term == agreed
    assert known.claim(after, "b:1", force=True) == known.term == forced


def test_who_loses_its_journal_does_not_begin_again_the_term_that_it_may_have_begun(tmp_path: Path) -> None:
    known = KnownAgents(tmp_path, print)
    known.claim(0, "b:1", force=False)
    known.lose_journal()
    again = KnownAgents(tmp_path, print)
    assert (again.term, again.leader, again.claims_after(0), again.lost_journal) == (3, "b:1", True, False)


def test_a_term_that_cannot_be_kept_is_an_error_and_an_address_is_not(tmp_path: Path) -> None:
    said: list[str] = []
    known = KnownAgents(tmp_path, said.append)
    (tmp_path / "agents.json").mkdir()  # which no file takes the place of
    known.learn("a", "a:1")
    assert "agents.json" in said[0]
    with pytest.raises(TermNotKeptError, match=str(tmp_path)):
        known.saw(2, "b:1")
    with pytest.raises(TermNotKeptError):
        known.claim(2, "b:1", force=True)
    with pytest.raises(TermNotKeptError):
        known.next_start()


def test_starts_of_a_leader_are_counted_over_restarts(tmp_path: Path) -> None:
    assert [KnownAgents(tmp_path, print).next_start() for _ in range(3)] == [1, 2, 3]


def test_addresses_are_the_last_ones(tmp_path: Path) -> None:
    said: list[str] = []
    known = KnownAgents(tmp_path, said.append)
    known.learn("a", "a:1")
    known.learn("a", "a:2")
    known.learn("b", "")
    assert KnownAgents(tmp_path, said.append).addresses == {"a": "a:2"}


@pytest.mark.parametrize(
    "content", [b"[1, 2", b"{}", b"[]", b"\xff", b'{"agents": {}, "term": "x", "leader": ""}', None]
)
def test_a_term_that_is_there_and_cannot_be_read_is_not_forgotten(tmp_path: Path, content: bytes | None) -> None:
    KnownAgents(tmp_path, print).saw(2, "b:1")
    path = tmp_path / "agents.json"
    path.unlink()
    if content is None:
        path.mkdir()  # which cannot be read
    else:
        path.write_bytes(content)
    About(leader="a:1").write(tmp_path)
    with pytest.raises(StoreError, match=f"{path} cannot be read"):
        KnownAgents(tmp_path, print)
    assert leader_address(tmp_path) == "a:1"  # commands and the collector go on with what they know
