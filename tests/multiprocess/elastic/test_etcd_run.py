"""A run whose journal is in etcd: real servers, real sites. Whoever leads may go, and nobody acts."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TypeVar

import pytest

from geocomm.core.addresses import Address
from geocomm.elastic.journal.entries import Entry, Kept, Round, TermBegun
from geocomm.elastic.journal.run_state import Standing
from geocomm.elastic.leading.etcd import Election, Etcd, EtcdAddress, EtcdAwayError, EtcdJournal, LeaderSaid
from support.elastic_commands import supervised
from support.elastic_sites import ENVIRONMENT, LIMIT_S, ElasticSite, ElasticSites
from support.etcd_servers import EtcdServers, Relay, needs_etcd
from support.hub_support import make_keys
from support.warm_executable import warm_executable

pytestmark = [pytest.mark.timeout(500), needs_etcd]

_T = TypeVar("_T")


def end(site: ElasticSite) -> None:
    site.kill_agent()
    site.kill_rank()


def answered(ask: Callable[[], _T]) -> _T:
    """What etcd answers; a busy machine may take longer than a question waits."""
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except EtcdAwayError:
            assert time.monotonic() < end, "etcd does not answer"


def leading(address: EtcdAddress) -> LeaderSaid | None:
    found = answered(Election(Etcd(address), LeaderSaid(site="x", store="f" * 32, address="")).leader)
    return None if found is None else found.said


def leader_of(address: EtcdAddress) -> str:
    found = leading(address)
    return "" if found is None else found.site


def assert_one_chain(address: EtcdAddress, sites: Iterable[ElasticSite]) -> None:
    """All entries of each site are the run's, and none was set aside. Of a site that has died, etcd may hold none."""

    def read_chain() -> dict[int, str]:  # EtcdAwayError: the leader has just deleted some
        shared = EtcdJournal(Etcd(address))
        return {entry.index: entry.hash for entry in shared.read(shared.first)}

    end = time.monotonic() + LIMIT_S
    for site in sites:
        both: list[tuple[Entry, str]] = []
        while not both:  # the site may be behind
            assert time.monotonic() < end, f"no entry of etcd at {site.name}"
            chain = answered(read_chain)
            both = [(entry, chain[entry.index]) for entry in site.entries() if entry.index in chain]
        assert all(entry.hash == there for entry, there in both)
        assert not list(site.folder.glob("journal-*.jsonl"))


def leader_of_all(address: EtcdAddress, sites: ElasticSites) -> ElasticSite:
    """The site that leads, as etcd says; on a busy machine there may be none for a moment."""
    name = ""

    def is_there() -> bool:
        nonlocal name
        name = leader_of(address)
        return name != ""

    sites.until(is_there, "a site leads")
    return sites[name]


@contextlib.contextmanager
def relay_to_etcd(etcd: EtcdServers, *sites: ElasticSite) -> Generator[Relay]:
    """The line of these sites to a cluster of one member."""
    with Relay(etcd.address().servers[0]) as relay:
        for site in sites:
            site.journal = f"etcd://{relay.address}/run"
        yield relay


def test_another_site_takes_over_by_itself(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), ("a", "b", "c"), etcd.url()) as sites,
    ):
        sites.start()
        first = leader_of_all(etcd.address(), sites)
        others = [site for site in sites.values() if site is not first]

        end(first)
        killed = time.monotonic()
        before = [len(site.rounds()) for site in others]
        sites.until(
            lambda: all(len(site.rounds()) >= had + 2 for site, had in zip(others, before, strict=True)), "rounds go on"
        )
        print(f"two rounds more at both others {time.monotonic() - killed:.1f} s after the leader's death")
        begun = [entry for entry in others[0].entries() if isinstance(entry, TermBegun)]
        assert begun[-1].site in [site.name for site in others]
        sites.until(
            lambda: (
                next(one.site for one in reversed(others[0].entries()) if isinstance(one, TermBegun))
                == leader_of(etcd.address())
            ),
            "the journal and etcd name the same leader",
        )

        counted = others[0].listed(first.name)
        first.start()
        sites.until(lambda: others[0].listed(first.name) >= counted + 2, "the killed site counts again")
        # The agent of the present leader alone dies: its ranks train on, and it or another one leads.
        present = leader_of_all(etcd.address(), sites)
        present.kill_agent()
        present.start_agent()
        counts = {name: first.listed(name) for name in sites}
        sites.until(lambda: all(first.listed(name) >= had + 2 for name, had in counts.items()), "all count again")

        assert_one_chain(etcd.address(), sites.values())
        entries = answered(lambda: [*EtcdJournal(Etcd(etcd.address())).read()])
        rounds = [entry for entry in entries if isinstance(entry, Round)]
        assert any(entry.base for entry in rounds[-10:])  # sites said equal digests
        assert not any("other bits" in site.text() for site in sites.values())


