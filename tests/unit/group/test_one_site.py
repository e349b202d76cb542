"""Jobs whose ranks are all at one site: passed, warned of, or refused, by the machines and what is set."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from geocomm.core.addresses import Address
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import Options
from geocomm.group.membership.one_site import Scope, check_nodes, check_one_site, machine_id, own_presence
from geocomm.group.membership.own_address import remember_hub
from geocomm.group.membership.rank_record import Presence
from geocomm.observe.doctor.doctor_machine import Finding, State
from geocomm.observe.doctor.doctor_ranks import RankRecord, site_findings


def presences(sites: str | list[str | None], machines: str, *given: str, one_site: str = "") -> list[Presence]:
    """Of ranks 0, 1, …; machines: a letter for each; one_site: the numbers of ranks that declare it."""
    return [
        Presence(rank, site, machine, f"node-{machine}", list(given), str(rank) in one_site)
        for rank, (site, machine) in enumerate(zip(sites, machines, strict=True))
    ]


@pytest.mark.parametrize("site", ["a", None])
@pytest.mark.parametrize("given", ["GEOCOMM_KEYS", "GEOCOMM_CODEC", "a hub"])
def test_one_site_on_two_machines_with_an_option_for_sites_is_refused_with_the_fix(
    site: str | None, given: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_one_site(presences([site] * 3, "xxy", given), Scope.JOB)
    for mention in ("node-x: ranks 0, 1", "node-y: rank 2", given, "GEOCOMM_SITE", "GEOCOMM_ONE_SITE=1"):
        assert mention in str(caught.value)


def test_one_site_on_two_machines_that_an_option_of_one_rank_speaks_against_is_refused() -> None:
    ranks = presences("aa", "xy")
    ranks[1] = replace(ranks[1], given=["GEOCOMM_CODEC"])
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_CODEC is set"):
        check_one_site(ranks, Scope.JOB)


@pytest.mark.parametrize("scope", [Scope.JOB, Scope.UNKNOWN])
def test_one_site_on_two_machines_with_nothing_set_is_warned_of(scope: Scope) -> None:
    warning = check_one_site(presences([None, None], "xy"), scope)
    assert warning is not None
    for mention in ("node-x: rank 0", "node-y: rank 1", "PLAINTEXT", "GEOCOMM_SITE"):
        assert mention in warning


@pytest.mark.parametrize("scope", list(Scope))
@pytest.mark.parametrize(
    "ranks",
    [
        presences("aa", "xx", "GEOCOMM_KEYS"),
        presences("aab", "xyz", "GEOCOMM_KEYS"),
        presences("aa", "xy", "GEOCOMM_KEYS", one_site="01"),
        presences([None, None], "xy", "GEOCOMM_CODEC", one_site="01"),
        presences("a", "x", "a hub"),
    ],
    ids=["one machine", "two sites", "declared", "declared without a name", "one rank"],
)
def test_ranks_that_may_be_so_pass(ranks: list[Presence], scope: Scope) -> None:
    assert check_one_site(ranks, scope) is None


def test_one_site_that_some_ranks_declare_names_the_others() -> None:
    with pytest.raises(InvalidArgumentError, match=r"GEOCOMM_ONE_SITE=1 on rank 2$"):
        check_one_site(presences("aaa", "xyy", "GEOCOMM_SITE", one_site="01"), Scope.JOB)


def test_one_site_that_is_declared_in_a_job_of_several_is_refused() -> None:
    ranks = presences("ab", "xy", one_site="1")
    with pytest.raises(InvalidArgumentError, match=r"rank 1, but the job has the sites a, b"):
        check_one_site(ranks, Scope.JOB)
    assert check_one_site(ranks, Scope.UNKNOWN) is None


def test_part_of_a_job_may_be_at_one_site() -> None:
    assert check_one_site(presences("aa", "xy", "GEOCOMM_KEYS"), Scope.PART) is None


def test_perhaps_a_part_of_a_job_is_refused_only_without_a_name() -> None:
    assert "PLAINTEXT" in (check_one_site(presences("aa", "xy", "GEOCOMM_SITE"), Scope.UNKNOWN) or "")
    with pytest.raises(InvalidArgumentError):
        check_one_site(presences([None, None], "xy", "GEOCOMM_CODEC"), Scope.UNKNOWN)


def test_refusal_of_many_machines_stays_short() -> None:
    ranks = [Presence(rank, "a", str(rank), f"node-{rank}", ["GEOCOMM_SITE"]) for rank in range(100)]
    with pytest.raises(InvalidArgumentError, match="and 92 more machines") as caught:
        check_one_site(ranks, Scope.JOB)
    assert len(str(caught.value)) < 1000


def test_doctor_lists_the_machines_of_a_site_and_what_would_be_refused() -> None:
    def found(ranks: list[Presence]) -> dict[str, Finding]:
        records = [RankRecord(rank.rank, 0, rank.site or "local", "", 0, {}, {}, False, asdict(rank)) for rank in ranks]
        return {finding.name: finding for finding in site_findings(records)}

    several = found(presences("aab", "xyz", "GEOCOMM_KEYS"))
    assert list(several) == ["machines of site a"]
    assert several["machines of site a"].state == State.NOTE
    assert "node-x, node-y" in several["machines of site a"].value
    refused = found(presences("aa", "xy", "GEOCOMM_KEYS"))["sites"]
    assert refused.state == State.BAD
    assert "node-y: rank 1" in refused.value
    assert "GEOCOMM_ONE_SITE=1" in refused.fix
    assert found(presences([None, None], "xy"))["sites"].state == State.WARNING
    assert found(presences("aa", "xx", "GEOCOMM_KEYS")) == {}


def test_nodes_with_keys_of_one_site_are_refused_unless_that_is_declared() -> None:
    with pytest.raises(InvalidArgumentError, match=r"all 2 nodes have keys of site a.*GEOCOMM_ONE_SITE=1"):
        check_nodes(["a", "a"], one_site=False)
    check_nodes(["a", "a"], one_site=True)
    check_nodes(["a", "a", "b"], one_site=False)
    check_nodes(["a"], one_site=False)


def test_presence_lists_what_is_set_for_sites_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GEOCOMM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("geocomm.group.membership.own_address._last", None)
    own = own_presence(3, Options(threads=2, address="10.0.0.1", metrics_port=9400, preserve_inputs=True), "10.0.0.1")
    assert own == Presence(3, None, machine_id(), f"{socket.gethostname()} (10.0.0.1)", [], False)
    told = own_presence(3, Options(site="a", keys="/k", codec="int8", one_site=True), "10.0.0.1")
    assert told.given == ["GEOCOMM_SITE", "GEOCOMM_CODEC", "GEOCOMM_KEYS"]
    assert told.one_site
    remember_hub(Address("127.0.0.2", 29400))
    assert own_presence(3, Options(), "10.0.0.1").given == ["a hub"]


def test_machine_differs_by_boot_and_is_known_without_proc(tmp_path: Path) -> None:
    assert machine_id() == machine_id()
    boot = tmp_path / "sys/kernel/random"
    boot.mkdir(parents=True)
    without = machine_id(tmp_path)
    (boot / "boot_id").write_text("one\n")
    assert len({machine_id(), without, machine_id(tmp_path)}) == 3
    assert socket.gethostname() in without
