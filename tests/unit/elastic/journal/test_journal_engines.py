"""What every engine of a journal does: a SQLite file, and a real etcd of three members."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import EMPTY, BadLineError, Entry, Head, Kept, Snapshot, TermBegun
from geocomm.elastic.journal.journal import HeadMovedError, NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading import etcd_leadership
from geocomm.elastic.leading.etcd import (
    Election,
    Etcd,
    EtcdAddress,
    EtcdAddressError,
    EtcdAwayError,
    EtcdJournal,
    LeaderSaid,
    Leading,
)
from geocomm.elastic.leading.etcd_leadership import EtcdLeadership
from geocomm.elastic.leading.leadership import Begun
from geocomm.elastic.leading.questions import AgentStanding, StandingAsked
from support.etcd_servers import EtcdServers, needs_etcd
from support.hub_support import make_keys
from support.led_sequencer import MODEL
from support.local_jobs import free_port
from support.made_entries import made_entries
from support.tls_files import make_tls_files


@pytest.fixture(scope="module")
def entries() -> tuple[Entry, ...]:
    return made_entries()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[EtcdServers]:
    with EtcdServers(tmp_path_factory.mktemp("etcd"), members=3) as running:
        yield running


@dataclass
class Engine:
    """Where a journal is."""

    lead: Callable[[], SqliteJournal | EtcdJournal]
    """To append, whoever did before."""
    look: Callable[[], SqliteJournal | EtcdJournal]


@pytest.fixture(params=["sqlite", pytest.param("etcd", marks=needs_etcd)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    if request.param == "sqlite":
        return Engine(partial(SqliteJournal, tmp_path / "j"), partial(SqliteJournal, tmp_path / "j"))
    servers: EtcdServers = request.getfixturevalue("servers")
    address = servers.address(tmp_path.name)
    return Engine(partial(lead, address), partial(look, address))


def said(site: str) -> LeaderSaid:
    return LeaderSaid(site=site, store=site * 32, address=f"127.0.0.1:{ord(site)}")


def elect(address: EtcdAddress, site: str) -> tuple[Election, Leading | None]:
    election = Election(Etcd(address), said(site))
    return election, election.stand()


def lead(address: EtcdAddress) -> EtcdJournal:
    _, leading = elect(address, "a")
    assert leading is not None
    return EtcdJournal(Etcd(address), leading.revision)


def look(address: EtcdAddress) -> EtcdJournal:
    return EtcdJournal(Etcd(address))


def fill(journal: SqliteJournal | EtcdJournal, entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        journal.append(entry, journal.head)


def fill_elsewhere(engine: Engine, entries: tuple[Entry, ...]) -> None:
    fill(engine.lead(), entries)


def test_journal_reads_what_was_appended(engine: Engine, entries: tuple[Entry, ...]) -> None:
    journal = engine.lead()
    assert (journal.head, list(journal.read()), journal.hash_at(-1)) == (EMPTY, [], EMPTY.hash)
    fill(journal, entries)
    again = engine.look()
    assert tuple(again.read()) == entries
    assert list(again.read(7)) == list(entries[7:])
    assert again.head == RunState.of(again.read()).head == Head(len(entries) - 1, entries[-1].hash)
    assert again.hash_at(4) == entries[5].prev
    assert again.hash_at(len(entries)) is None


def test_what_does_not_follow_is_refused(engine: Engine, entries: tuple[Entry, ...]) -> None:
    journal = engine.lead()
    fill(journal, entries[:3])
    with pytest.raises(BadLineError):
        journal.append(entries[5], journal.head)
    with pytest.raises(HeadMovedError):
        journal.append(entries[1], Head(0, entries[1].prev))
    assert list(journal.read()) == list(entries[:3])


def test_leader_of_a_term_that_is_over_is_refused(engine: Engine, entries: tuple[Entry, ...]) -> None:
    former = engine.lead()
    fill(former, entries[:3])
    seen = former.head
    later = engine.lead()
    begun = TermBegun(index=3, prev=later.head.hash, term=9, site="b", address="127.0.0.1:1")
    later.append(begun, later.head)
    with pytest.raises(HeadMovedError):
        former.append(entries[3], seen)
    assert former.head == Head(3, begun.hash)
    assert list(former.read()) == [*entries[:3], begun]


def test_a_writer_is_killed_while_another_process_reads(engine: Engine, entries: tuple[Entry, ...]) -> None:
    engine.lead()
    writer = multiprocessing.get_context("spawn").Process(target=fill_elsewhere, args=(engine, entries))
    writer.start()
    reader, seen, end = engine.look(), 0, time.monotonic() + 60
    while seen < 5:
        found = tuple(reader.read())
        assert found == entries[: len(found)]
        assert len(found) >= seen
        assert time.monotonic() < end
        seen = len(found)
    writer.kill()
    writer.join()
    last = engine.lead()
    assert last.head == RunState.of(last.read()).head
    fill(last, entries[last.head.index + 1 :])
    assert tuple(reader.read()) == entries


@needs_etcd
def test_an_entry_whose_answer_was_lost_is_written_once(servers: EtcdServers, entries: tuple[Entry, ...]) -> None:
    journal = lead(servers.address("lost-answer"))
    fill(journal, entries[:3])
    journal.append(entries[2], Head(1, entries[2].prev))  # as after a time-out
    assert list(journal.read()) == list(entries[:3])


@needs_etcd
def test_election_whose_answer_was_lost_is_won_once(
    servers: EtcdServers, monkeypatch: pytest.MonkeyPatch, entries: tuple[Entry, ...]
) -> None:
    """As where a server did what it was asked for and then did not answer, and the next one is asked for it again."""
    address, transact = servers.address("lost-election"), Etcd.transact

    def twice(self: Etcd, compare: list[dict[str, Any]], *requests: dict[str, Any]) -> int:
        transact(self, compare, *requests)
        return transact(self, compare, *requests)

    monkeypatch.setattr(Etcd, "transact", twice)
    first, leading = elect(address, "a")
    assert leading is not None
    assert leading.said == said("a")
    assert first.keep(leading.term)
    journal = EtcdJournal(Etcd(address), leading.revision)
    journal.begin_after(Head(1, entries[1].hash))
    fill(journal, entries[2:4])
    other, found = elect(address, "b")
    assert found == leading
    assert not other.keep(leading.term)


@needs_etcd
def test_who_ends_before_all_entries_are_given_has_given_none(
    servers: EtcdServers, monkeypatch: pytest.MonkeyPatch, entries: tuple[Entry, ...]
) -> None:
    address, transact, left = servers.address("half"), Etcd.transact, iter(range(2))
    journal = lead(address)
    fill(journal, entries[:2])

    def ends(self: Etcd, compare: list[dict[str, Any]], *requests: dict[str, Any]) -> int:
        if next(left, None) is None:
            raise EtcdAwayError("the process has ended")
        return transact(self, compare, *requests)

    with monkeypatch.context() as patch:
        patch.setattr(Etcd, "transact", ends)
        with pytest.raises(EtcdAwayError):
            journal.append_all(entries[2:6], journal.head)
    assert list(look(address).read()) == list(entries[:2])
    assert look(address).hash_at(2) is None
    journal.append_all(entries[2:6], journal.head)
    assert list(look(address).read()) == list(entries[:6])


@needs_etcd
def test_lease_that_runs_out_ends_a_term(servers: EtcdServers, entries: tuple[Entry, ...]) -> None:
    address = servers.address("lease")
    first, leading = elect(address, "a")
    assert leading is not None
    former = EtcdJournal(Etcd(address), leading.revision)
    fill(former, entries[:2])
    other, found = elect(address, "b")
    assert found == leading
    assert first.keep(leading.term)
    end = time.monotonic() + 20  # nobody keeps it from now on
    while (found := other.stand()) == leading:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert found is not None
    assert found.said == said("b")
    assert found.term > leading.term
    assert not first.keep(leading.term)
    with pytest.raises(HeadMovedError, match="another site does"):
        former.append(entries[2], former.head)


@needs_etcd
def test_one_member_may_be_lost_and_two_stop_the_journal(servers: EtcdServers, entries: tuple[Entry, ...]) -> None:
    journal = lead(servers.address("quorum"))
    more = iter(entries)
    fill(journal, tuple(itertools.islice(more, 3)))
    servers.kill(0)
    entry, end = next(more), time.monotonic() + 30
    while True:  # the others may have to elect one of them
        try:
            journal.append(entry, Head(2, entry.prev))
            break
        except EtcdAwayError:
            assert time.monotonic() < end
    servers.kill(1)
    entry = next(more)
    with pytest.raises(EtcdAwayError):
        journal.append(entry, Head(3, entry.prev))
    servers.start(0, 1)
    # Its lease is as new, since nobody could let it run out.
    journal.append(entry, Head(3, entry.prev))
    assert list(journal.read()) == list(entries[:5])


def test_missing_servers_are_named_and_the_last_known_leader_counts(tmp_path: Path) -> None:
    words: list[str] = []
    address = EtcdAddress.parse(f"etcd://127.0.0.1:{free_port()},127.0.0.1:{free_port()}")
    with pytest.raises(EtcdAwayError, match="refused"):
        look(address)

    async def begin() -> str:
        known = KnownAgents(tmp_path, words.append)
        known.saw(3, "127.0.0.1:7")
        keys = make_keys(tmp_path / "keys", "a")["a"]
        leadership = EtcdLeadership(address, said("a"), "127.0.0.1:0", keys, words.append, may_lead=True, fills=False)
        begun = await leadership.begin(SqliteJournal(tmp_path / "j"), known, asyncio.Event())
        assert begun is not None
        begun.listener.close()
        assert not begun.leads
        return begun.leader

    assert asyncio.run(begin()) == "127.0.0.1:7"
    assert "without TLS" in words[0]


@needs_etcd
def test_run_folder_of_another_run_is_refused(servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]) -> None:
    address = servers.address("another")
    fill(lead(address), made_entries(2, MODEL.model_copy(update={"step": 7}))[:9])
    own = SqliteJournal(tmp_path / "j")
    fill(own, entries[:4])

    with pytest.raises(NoJournalError, match="has 9 entries, and another entry 3 than this run folder"):
        asyncio.run(begun(address, own, tmp_path, fills=False))


@needs_etcd
def test_etcd_that_lacks_entries_gets_them_where_that_is_allowed(
    servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]
) -> None:
    address = servers.address("lacks")
    fill(lead(address), entries[:3])
    own = SqliteJournal(tmp_path / "j")
    fill(own, entries[:9])
    assert asyncio.run(begun(address, own, tmp_path, fills=False)) is None
    assert own.head.index == 8
    leads = asyncio.run(begun(address, own, tmp_path, fills=True))
    assert leads is not None
    shared = list(look(address).read())
    assert shared == list(own.read())
    assert shared[:9] == list(entries[:9])
    assert shared[9:] == [
        TermBegun(index=9, prev=entries[8].hash, term=leads.term, site="a", address=said("a").address)
    ]


@needs_etcd
@pytest.mark.parametrize("leads", ["a", "b"])
def test_terms_of_a_restored_etcd_are_higher_than_one_that_was_followed(
    servers: EtcdServers, tmp_path: Path, leads: str
) -> None:
    """Whoever knows of it has etcd name later ones: the site that is to lead, or one that is to follow another."""
    address = servers.address(f"restored-{leads}")
    followed = 10**9
    KnownAgents(tmp_path, print).saw(followed, "127.0.0.1:7")
    election, before = elect(address, "b") if leads == "b" else (None, None)
    found = asyncio.run(begun(address, SqliteJournal(tmp_path / "j"), tmp_path, fills=False))
    assert found is not None
    assert KnownAgents(tmp_path, print).term > followed
    assert found.leads == (leads == "a")
    assert found.term > followed or leads == "b"
    if election is not None and before is not None:
        assert not election.keep(before.term)  # it stands again


@needs_etcd
def test_deleted_entries_leave_a_chain_that_goes_on(servers: EtcdServers, entries: tuple[Entry, ...]) -> None:
    address = servers.address("deleted")
    journal = lead(address)
    fill(journal, entries[:9])
    journal.forget(5)
    again = look(address)
    assert (again.first, list(again.read(5))) == (5, list(entries[5:9]))
    assert [again.hash_at(index) for index in (3, 4, 8)] == [None, entries[5].prev, entries[8].hash]
    with pytest.raises(EtcdAwayError, match="before 5 were deleted"):
        list(again.read(4))
    later = lead(address)
    journal.forget(8)  # it leads no more
    fill(later, entries[9:12])
    assert list(look(address).read(5)) == list(entries[5:12])


@needs_etcd
def test_deleted_entries_take_no_room_in_etcd(tmp_path: Path) -> None:
    with EtcdServers(tmp_path, more=("--quota-backend-bytes", "600000")) as servers:
        election, leading = elect(servers.address(), "a")
        assert leading is not None
        journal = EtcdJournal(Etcd(servers.address()), leading.revision)
        for index in range(1500):  # a third of them would be too much
            entry = TermBegun(index=index, prev=journal.head.hash, term=1, site="b", address="x" * 500)
            journal.append(entry, journal.head)
            if index % 100 == 99:
                journal.forget(index - 5)
            if index % 10 == 9:  # a busy machine takes seconds for these
                assert election.keep(leading.term)


@needs_etcd
def test_who_lacks_deleted_entries_does_not_lead(
    servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]
) -> None:
    address = servers.address("lacks-deleted")
    election, leading = elect(address, "a")
    assert leading is not None
    journal = EtcdJournal(Etcd(address), leading.revision)
    fill(journal, entries[:9])
    journal.forget(5)
    own = SqliteJournal(tmp_path / "j")
    assert asyncio.run(begun(address, own, tmp_path, fills=False)) is None
    fill(own, entries[:4])
    assert asyncio.run(begun(address, own, tmp_path, fills=False)) is None
    # Another one leads: its own journal has them all.
    assert election.keep(leading.term)
    follows = asyncio.run(begun(address, own, tmp_path, fills=False, site="b"))
    assert follows is not None
    assert not follows.leads
    fill(own, entries[4:5])
    leads = asyncio.run(begun(address, own, tmp_path, fills=False))
    assert leads is not None
    assert leads.leads
    assert list(own.read())[:9] == list(entries[:9])


@needs_etcd
def test_etcd_that_lost_all_gets_what_came_after_the_last_snapshot(
    servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]
) -> None:
    own = SqliteJournal(tmp_path / "j")
    fill(own, entries[:8])
    before = 10**9  # its revisions were higher than those of the new one
    own.append(TermBegun(index=8, prev=own.head.hash, term=before, site="b", address="127.0.0.1:1"), own.head)
    state = own.state()
    snapshot = Snapshot(index=9, prev=own.head.hash, term=before, versions=tuple(state.versions), state=state.digest)
    own.append(snapshot, own.head)
    own.append(Kept(index=10, prev=own.head.hash, term=before, snapshot=9, digest="1" * 32, sites=("a",)), own.head)
    address = servers.address("lost-all")
    assert asyncio.run(begun(address, own, tmp_path, fills=True)) is not None
    assert look(address).first == 9
    assert list(look(address).read(9)) == list(own.read(9))
    assert RunState.of(own.read()).term > before


@needs_etcd
@pytest.mark.parametrize("of_other", [5, 7])
def test_etcd_that_lost_entries_gets_them_from_no_site_while_another_one_has_more(
    servers: EtcdServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: tuple[Entry, ...], of_other: int
) -> None:
    """As where --lead stays in a site's command line after it gave etcd what that lacked."""
    own, address = SqliteJournal(tmp_path / "j"), servers.address(f"has-more-{of_other}")
    fill(own, entries[:6])
    KnownAgents(tmp_path, print).learn("b", "127.0.0.1:2")

    async def standings(addresses: set[str], _: object, asked: StandingAsked, limit_s: float) -> dict[str, Any]:
        head = entries[of_other - 1]
        other = AgentStanding(
            site="b",
            run=asked.run,
            head=head.index,
            head_hash=head.hash,
            chain=head.term,
            term=head.term,
            leader="",
            leads=False,
        )
        return dict.fromkeys(addresses, other)

    monkeypatch.setattr(etcd_leadership, "standings", standings)
    found = asyncio.run(begun(address, own, tmp_path, fills=True))
    assert (found is not None and found.leads) == (of_other < 6)


