"""The roll call of a process group: what the ranks' records lead to, the same on every rank."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import pytest
import torch.distributed as dist

from geocomm.core.addresses import Address, addresses_of, source_addresses
from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, VersionMismatchError
from geocomm.group.membership.group_agreement import check, exchange, publish
from geocomm.group.membership.own_address import own_address, remember_hub
from geocomm.group.membership.rank_record import RankInfo, from_record, layout_of, own_versions, ranks_text, sites_of

VERSIONS = {"geocomm": "1.0", "protocol": "1", "torch": "2.13"}


def infos(*sites: str | None, **changes: object) -> list[RankInfo]:
    """Records of ranks that agree; global ranks are 10, 11, …"""
    return [
        RankInfo(
            rank,
            10 + rank,
            site,
            ["127.0.0.1"],
            4000 + rank,
            versions=VERSIONS,
            codecs=["none"],
            agreed={"codec": "none"},
        )
        for rank, site in enumerate(sites)
    ]


def changed(ranks: list[RankInfo], rank: int, **changes: object) -> list[RankInfo]:
    return [replace(info, **changes) if info.rank == rank else info for info in ranks]


def test_check_of_ranks_without_a_site_and_with_keys_of_several_names_both_ways_out() -> None:
    ranks = [replace(info, keys_site=site) for info, site in zip(infos(None, None, None), ["a", "b", ""], strict=True)]
    with pytest.raises(InvalidArgumentError) as refused:
        check(ranks)
    for part in ("rank 10: site a", "rank 11: site b", "rank 12: none", "Set GEOCOMM_SITE", "GEOCOMM_KEYS"):
        assert part in str(refused.value)
    check([replace(info, keys_site="a") for info in ranks])  # one site's rank by rank


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ([None, None], ([0, 0], [""])),
        (["a"], ([0], ["a"])),
        (["b", "a", "b", "c"], ([0, 1, 0, 2], ["b", "a", "c"])),
    ],
)
# spec operations 1.3: "Sites MUST be numbered in order of their lowest rank."
def test_sites_are_numbered_by_their_lowest_rank(
    sites: list[str | None], expected: tuple[list[int], list[str]]
) -> None:
    ranks = infos(*sites)
    check(ranks)
    assert sites_of(ranks) == expected


def test_check_with_sites_on_some_ranks_lists_the_others() -> None:
    with pytest.raises(InvalidArgumentError, match="ranks 11, 13;"):
        check(infos("a", None, "b", None))


@pytest.mark.parametrize("name", VERSIONS)
def test_check_with_another_version_names_both_sides(name: str) -> None:
    ranks = changed(infos("a", "a", "a"), 1, versions=VERSIONS | {name: "0.9"})
    with pytest.raises(VersionMismatchError) as caught:
        check(ranks)
    for mention in (name, "0.9", VERSIONS[name], "rank 11", "ranks 10, 12"):
        assert mention in str(caught.value)


def test_check_with_another_option_across_sites_names_both_sides() -> None:
    ranks = changed(infos("a", "b"), 0, agreed={"codec": "int8"})
    with pytest.raises(InvalidArgumentError) as caught:
        check(ranks)
    for mention in ("codec", "site a: int8", "site b: none"):
        assert mention in str(caught.value)


def test_check_names_ranks_of_a_site_that_differ_and_what_was_written() -> None:
    ranks = changed(infos("a", "b", "b"), 1, agreed={"codec": "int4:round=stochastic"}, written={"codec": "int4"})
    with pytest.raises(InvalidArgumentError, match=r"site a, rank 12 \(site b\): none; rank 11 \(site b\): int4\. "):
        check(ranks)


def test_check_with_another_option_inside_one_site_is_no_matter() -> None:
    check(changed(infos("a", "a"), 0, agreed={"codec": "int8"}))


def test_check_with_another_set_of_codecs_across_sites_is_a_version_mismatch() -> None:
    with pytest.raises(VersionMismatchError):
        check(changed(infos("a", "b"), 0, codecs=["none", "int3"]))


def test_check_with_a_rank_that_failed_tells_why() -> None:
    failed = RankInfo(1, 11, error="InvalidArgumentError: no such codec")
    with pytest.raises(InvalidArgumentError, match=r"rank 11.*no such codec"):
        check([infos("a")[0], failed])


def test_check_with_two_ranks_of_one_process_names_them_and_no_others() -> None:
    ranks = [replace(info, process=process) for info, process in zip(infos("a", "b", "b"), "pqq", strict=True)]
    with pytest.raises(InvalidArgumentError, match="ranks 11, 12 are threads of one process"):
        check(ranks)
    check([replace(info, process=str(info.rank)) for info in ranks])


def _on_machines(ranks: list[RankInfo], *machines: str) -> list[RankInfo]:
    return [replace(info, presence={"machine": machine}) for info, machine in zip(ranks, machines, strict=True)]


# spec operations 1.2: "ranks MUST NOT form a group if one that others dial has loopback addresses alone"
def test_check_with_a_loopback_address_between_machines_names_the_rank_and_the_remedy() -> None:
    ranks = changed(infos("a", "b", "b"), 1, hosts=["10.0.0.2"])
    with pytest.raises(InvalidArgumentError, match=r"rank 10 .*127\.0\.0\.1:4000.*GEOCOMM_ADDRESS on rank 10"):
        check(_on_machines(ranks, "x", "y", "x"))
    check(_on_machines(ranks, "x", "x", "x"))
    check(_on_machines(changed(ranks, 0, hosts=["10.0.0.1", "127.0.0.1"]), "x", "y", "x"))
    check(_on_machines(changed(ranks, 0, outbound_only=True), "x", "y", "x"))


# spec operations 1.2: "or if two have the same hosts and port."
def test_check_with_one_address_on_two_machines_names_both_ranks() -> None:
    ranks = [replace(info, hosts=["10.0.0.5"], port=29600) for info in infos("a", "b")]
    with pytest.raises(InvalidArgumentError, match=r"rank 10 .*rank 11 .*GEOCOMM_ADDRESS"):
        check(_on_machines(ranks, "x", "y"))
    check(_on_machines(changed(ranks, 1, port=29601), "x", "y"))  # two machines behind one NAT


def _exchange_all(store: dist.Store, ranks: list[RankInfo], order: list[int]) -> list[list[RankInfo]]:
    """What each rank reads; they come in that order, a tenth of a second apart."""

    def come(rank: int) -> list[RankInfo]:
        time.sleep(0.1 * order.index(rank))
        return exchange(store, [info.global_rank for info in ranks], ranks[rank], timedelta(seconds=20))

    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(come, range(len(ranks))))


def test_exchange_gives_the_records_in_rank_order() -> None:
    ranks = infos("a", "b", "c")
    assert _exchange_all(dist.HashStore(), ranks, [2, 1, 0]) == [ranks] * 3


def test_exchange_with_a_rank_of_another_version_reads_its_record_and_check_refuses_it() -> None:
    store = dist.HashStore()
    own = replace(infos("a", "b")[0], versions=own_versions())
    later = asdict(infos("a", "b")[1]) | {"planet": "mars", "versions": own_versions() | {"rank records": "later"}}
    del later["token"]
    store.set("geocomm/rank/1", json.dumps(later))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(exchange, store, [10, 11], own, timedelta(seconds=20))
        store.wait(["geocomm/view/0"], timedelta(seconds=20))
        store.set("geocomm/view/1", store.get("geocomm/view/0"))
        read = reading.result()
    assert read[1].port == 4001
    with pytest.raises(VersionMismatchError, match="rank records"):
        check(read)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_exchange_over_a_store_with_records_of_ranks_that_are_gone_takes_none_of_them(order: list[int]) -> None:
    store = dist.HashStore()
    _exchange_all(store, changed(infos("a", "b", "c"), 0, port=1), [0, 1, 2])
    fresh = infos("a", "b", "c")
    for rank in range(3):
        fresh = changed(fresh, rank, port=100 + rank)
    assert _exchange_all(store, fresh, order) == [fresh] * 3


def test_exchange_with_an_old_record_of_a_rank_that_never_comes_names_it() -> None:
    store = dist.HashStore()
    ranks = infos("a", "b")
    _exchange_all(store, ranks, [0, 1])
    with pytest.raises(OperationTimeoutError, match="rank 11"):
        exchange(store, [10, 11], changed(ranks, 0, port=1)[0], timedelta(milliseconds=200))


def test_exchange_with_an_old_record_of_a_rank_that_fails_now_tells_why() -> None:
    store = dist.HashStore()
    ranks = infos("a", "b")
    _exchange_all(store, ranks, [0, 1])
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(exchange, store, [10, 11], changed(ranks, 0, port=1)[0], timedelta(seconds=20))
        publish(store, RankInfo(1, 11, error="InvalidArgumentError: no such codec"))
        assert read.result()[1].error


@dataclass
class Earlier:
    name: str
    size: int = 1


@dataclass
class Later:
    name: str
    size: int = 1
    colour: str = ""


def test_records_of_other_versions_are_read_as_far_as_they_are_known_and_told_apart() -> None:
    assert from_record(Earlier, asdict(Later("x", 2, "red"))) == Earlier("x", 2)
    assert from_record(Later, {"name": "x"}) == Later("x")
    assert layout_of(Earlier) != layout_of(Later)
    assert layout_of(Earlier) == layout_of(Earlier)
    with pytest.raises(VersionMismatchError, match="same version"):
        from_record(Earlier, {"colour": "red"})


def test_exchange_without_some_ranks_names_them() -> None:
    store = dist.HashStore()
    ranks = infos("a", "b", "c", "d")
    publish(store, ranks[1])
    with pytest.raises(OperationTimeoutError, match="ranks 12, 13") as caught:
        exchange(store, [10, 11, 12, 13], ranks[0], timedelta(milliseconds=50))
    assert isinstance(caught.value, TimeoutError)


def test_description_says_global_rank_site_and_address() -> None:
    assert infos("a", "b")[1].description == "rank 11 (site b, 127.0.0.1:4001)"


def test_ranks_text_of_many_ranks_stays_short() -> None:
    assert ranks_text([3]) == "rank 3"
    assert ranks_text([0, 2]) == "ranks 0, 2"
    assert ranks_text(list(range(100))).endswith("and 92 more")


@pytest.mark.parametrize("master", [None, "", "127.0.0.1", "localhost", "no-such-host.invalid"])
def test_own_address_without_a_route_elsewhere_is_loopback(monkeypatch: pytest.MonkeyPatch, master: str | None) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    if master is not None:
        monkeypatch.setenv("MASTER_ADDR", master)
    assert own_address() in ("127.0.0.1", "::1")


@pytest.mark.skipif(not source_addresses(addresses_of("::1", 9)), reason="no IPv6 here")
def test_own_address_is_that_of_the_route_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geocomm.group.membership.own_address._last", None)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GEOCOMM_HUB", "[::1]:29400")
    assert own_address() == "::1"
    remember_hub(Address("127.0.0.2", 29400))  # of init_method, which is nearer than the environment
    assert own_address() == "127.0.0.1"


def test_own_address_with_a_bad_hub_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geocomm.group.membership.own_address._last", None)
    monkeypatch.setenv("GEOCOMM_HUB", "nonsense")
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_HUB"):
        own_address()
