"""A run whose journal is in etcd: real servers, real sites. Whoever leads may go, and nobody acts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from geocomm.elastic.etcd import Election, Etcd, EtcdAddress, EtcdJournal, LeaderSaid
from geocomm.journal.entries import Round, TermBegun, hash_of
from support.elastic_sites import ElasticSite, ElasticSites
from support.etcd_servers import EtcdServers, needs_etcd
from support.hub_support import make_keys

pytestmark = [pytest.mark.timeout(240), needs_etcd]


def end(site: ElasticSite) -> None:
    site.kill_agent()
    site.kill_rank()


def leader_of(address: EtcdAddress) -> str:
    found = Election(Etcd(address), LeaderSaid(site="x", store="f" * 32, address="")).leader()
    return "" if found is None else found.said.site


def test_another_site_takes_over_by_itself(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), ("a", "b", "c"), etcd.url()) as sites,
    ):
        sites.start()
        first = sites[leader_of(etcd.address())]
        others = [site for site in sites.values() if site is not first]

        end(first)
        killed = time.monotonic()
        before = [len(site.rounds()) for site in others]
        sites.until(
            lambda: all(len(site.rounds()) >= had + 2 for site, had in zip(others, before, strict=True)), "rounds go on"
        )
        print(f"two rounds more at both others {time.monotonic() - killed:.1f} s after the leader's death")
        begun = [entry for entry in others[0].entries() if isinstance(entry, TermBegun)]
        assert begun[-1].site == leader_of(etcd.address()) in [site.name for site in others]

        counted = others[0].listed(first.name)
        first.start()
        sites.until(lambda: others[0].listed(first.name) >= counted + 2, "the killed site counts again")
        # The agent of the present leader alone dies: its ranks train on, and it or another one leads.
        sites[begun[-1].site].kill_agent()
        sites[begun[-1].site].start_agent()
        counts = {name: first.listed(name) for name in sites}
        sites.until(lambda: all(first.listed(name) >= had + 2 for name, had in counts.items()), "all count again")

        shared = EtcdJournal(Etcd(etcd.address()), 0)
        chain = [hash_of(entry) for entry in shared.read()]
        for site in sites.values():
            own = [hash_of(entry) for entry in site.entries()]
            assert own == chain[: len(own)]
        rounds = [entry for entry in shared.read() if isinstance(entry, Round)]
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
        assert not any(isinstance(entry, TermBegun) for entry in a.entries())


@pytest.mark.slow
def test_a_leader_that_was_silent_for_too_long_gives_way(tmp_path: Path) -> None:
    with (
        EtcdServers(tmp_path) as etcd,
        ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), ("a", "b", "c"), etcd.url()) as sites,
    ):
        sites.start()
        first = sites[leader_of(etcd.address())]
        other = next(site for site in sites.values() if site is not first)
        with first.paused():
            before = len(other.rounds())
            sites.until(lambda: len(other.rounds()) >= before + 2, "rounds under another leader")
        counted = other.listed(first.name)
        sites.until(lambda: other.listed(first.name) >= counted + 2, "the former leader's site counts again")
        assert "leads no more" in first.text()
        chain = [hash_of(entry) for entry in EtcdJournal(Etcd(etcd.address()), 0).read()]
        own = [hash_of(entry) for entry in first.entries()]
        assert own == chain[: len(own)]
        assert not list(first.folder.glob("journal-*.jsonl"))  # nothing had to be set aside
