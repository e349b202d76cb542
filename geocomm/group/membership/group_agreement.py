"""The roll call of a process group: who is in it, and whether its ranks fit together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from geocomm.core.addresses import is_loopback
from geocomm.core.errors import InvalidArgumentError, OperationTimeoutError, VersionMismatchError
from geocomm.group.membership import roll_call
from geocomm.group.membership.rank_record import RankInfo, from_record, ranks_text, sides_text
from geocomm.group.membership.roll_call import Absent, differences

if TYPE_CHECKING:
    from torch.distributed import Store

_NAME = "geocomm"


def publish(store: Store, own: RankInfo) -> None:
    """Tell the other ranks of the group."""
    roll_call.publish(store, _NAME, own.rank, asdict(own))


def exchange(store: Store, global_ranks: list[int], own: RankInfo, timeout: timedelta) -> list[RankInfo]:
    """Publish `own` and read the records of all ranks of the group, in rank order.

    Raises OperationTimeoutError naming the ranks that did not come within `timeout`.
    """
    try:
        records = roll_call.exchange(store, _NAME, own.rank, len(global_ranks), asdict(own), timeout)
    except Absent as absent:
        late = ranks_text([global_ranks[rank] for rank in absent.ranks])
        raise OperationTimeoutError(
            f"rank {own.global_rank} waited {timeout.total_seconds():g} s for {late} to join a group of "
            f"{len(global_ranks)}; check that they run, and that all ranks create their process groups in the same "
            "order"
        ) from absent
    return [from_record(RankInfo, record) for record in records]


def check(infos: list[RankInfo]) -> None:
    """Raise what is wrong with the group as a whole: every rank sees the same records and comes to the same verdict."""
    check_joined(infos)
    _check_processes(infos)
    _check_equal(infos, "version of {}", [info.versions for info in infos], VersionMismatchError)
    if any(info.site is None for info in infos) and any(info.site is not None for info in infos):
        without = [info.global_rank for info in infos if info.site is None]
        raise InvalidArgumentError(
            f"GEOCOMM_SITE is set on some ranks but not on {ranks_text(without)}; set it on every rank, or on none for "
            "one site"
        )
    _check_keys(infos)
    if len({info.site for info in infos}) > 1:
        unreachable = sorted({info.site or "" for info in infos if info.outbound_only})
        if len(unreachable) > 1:
            raise InvalidArgumentError(
                f"sites {', '.join(unreachable)} are outbound-only (GEOCOMM_OUTBOUND_ONLY), and two such sites cannot "
                "connect: one site of a job can be. Let the others be dialled (GEOCOMM_PORT, GEOCOMM_ADDRESS, "
                "forwarded ports)"
            )
        _check_addresses(infos)
        _check_equal(infos, "option {}", [info.agreed for info in infos], InvalidArgumentError)
        codecs = [{"set of codecs": ", ".join(info.codecs)} for info in infos]
        _check_equal(infos, "{}", codecs, VersionMismatchError)


def _check_keys(infos: list[RankInfo]) -> None:
    """Check that ranks which count as one site, for want of a name, have no keys of several."""
    ranks_of: dict[str, list[int]] = {}
    for info in infos:
        ranks_of.setdefault(info.keys_site, []).append(info.global_rank)
    if len(ranks_of.keys() - {""}) > 1:
        sides = "; ".join(
            f"{ranks_text(ranks)}: {f'site {site}' if site else 'none'}" for site, ranks in ranks_of.items()
        )
        raise InvalidArgumentError(
            f"the ranks have keys of several sites ({sides}), and GEOCOMM_SITE is not set, so all would count as one "
            "site, in plaintext. Set GEOCOMM_SITE on every rank to the site of its keys. If the ranks are at one site, "
            "give all of them the keys of that one (GEOCOMM_KEYS)"
        )


def check_joined(infos: list[RankInfo]) -> None:
    """Raise the error of a rank that cannot take part."""
    failed = [info for info in infos if info.error]
    if failed:
        raise InvalidArgumentError(
            f"{ranks_text([info.global_rank for info in failed])} could not join the process group; "
            f"rank {failed[0].global_rank}{f' (site {failed[0].site})' if failed[0].site else ''}: {failed[0].error}"
        )


def _check_processes(infos: list[RankInfo]) -> None:
    """Check that no process is two ranks: connections, numbers of operations and counters are a process's own."""
    by_process: dict[str, list[int]] = {}
    for info in infos:
        by_process.setdefault(info.process, []).append(info.global_rank)
    together = [ranks for process, ranks in by_process.items() if process and len(ranks) > 1]
    if together:
        raise InvalidArgumentError(
            f"{ranks_text(together[0])} are threads of one process, and a process can be one rank of a geocomm group. "
            "Start a process for each rank, as torchrun does; for threads take another backend"
        )


# spec operations 1.2: "ranks MUST NOT form a group if one that others dial has loopback addresses alone"
def _check_addresses(infos: list[RankInfo]) -> None:
    """Check that no rank has an address which leads ranks of other sites, on other machines, back to their own."""
    with_address: dict[tuple[str, ...], RankInfo] = {}
    for info in infos:
        if info.outbound_only or not info.hosts:
            continue
        if all(map(is_loopback, info.hosts)):
            if other := next((one for one in infos if _are_apart(info, one)), None):
                raise InvalidArgumentError(
                    f"{info.description} has a loopback address for the other sites, and rank {other.global_rank} "
                    f"(site {other.site}) is on another machine. Set GEOCOMM_ADDRESS on rank {info.global_rank} to an "
                    "address that the other sites can dial, or let the ranks meet at one (MASTER_ADDR, --hub)"
                )
        elif info.port and _are_apart(info, other := with_address.setdefault((*info.hosts, str(info.port)), info)):
            raise InvalidArgumentError(
                f"{other.description} and {info.description} are on different machines and have the same address, so "
                "each would dial itself. Behind NAT, forward GEOCOMM_PORT, and set GEOCOMM_ADDRESS to the outer address"
            )


def _are_apart(info: RankInfo, other: RankInfo) -> bool:
    """Whether they are at two sites, and known to be on two machines."""
    return info.site != other.site and bool(info.machine and other.machine) and info.machine != other.machine


def _check_equal(infos: list[RankInfo], what: str, values: Sequence[Mapping[str, Any]], error: type[Exception]) -> None:
    for difference in differences(values)[:1]:
        sides = "; ".join(
            f"{sides_text(infos, numbers)}: {infos[numbers[0]].written.get(difference.name, value)}"
            for value, numbers in difference.sides
        )
        raise error(f"the ranks differ in {what.format(difference.name)}: {sides}. Make it the same on all ranks")
