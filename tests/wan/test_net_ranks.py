"""Ranks of two sites find each other whatever their names, families and firewalls are, whoever of them dials."""

from __future__ import annotations

import sys

import pytest

from support.net_spaces import NetSpaces, net_spaces, outcome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

TRIES = 3
"""Which of two processes dials is drawn at each start."""


def start(nets: NetSpaces, master: str, **environment: str) -> list[tuple[int, str]]:
    """Two ranks, at the sites and machines a and b, once; status and output of each."""
    common = {"MASTER_ADDR": master, "MASTER_PORT": "29500", "WORLD_SIZE": "2", "GEOCOMM_SECURITY": "insecure"}
    common |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "GEOCOMM_LINK_DEADLINE": "30"} | environment
    ranks = [
        nets.start(site, sys.executable, "-m", "support.net_rank", RANK=str(rank), GEOCOMM_SITE=site, **common)
        for rank, site in enumerate("ab")
    ]
    return [outcome(rank, 120) for rank in ranks]


def check_every_start(nets: NetSpaces, master: str, **environment: str) -> list[str]:
    """All succeed; what the ranks of the last one advertised."""
    for _ in range(TRIES):
        done = start(nets, master, **environment)
        assert [status for status, _ in done] == [0, 0], "".join(text for _, text in done)
        assert all("sum=3.0" in text for _, text in done)
    return [text.partition("hosts=")[2].split()[0] for _, text in done]


def test_master_whose_own_name_is_a_loopback_address_is_dialled_at_another() -> None:
    with net_spaces() as nets:
        nets.add("a", "127.0.1.1 alpha")  # as Debian's installer writes it
        nets.add("b", "10.0.0.1 alpha")
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        assert check_every_start(nets, "alpha") == ["10.0.0.1,127.0.0.1", "10.0.0.2"]


def test_family_that_one_site_lacks_is_no_matter() -> None:
    names = "fd00:1::1 alpha\n10.0.0.1 alpha"
    with net_spaces() as nets:
        nets.add("a", names)
        nets.add("b", names)
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        nets.add("c")  # where the IPv6 addresses of a lead
        nets.link("a", "c", ("fd00:1::1/64", "fd00:1::2/64"))
        nets.check("b", "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        assert check_every_start(nets, "alpha")[0] == "fd00:1::1,10.0.0.1"


def test_family_that_is_routed_nowhere_is_passed_over() -> None:
    names = "fd00:1::1 alpha\n10.0.0.1 alpha"
    with net_spaces(nat=True) as nets:
        for name in "ab":
            nets.add(name, names)
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"), ("fd00:1::1/64", "fd00:1::2/64"))
        for name in "ab":  # torch's store gets through
            nets.forward(name, "add table ip6 f", "add chain ip6 f in { type filter hook input priority 0; }",
                         "add rule ip6 f in tcp dport 29600-29699 drop")  # fmt: skip
        check_every_start(nets, "alpha", GEOCOMM_PORT="29600")


def test_ipv6_alone_is_enough() -> None:
    with net_spaces() as nets:
        for name in "ab":
            nets.add(name)
        nets.link("a", "b", ("fd00:1::1/64", "fd00:1::2/64"))
        assert check_every_start(nets, "fd00:1::1") == ["fd00:1::1", "fd00:1::2"]


@pytest.mark.parametrize("closed", ["a", "b"])
def test_one_end_that_can_be_dialled_is_enough(closed: str) -> None:
    with net_spaces(nat=True) as nets:
        for name in "ab":
            nets.add(name)
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        nets.forward(closed, "add table ip f", "add chain ip f in { type filter hook input priority 0; }",
                     "add rule ip f in tcp dport 29600-29699 drop")  # fmt: skip
        check_every_start(nets, "10.0.0.1", GEOCOMM_PORT="29600")
