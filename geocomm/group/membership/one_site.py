"""A job whose ranks are all at one site: may it be, on the machines that they are on?

Inside a site Gloo and NCCL do everything: plaintext, and no codec. That is right for one cluster, and a leak where the
ranks are at distant places that were given one name by mistake, or none. No rank can tell a cluster from a mistake, so
where options ask for more than Gloo does, a job of one site on several machines has to be declared
(GEOCOMM_ONE_SITE=1).
"""

from __future__ import annotations

import enum
import os
import socket
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from geocomm.core.environment import hub_address
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import Options
from geocomm.group.membership.own_address import remembered_hub
from geocomm.group.membership.rank_record import Presence, ranks_text

_MOST_MACHINES_NAMED = 8


class Scope(enum.Enum):
    """What part of its job a process group is."""

    JOB = enum.auto()
    """All of it."""
    PART = enum.auto()
    """Some ranks of a job that was looked at as a whole."""
    UNKNOWN = enum.auto()
    """Perhaps a part, whose ranks are all at one site for good or at times: a site that has a name is believed."""


def own_presence(rank: int, options: Options, address: str) -> Presence:
    """The presence of this process; `address`: what others dial, for messages."""
    given = options.given_for_sites()
    if remembered_hub() or hub_address():
        given.append("a hub")
    name = f"{socket.gethostname()} ({address})"
    return Presence(rank, options.site, machine_id(), name, given, options.one_site)


def machine_id(proc: Path = Path("/proc")) -> str:
    """A name for this boot of the kernel, this network namespace and host name.

    Containers with networks of their own count as machines: what they send each other passes a network that geocomm
    does not see. The host name tells virtual machines apart that were resumed from one image.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    try:
        network = str(os.stat(proc / "self/ns/net").st_ino)
    except OSError:
        network = ""
    return "/".join((socket.gethostname(), boot, network))


def check_one_site(ranks: Sequence[Presence], scope: Scope) -> str | None:
    """What to warn of where all ranks of a group are at one site; None: of nothing. The same on every rank.

    Raises InvalidArgumentError where the group must not be.
    """
    if scope is Scope.PART:
        return None
    sites = sorted({rank.site or "" for rank in ranks})
    declared = [rank.rank for rank in ranks if rank.one_site]
    if len(sites) > 1:
        if scope is Scope.JOB and declared:
            raise InvalidArgumentError(
                f"GEOCOMM_ONE_SITE is set on {ranks_text(declared)}, but the job has the sites {', '.join(sites)}. "
                "Leave it out"
            )
        return None
    if len({rank.machine for rank in ranks}) < 2 or len(declared) == len(ranks):
        return None
    site = f"site {sites[0]}" if sites[0] else "one site, since GEOCOMM_SITE is not set"
    where = f"all ranks are of {site}, but on different machines: {_machines_text(ranks)}"
    given = sorted({name for rank in ranks for name in rank.given})
    if given and (scope is Scope.JOB or not sites[0]):
        lacking = [rank.rank for rank in ranks if not rank.one_site]
        raise InvalidArgumentError(
            f"{where}. All that they send would be plaintext of Gloo or NCCL, without a codec, though "
            f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} set. If they are at distant sites, give each "
            "site its own GEOCOMM_SITE (and its own folder of keys, if you use any). If they are one cluster with a "
            "network that you trust, set GEOCOMM_ONE_SITE=1 on "
            + ("every rank" if len(lacking) == len(ranks) else ranks_text(lacking))
        )
    return (
        f"{where}. What they send each other is PLAINTEXT, of Gloo or NCCL. If they are at distant sites, give each "
        "site its own GEOCOMM_SITE; if they are one cluster, GEOCOMM_ONE_SITE=1 says so"
    )


def check_nodes(sites: Sequence[str], *, one_site: bool) -> None:
    """Refuse, with InvalidArgumentError, several nodes that meet at a hub and all have the keys of one site.

    sites: of each node, by its number. one_site: all have declared that it is so.
    """
    if len(sites) > 1 and len(set(sites)) == 1 and not one_site:
        raise InvalidArgumentError(
            f"all {len(sites)} nodes have keys of site {sites[0]}: all that their ranks send each other would be "
            "plaintext of Gloo or NCCL, without a codec. If they are at distant sites, GEOCOMM_KEYS has to be another "
            "folder at each, made by geocomm keys create. If they are one cluster with a network that you trust, "
            "set GEOCOMM_ONE_SITE=1 on every node"
        )


def _machines_text(ranks: Sequence[Presence]) -> str:
    """ "node1 (10.0.0.1): ranks 0, 1; node2 (10.0.0.2): ranks 2, 3"."""
    ranks_on: dict[str, list[Presence]] = defaultdict(list)
    for rank in ranks:
        ranks_on[rank.machine].append(rank)
    shown = [
        f"{found[0].machine_name}: {ranks_text([rank.rank for rank in found])}"
        for found in list(ranks_on.values())[:_MOST_MACHINES_NAMED]
    ]
    left_out = len(ranks_on) - len(shown)
    return "; ".join(shown) + (f"; and {left_out} more machines" if left_out else "")