def test_etcd_is_away_for_a_while(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), ("a", "b"), etcd.url()) as sites,
    ):
        a, b = sites.values()
        for site in sites.values():
            site.start()
        sites.until(lambda: all(a.listed(name) >= 2 for name in "ab"), "both count")
        etcd.kill()
        sites.until(lambda: all(f"waiting for {etcd.url()}" in site.text() for site in sites.values()), "both say so")
        head = len(a.entries())
        assert a.rank is not None
        assert a.rank.poll() is None
        etcd.start()
        counts = {name: b.listed(name) for name in sites}
        sites.until(lambda: all(b.listed(name) >= had + 2 for name, had in counts.items()), "both count again")
        assert len(a.entries()) > head
        # Who led leads on, but where it was stopped for longer than its lease.
        silent = any("leads no more" in site.text() for site in sites.values())
        assert silent or not any(isinstance(entry, TermBegun) for entry in a.entries())


@pytest.mark.slow
def test_a_leader_that_was_silent_for_too_long_gives_way(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), ("a", "b", "c"), etcd.url()) as sites,
    ):
        sites.start()
        first = leader_of_all(etcd.address(), sites)
        other = next(site for site in sites.values() if site is not first)
        with first.paused():
            before = len(other.rounds())
            sites.until(lambda: len(other.rounds()) >= before + 2, "rounds under another leader")
        counted = other.listed(first.name)
        sites.until(lambda: other.listed(first.name) >= counted + 2, "the former leader's site counts again")
        assert "leads no more" in first.text()
        assert_one_chain(etcd.address(), sites.values())


def test_a_site_joins_after_entries_were_deleted(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), journal=etcd.url()) as sites,
    ):
        a, b, c = sites.values()
        for site in (a, b):
            site.snapshot_s = 1.0
            site.start()
        sites.until(lambda: any(isinstance(entry, Kept) for entry in a.entries()), "a snapshot is kept")
        shared = answered(lambda: EtcdJournal(Etcd(etcd.address())))
        sites.until(lambda: answered(lambda: shared.first) > 0, "entries are deleted")
        c.start()
        sites.until(lambda: a.listed("c") >= 2, "the site that joined counts")
        assert c.state().sites["c"].standing is Standing.READY  # the leader has given it what etcd lacks
        first = leader_of_all(etcd.address(), sites)
        end(first)
        other = next(site for site in (a, b) if site is not first)
        counted = other.listed("c")
        sites.until(lambda: other.listed("c") >= counted + 2, "rounds go on under another leader")
        assert_one_chain(etcd.address(), (other, c))

        # Back to a snapshot, under another name.
        end(other)
        end(c)
        again = tmp_path / "again"
        command = ["snapshot", "restore", "--run-dir", str(other.folder), "--into", str(again)]
        told = subprocess.run(
            [warm_executable(), "-m", "geocomm", *command], env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
        assert "another name in --journal" in told.stdout
        other.folder, other.journal, other.lead = again, etcd.url("again"), True
        before = len(other.rounds())
        other.start()
        sites.until(lambda: len(other.rounds()) >= before + 2, "rounds go on from the snapshot")


def test_a_site_that_is_cut_off_from_etcd_alone_counts_on(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab"), journal=etcd.url()) as sites,
        relay_to_etcd(etcd, sites["b"]) as relay,
    ):
        a, b = sites.values()
        a.start()
        sites.until(lambda: leader_of(etcd.address()) == "a", "a leads")
        b.start()
        sites.until(lambda: a.listed("b") >= 2, "b counts")
        relay.cut()
        sites.until(lambda: f"waiting for {b.journal}" in b.text(), "b says so")
        b.kill_agent()
        b.start_agent()  # it follows the leader that it last knew
        counted = a.listed("b")
        sites.until(lambda: a.listed("b") >= counted + 2, "b counts on")
        assert "rounds stand still" not in a.text()


def test_a_leader_that_is_cut_off_from_etcd_follows_the_next_one(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), journal=etcd.url()) as sites,
        relay_to_etcd(etcd, sites["a"]) as relay,
    ):
        a, b, c = sites.values()
        a.start()
        sites.until(lambda: leader_of(etcd.address()) == "a", "a leads")
        for site in (b, c):
            site.start()
        sites.until(lambda: all(b.listed(name) >= 2 for name in sites), "all count")
        relay.cut()
        sites.until(lambda: leader_of(etcd.address()) in ("b", "c"), "another one leads")
        counts = {name: b.listed(name) for name in sites}
        sites.until(
            lambda: all(b.listed(name) >= had + 2 for name, had in counts.items()), "all count, the cut one too"
        )
        assert "another site leads since term" in a.text()
        assert_one_chain(etcd.address(), sites.values())
        relay.mend()
        end(next(site for site in (b, c) if site.name == leader_of(etcd.address())))
        sites.until(lambda: leader_of(etcd.address()) in ("a", "b", "c"), "one of the others leads")
        counted = a.listed("a")
        sites.until(lambda: a.listed("a") >= counted + 2, "rounds go on")
        assert_one_chain(etcd.address(), sites.values())