@needs_etcd
def test_etcd_restored_from_a_backup_goes_on_with_a_higher_term_than_any_journal_has(
    servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]
) -> None:
    address = servers.address("backup")
    fill(lead(address), entries[:6])  # and it has lost what came then
    own = SqliteJournal(tmp_path / "j")
    fill(own, entries[:6])
    before = 10**9
    own.append(TermBegun(index=6, prev=own.head.hash, term=before, site="c", address="127.0.0.1:1"), own.head)
    leads = asyncio.run(begun(address, own, tmp_path, fills=True))
    assert leads is not None
    assert leads.term > before
    assert list(look(address).read()) == list(own.read())
    assert RunState.of(own.read()).term == leads.term  # it can be read


@needs_etcd
def test_empty_etcd_gets_what_a_run_folder_has_after_its_oldest_entries(
    servers: EtcdServers, tmp_path: Path, entries: tuple[Entry, ...]
) -> None:
    """As that of a restored snapshot, of which no entry says that it is kept."""
    own = SqliteJournal(tmp_path / "j")
    fill(own, entries[:8])
    own.forget(5)
    assert not own.state().kept
    address = servers.address("restored")
    assert asyncio.run(begun(address, own, tmp_path, fills=True)) is not None
    assert look(address).first == 5
    assert list(look(address).read(5)) == list(own.read(5))


