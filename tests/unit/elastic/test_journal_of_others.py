"""From whom an agent takes a journal in the place of its damaged one, and how it leads with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import About, KnownAgents
from geocomm.elastic.journal.entries import Entry, Round
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.leading.leadership import HubLeadership
from geocomm.elastic.leading.questions import AgentStanding
from geocomm.elastic.site import journal_of_others
from geocomm.elastic.site.journal_of_others import fetch_if_damaged
from geocomm.security.key_folder import Keys
from support.hub_support import make_keys
from support.led_sequencer import Led
from support.local_jobs import free_port
from support.made_entries import made_entries

AT = {site: f"127.0.0.1:{number}" for number, site in enumerate("abc", 1)}


def fetched(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    others: dict[str, Sequence[Entry]],
    *,
    known: str = "bc",
    silent: str = "",
    run: str = "",
) -> tuple[int, str]:
    """Site a, which led `run`, has lost its journal: how many entries it has once it has asked these others once, of
    which `silent` does not give its journal; and what it said."""
    store, keys = FragmentStore(folder / "run"), make_keys(folder / "keys", "a")["a"]
    agents = KnownAgents(store.run_dir, print)
    for site in known:
        agents.learn(site, AT[site])
    agents.takes_part(run)
    said, leaving = list[str](), asyncio.Event()

    async def standings(*_: Any) -> dict[str, AgentStanding]:
        leaving.set()
        return {AT[site]: standing(site, entries) for site, entries in others.items()}

    async def read_journal(
        at: Address, _: Keys, first: int, begin_at: object, add: Callable[[Sequence[Entry]], None]
    ) -> None:
        site = next(site for site, address in AT.items() if address == str(at))
        if site == silent:
            raise ConnectionResetError("Connection reset by peer")
        add(others[site][first:])

    monkeypatch.setattr(journal_of_others, "standings", standings)
    monkeypatch.setattr(journal_of_others, "read_journal", read_journal)
    monkeypatch.setattr(journal_of_others, "log", said.append)
    monkeypatch.setattr(journal_of_others, "Waiting", lambda _: AtOnce(said))
    has_one = asyncio.run(fetch_if_damaged(store, AT["a"], keys, leaving))
    with contextlib.ExitStack() as stack:
        if not has_one:
            return 0, said[-1]
        journal = stack.enter_context(contextlib.closing(SqliteJournal(store.files.journal)))
        return journal.head.index + 1, said[-1]


class AtOnce:
    """In the place of `Waiting`, which says it later."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def tell(self, what: Callable[[], str]) -> None:
        self._said.append(what())


def standing(site: str, entries: Sequence[Entry]) -> AgentStanding:
    genesis: Any = entries[0]
    head = entries[-1]
    return AgentStanding(
        site=site,
        run=genesis.run,
        head=head.index,
        head_hash=head.hash,
        chain=head.term,
        term=head.term,
        leader=AT["a"],
        leads=False,
    )


def test_the_longest_journal_is_taken_where_all_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Led().take_part("abc").entries
    assert fetched(tmp_path, monkeypatch, {"b": entries, "c": entries[:-2]})[0] == len(entries)


def test_a_journal_of_another_run_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = Led().take_part("abc").entries
    number, told = fetched(tmp_path, monkeypatch, {"b": entries, "c": entries}, run="f" * 32)
    assert number == 0
    assert "none that answers has a journal of this run" in told


def test_states_that_the_journal_of_others_says_nothing_of_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be of entries that this site alone had."""
    entries, store = made_entries(), FragmentStore(tmp_path / "run")
    said = next(one for one in reversed(entries) if isinstance(one, Round) and one.base is not None)
    for version in (said.version, said.version + 1):
        store.write_state(said.fragment, version, [b"0"])
    others = dict.fromkeys("bc", entries)
    assert fetched(tmp_path, monkeypatch, others)[0] == len(entries)
    assert store.states(said.fragment) == [said.version]


def test_a_shorter_journal_is_none_where_the_longer_one_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most members had the last entries: a, which has lost them, and b."""
    entries = Led().take_part("abc").entries
    number, told = fetched(tmp_path, monkeypatch, {"b": entries, "c": entries[:-2]}, silent="b")
    assert number == 0
    assert "(b: Connection reset by peer)" in told


@pytest.mark.parametrize("known", ["c", "bc"])
def test_a_site_that_this_one_knows_of_may_have_joined_by_an_entry_that_the_others_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    entries = Led().take_part("ac").entries
    number, told = fetched(tmp_path, monkeypatch, {"c": entries}, known=known)
    if known == "c":
        assert number == len(entries)
    else:
        assert number == 0
        assert "too few of 3 members answer to know what counted: start b" in told


@pytest.mark.parametrize("again", [True, False])
def test_a_site_that_led_leads_with_a_later_term_once_it_has_its_journal_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    entries = Led().take_part("abc").entries
    fetched(tmp_path, monkeypatch, {"b": entries, "c": entries})
    run_dir, keys = tmp_path / "run", make_keys(tmp_path / "own", "a")["a"]
    hub = f"127.0.0.1:{free_port()}"
    About(leads=True, agent=hub).write(run_dir)

    async def nobody(addresses: Collection[str], *_: Any) -> dict[str, AgentStanding]:
        return {}

    monkeypatch.setattr("geocomm.elastic.leading.leadership.standings", nobody)

    async def begin(journal: SqliteJournal, known: KnownAgents) -> bool:
        begun = await HubLeadership(hub, None, run_dir, keys, lead=False, again=again).begin(
            journal, known, asyncio.Event()
        )
        assert begun is not None
        begun.listener.close()
        return begun.leads

    for _ in range(2):  # also where the agent ends before most have agreed
        known = KnownAgents(run_dir, print)
        with contextlib.closing(SqliteJournal(RunDir(run_dir).journal)) as journal:
            assert not asyncio.run(begin(journal, known))
            assert known.claims_after(journal.state().term)
            assert (known.term, known.leader, known.force) == (1, hub, False)
    with contextlib.closing(SqliteJournal(RunDir(run_dir).journal)) as journal:
        journal.append(journal.term_begun(1, "a", hub), journal.head)
        assert asyncio.run(begin(journal, KnownAgents(run_dir, print)))