def test_a_translated_address_leads_and_who_cannot_be_dialed_does_not(tmp_path: Path) -> None:
    with EtcdServers(tmp_path) as etcd, supervised(tmp_path, "ab", journal=etcd.url()) as run:
        a, b = run.sites.values()
        with Relay(Address.parse(a.listen)) as translated:
            a.address = str(translated.address)
            b.may_lead = False
            run.start("b")
            run.until(lambda: "nobody leads, and this site may not" in b.text(), "b waits")
            leader = run.start("a")
            run.until(lambda: all(b.listed(name) >= 2 for name in "ab"), "both count")
            said = leading(etcd.address())
            assert said is not None
            assert (said.site, said.address) == ("a", a.address)
            leader.kill()
            run.until(lambda: not leader_of(etcd.address()), "its lease has run out")
            run.until(lambda: f"waiting for the leader at {a.address}" in b.text(), "b says so, and does not lead")
            counted = b.listed("a")
            run.start("a")
            run.until(lambda: b.listed("a") >= counted + 2, "both count again")
            assert_one_chain(etcd.address(), run.sites.values())


def test_a_run_goes_back_from_etcd_to_the_hub(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), journal=etcd.url()) as sites,
    ):
        sites.start()
        first = leader_of_all(etcd.address(), sites)
        end(first)
        sites.until(lambda: leader_of(etcd.address()) not in ("", first.name), "another one leads")
        first.start()
        counted = first.listed(first.name)
        sites.until(lambda: first.listed(first.name) >= counted + 2, "all count")
        for site in sites.values():
            end(site)
        before = [entry.hash for entry in min((site.entries() for site in sites.values()), key=len)]
    hub = first.listen
    with sites:
        for site in sites.values():
            site.journal, site.leader = "", hub
            site.start()
        counts = {name: first.listed(name) for name in sites}
        sites.until(lambda: all(first.listed(name) >= had + 2 for name, had in counts.items()), "all count")
        assert [entry.hash for entry in first.entries()][: len(before)] == before


def test_a_machine_without_ranks_stands_by(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abm"), journal=etcd.url()) as sites,
    ):
        a, b, machine = sites.values()
        b.may_lead = False
        a.start()
        sites.until(lambda: leader_of(etcd.address()) == "a", "a leads")
        b.start()
        machine.start_agent(ranks=False)
        sites.until(lambda: a.listed("b") >= 2, "b counts")
        sites.until(lambda: len(machine.rounds()) >= 2, "the machine follows")
        end(a)
        counted = b.listed("b")
        sites.until(lambda: b.listed("b") >= counted + 2, "rounds go on")
        assert leader_of(etcd.address()) == "m"
        a.start()
        counted = b.listed("a")
        sites.until(lambda: b.listed("a") >= counted + 2, "a counts again")
        assert set(b.state().sites) == {"a", "b"}
        assert_one_chain(etcd.address(), sites.values())


def test_a_machine_that_stood_by_before_the_first_site_came_is_no_member_and_leads_no_empty_run(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abm"), journal=etcd.url()) as sites,
    ):
        a, b, machine = sites.values()
        a.start_agent()
        sites.until(lambda: leader_of(etcd.address()) == "a", "a leads")
        machine.start_agent(ranks=False)
        sites.until(lambda: (machine.folder / "run.json").exists(), "the machine follows")
        time.sleep(2)
        a.start_rank()
        b.start()
        sites.until(lambda: a.listed("b") >= 2, "b counts")
        assert set(a.state().sites) == {"a", "b"}
        b.leave()
        sites.until(lambda: a.state().sites["b"].standing is Standing.LEFT, "b has left")
        a.leave()
        assert machine.agent is not None
        agent = machine.agent
        sites.until(lambda: agent.poll() is not None, "the machine ends with the run")
        assert machine.state().ended
