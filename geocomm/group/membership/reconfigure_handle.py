"""Handles of torch's reconfigure: what a rank tells those with whom it may form a group.

The program that forms groups carries them around, perhaps in plaintext, and anybody may write one: they hold no secret
that TLS needs, and what they claim is proven later. A rank that says it is of a site has to have that site's
certificate when it connects."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.errors import AuthenticationError, InvalidArgumentError
from geocomm.core.site import check_site_name
from geocomm.group.membership.rank_record import RankInfo, ranks_text

_MOST_CHARACTERS = 1 << 20
_PROCESS_ID_BYTES = 16
_LONGEST_HOST = 255


def _checked(info: RankInfo) -> RankInfo:
    """What the transport would find wrong once the ranks of before are gone."""
    check_site_name(info.site)
    if not 0 <= info.port <= 65535:
        raise ValueError(f"port {info.port}")
    if len(base64.b64decode(info.process_id, validate=True)) != _PROCESS_ID_BYTES:
        raise ValueError("process_id names no process")
    if not info.hosts or any(len(host) > _LONGEST_HOST or not host.isprintable() for host in info.hosts):
        raise ValueError("hosts are no addresses")
    return info


class Handle(BaseModel):
    """What one rank says of itself, as JSON."""

    model_config = ConfigDict(frozen=True)

    geocomm: Literal[1] = 1
    """The version of this form."""
    member: str
    """Random: names the process group of one process, as long as that lives."""
    turn: int
    """How often that process group has been reconfigured: what was told before is void."""
    authority: str
    """The authority of the rank's keys (`authority_of`); empty: it has none."""
    store: str
    """Equal for ranks that share the store which init_process_group was given; empty: it cannot tell."""
    rank: Annotated[RankInfo, AfterValidator(_checked)]

    def text(self) -> str:
        """The text in which the handle is handed on."""
        return self.model_dump_json()


@dataclass(frozen=True)
class Members:
    """The ranks that a group will have."""

    handles: list[Handle]
    """In the order of the ranks."""
    own: int
    """The rank of this process."""
    infos: list[RankInfo]
    """Their records, with the ranks and the identity of the new group."""

    @property
    def site_ranks(self) -> list[int]:
        """The ranks at this rank's site, ascending."""
        site = self.infos[self.own].site
        return [info.rank for info in self.infos if info.site == site]


def authority_of(ca: Path) -> str:
    """A short name for the authority of a job's keys, by its certificate."""
    return hashlib.sha256(ca.read_bytes()).hexdigest()[:16]


def members_of(own: Handle, uuid: int, texts: Sequence[str] | set[str]) -> Members:
    """Read the handles that reconfigure was given. A list has the order of the ranks; in a set they are ordered here,
    alike on all ranks.

    Raises InvalidArgumentError where they cannot form a group with this rank, and AuthenticationError where one belongs
    to a job with other keys.
    """
    given = list(texts) if isinstance(texts, Sequence) else sorted(texts)
    handles = [_read(number, text) for number, text in enumerate(given)]
    members = [handle.member for handle in handles]
    if own.member not in members:
        raise InvalidArgumentError(
            f"the {len(handles)} handles of reconfigure (uuid {uuid}) do not hold this rank's. Ask this process group "
            "for its handle (get_reconfigure_handle) and pass it on; a process that was started again has a new one"
        )
    if twice := [number for number, member in enumerate(members) if member in members[:number]]:
        raise InvalidArgumentError(f"reconfigure (uuid {uuid}): the handle of {ranks_text(twice)} is there twice")
    if len({handle.rank.process_id for handle in handles}) < len(handles):
        raise InvalidArgumentError(f"reconfigure (uuid {uuid}): two handles name the same process")
    own_rank = members.index(own.member)
    if handles[own_rank] != own:
        old = handles[own_rank].turn < own.turn
        raise InvalidArgumentError(
            f"reconfigure (uuid {uuid}): the handle of this rank "
            + ("is from before its last reconfigure: exchange handles anew" if old else "was changed on its way")
        )
    strangers = [number for number, handle in enumerate(handles) if handle.authority != own.authority]
    if strangers:
        raise AuthenticationError(
            f"reconfigure (uuid {uuid}): the handle of {ranks_text(strangers)} (site {handles[strangers[0]].rank.site})"
            f" belongs to a job with {'other' if handles[strangers[0]].authority else 'no'} keys. All sites of a job "
            "have keys of one authority: geocomm keys create"
        )
    # Ranks that were given other handles, or another uuid, come to another group and another token: they never meet.
    identity = hashlib.sha256("\n".join([str(uuid), *given]).encode()).digest()
    return Members(handles, own_rank, _infos_of(handles, identity))


def _read(number: int, text: str) -> Handle:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidArgumentError(f"handle {number} of reconfigure has {len(text)} characters: it is not geocomm's")
    try:
        return Handle.model_validate_json(text)
    except ValidationError as error:
        raise InvalidArgumentError(
            f"handle {number} of reconfigure cannot be read: {problem_text(first_problem(error))}. Handles come from "
            "get_reconfigure_handle of a geocomm process group, with the same version of geocomm on all ranks"
        ) from None


def _infos_of(handles: list[Handle], identity: bytes) -> list[RankInfo]:
    number = int.from_bytes(identity[:8]) >> 1 | 1
    token = base64.b64encode(identity[8:24]).decode()
    exposed = _stores_between_sites(handles)
    return [
        replace(
            handle.rank,
            rank=rank,
            global_rank=rank,
            group=number,
            token=token,
            store_host=handle.rank.store_host if handle.store in exposed else "",
        )
        for rank, handle in enumerate(handles)
    ]


def _stores_between_sites(handles: list[Handle]) -> set[str]:
    """The stores through which the ranks of a site meet, and that ranks of another site use, too."""
    ranks_at = Counter((handle.store, handle.rank.site) for handle in handles)
    sites_of = Counter(store for store, _ in ranks_at)
    return {store for (store, _), ranks in ranks_at.items() if store and ranks > 1 and sites_of[store] > 1}
