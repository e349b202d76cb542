"""Sites meet at a hub whatever its name leads to, and whatever NAT is before it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.security.key_folder import Keys
from support.hub_support import make_keys
from support.net_spaces import NetSpaces, net_spaces, outcome, two_nats
from support.wan_support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

Outcomes = list[tuple[int, str]]


def meet(nets: NetSpaces, folder: Path, hub: str, *at_hub: str, outer: bool = False, **environment: str) -> Outcomes:
    """The sites a, which has the hub, and b, once; status and output of each. outer: they say their outer addresses."""
    keys = make_keys(folder / "keys")
    nodes: list[subprocess.Popen[str]] = []
    for node, site in enumerate("ab"):
        here = at_hub if site == "a" else ()
        torchrun = ["--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1", "-m", "support.net_rank"]
        run = ["run", "--hub", hub, "--wait", "60", "--keys", str(keys[site].folder), *here, "--", *torchrun]
        if outer:
            environment |= {"GEOCOMM_ADDRESS": f"198.51.100.{1 + node}", "GEOCOMM_PORT": "29600"}
        nodes.append(nets.geocomm(site, *run, **environment))
    return [outcome(node, 150) for node in nodes]


def check_meeting(nets: NetSpaces, folder: Path, hub: str, *at_hub: str, outer: bool = False) -> None:
    done = meet(nets, folder, hub, *at_hub, outer=outer)
    assert [status for status, _ in done] == [0, 0], "".join(text for _, text in done)
    assert all("sum=3.0" in text for _, text in done)


def test_hub_whose_own_name_is_a_loopback_address_listens_at_all(tmp_path: Path) -> None:
    with net_spaces() as nets:
        nets.add("a", "127.0.1.1 alpha")
        nets.add("b", "10.0.0.1 alpha")
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        check_meeting(nets, tmp_path, "alpha:29400")


@pytest.mark.parametrize("order", [("fd00:1::1", "10.0.0.1"), ("10.0.0.1", "fd00:1::1")])
def test_hub_with_a_family_that_a_site_lacks_listens_at_both(tmp_path: Path, order: tuple[str, str]) -> None:
    with net_spaces() as nets:
        for name in "ab":
            nets.add(name, "\n".join(f"{address} alpha" for address in order))
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        nets.add("c")
        nets.link("a", "c", ("fd00:1::1/64", "fd00:1::2/64"))
        nets.check("b", "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        check_meeting(nets, tmp_path, "alpha:29400")


def test_machines_without_ipv6_meet(tmp_path: Path) -> None:
    with net_spaces() as nets:
        for name in "ab":
            nets.add(name, "10.0.0.1 alpha")
            nets.check(name, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        check_meeting(nets, tmp_path, "alpha:29400")


def test_machines_without_ipv4_meet(tmp_path: Path) -> None:
    with net_spaces() as nets:
        for name in "ab":
            nets.add(name, "fd00:1::1 alpha")
        nets.link("a", "b", ("fd00:1::1/64", "fd00:1::2/64"))
        check_meeting(nets, tmp_path, "alpha:29400")


@pytest.mark.parametrize("hairpin", [False, True])
def test_hub_behind_a_nat_is_reached_by_its_own_node(tmp_path: Path, hairpin: bool) -> None:
    with net_spaces(nat=True) as nets:
        two_nats(nets, hairpin=hairpin)
        check_meeting(nets, tmp_path, "198.51.100.1:29400", "--listen", "0.0.0.0:29400", outer=True)


def test_equal_private_addresses_are_refused_with_the_remedy(tmp_path: Path) -> None:
    with net_spaces(nat=True) as nets:
        two_nats(nets)
        done = meet(nets, tmp_path, "198.51.100.1:29400", "--listen", "0.0.0.0:29400", GEOCOMM_PORT="29600")
        assert all(status != 0 for status, _ in done)
        assert all("10.0.0.5:29600" in text and "GEOCOMM_ADDRESS" in text for _, text in done)


def test_hub_that_never_answers_is_waited_for_with_what_each_address_says(tmp_path: Path) -> None:
    with net_spaces() as nets:
        nets.add("b", "fd00:1::1 alpha\n10.0.0.1 alpha")
        nets.add("a")
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        keys = make_keys(tmp_path / "keys")
        run = ["run", "--hub", "alpha:29400", "--wait", "1", "--keys", str(keys["b"].folder), "--", "--nnodes", "2"]
        status, text = outcome(nets.geocomm("b", *run, "--node-rank", "1", "-m", "support.net_rank"), 60)
        assert status != 0
        assert "10.0.0.1: " in text
        assert "fd00:1::1: " in text


def test_mtu_black_hole_is_named_by_doctor() -> None:
    with net_spaces(nat=True) as nets:
        for name in ("a", "r", "s", "b"):
            nets.add(name)
        nets.link("a", "r", ("10.0.1.2/24", "10.0.1.1/24"))
        left, right = nets.link("r", "s", ("10.0.2.1/24", "10.0.2.2/24"))
        nets.link("s", "b", ("10.0.3.1/24", "10.0.3.2/24"))
        nets.ip("a", "route add default via 10.0.1.1")
        nets.ip("b", "route add default via 10.0.3.1")
        nets.ip("r", "route add 10.0.3.0/24 via 10.0.2.2")
        nets.ip("s", "route add 10.0.1.0/24 via 10.0.2.1")
        for name, end in (("r", left), ("s", right)):
            nets.forward(
                name,
                "add table ip f",
                "add chain ip f out { type filter hook output priority 0; }",
                "add rule ip f out icmp type destination-unreachable drop",
            )
            nets.ip(name, f"link set {end} mtu 1280")
        nets.geocomm("b", "doctor", "--listen", "29400")
        wait_until(lambda: nets.is_listening("b", 29400), "the other doctor answers")
        status, text = outcome(nets.geocomm("a", "doctor", "--peer", "10.0.3.2:29400"), 120)
        assert status == 1
        assert "large data does not pass" in text
        assert "tcp_mtu_probing" in text
        assert "firewalls and the NAT" not in text


def run_elastic(nets: NetSpaces, site: str, keys: Keys, folder: Path, hub: str, **named: str) -> subprocess.Popen[str]:
    ranks = ["--nproc-per-node", "1", "-m", "support.elastic_training", str(folder), "100000", "0.05", "20"]
    run = ["run", "--elastic", "--hub", hub, "--keys", str(keys.folder), "--run-dir", str(folder / f"run-{site}")]
    return nets.geocomm(site, *run, "--", *ranks, **named)


def steps_of(folder: Path, site: str) -> int:
    file = folder / f"{site}.0.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.mark.slow
def test_elastic_site_whose_own_name_nobody_knows_trains(tmp_path: Path) -> None:
    with net_spaces() as nets:
        nets.add("a")
        nets.add("b")
        nets.link("a", "b", ("10.0.0.1/24", "10.0.0.2/24"))
        keys = make_keys(tmp_path / "keys")
        run = run_elastic(nets, "a", keys["a"], tmp_path, "10.0.0.1:29400", hostname="nowhere")
        wait_until(lambda: steps_of(tmp_path, "a") > 5, "the site trains", 60)
        run.terminate()
        assert outcome(run, 60)[0] == 0


@pytest.mark.slow
def test_elastic_run_over_ipv6_alone_goes_on_under_a_promoted_site(tmp_path: Path) -> None:
    from geocomm.elastic.journal.entries import Round
    from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal

    def rounds_of_both(after: int = 0) -> int:
        try:
            journal = SqliteJournal(RunDir(tmp_path / "run-b").journal, read_only=True)
        except NoJournalError:
            return 0
        try:
            rounds = [entry for entry in journal.read(after) if isinstance(entry, Round)]
            return sum({member.site for member in entry.members} == {"b", "c"} for entry in rounds)
        finally:
            journal.close()

    with net_spaces() as nets:
        for name in ("a", "b", "c", "switch"):
            nets.add(name, "fd00:1::1 alpha")
        for number, name in enumerate("abc", 1):
            nets.link(name, "switch", (f"fd00:{number}::1/64", f"fd00:{number}::2/64"))
            nets.ip(name, f"route add default via fd00:{number}::2")
        nets.forward("switch")
        keys = make_keys(tmp_path / "keys", "abc")
        hub = "alpha:29400"
        runs = {site: run_elastic(nets, site, keys[site], tmp_path, hub) for site in "abc"}
        wait_until(lambda: all(steps_of(tmp_path, site) > 20 for site in "abc"), "all train", 100)
        nets.kill("a")
        promoted = nets.geocomm("b", "members", "promote", "--run-dir", str(tmp_path / "run-b"))
        status, text = outcome(promoted, 60)
        assert status == 0, text
        assert "[fd00:2::1]:29400" in text
        wait_until(lambda: rounds_of_both() >= 3, "rounds of the two that are left", 60)
        for site in "bc":
            runs[site].terminate()
        time.sleep(0.1)