async def begun(
    address: EtcdAddress, journal: SqliteJournal, folder: Path, *, fills: bool, site: str = "a"
) -> Begun | None:
    """With whom a site begins; None where it still waits after a second."""
    leaving = asyncio.Event()
    asyncio.get_running_loop().call_later(1, leaving.set)
    keys = make_keys(Path(tempfile.mkdtemp(dir=folder)) / "keys", site)[site]
    leadership = EtcdLeadership(address, said(site), "127.0.0.1:0", keys, print, may_lead=True, fills=fills)
    if (found := await leadership.begin(journal, KnownAgents(folder, print), leaving)) is not None:
        found.listener.close()
    return found


@needs_etcd
def test_etcd_is_spoken_to_over_tls_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: tuple[Entry, ...]
) -> None:
    for name, file in (files := make_tls_files(tmp_path)).items():
        monkeypatch.setenv(f"GEOCOMM_ETCD_{name.upper()}", str(file))
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(make_tls_files(tmp_path / "other")["ca"]))  # is not etcd's
    with EtcdServers(tmp_path, tls=files) as servers:
        fill(lead(servers.address()), entries[:3])
        assert list(look(servers.address()).read()) == list(entries[:3])
        monkeypatch.delenv("GEOCOMM_ETCD_CERT")
        with pytest.raises(EtcdAddressError, match="go together"):
            Etcd(servers.address())
        monkeypatch.delenv("GEOCOMM_ETCD_KEY")
        with pytest.raises(EtcdAwayError):
            look(servers.address())
        monkeypatch.setenv("GEOCOMM_ETCD_CA", str(tmp_path / "other" / "ca.pem"))
        with pytest.raises(EtcdAwayError, match="certificate verify failed"):
            look(servers.address())
