"""torch's reconfigure: a default process group whose ranks come and go, while the processes of the others live on.

    dist.init_process_group("geocomm", enable_reconfigure=True)
    dist._reconfigure(uuid, handles).wait()

There is no store that all share: what a rank must know of the others stands in their handles
(`Handle`), which whoever forms the groups has carried around. Each reconfigure makes a group of
its own (`Group`) over the endpoint and the channels that are there. A barrier of the new ranks says that all have come.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.errors import (
    AuthenticationError,
    GeocommError,
    InvalidArgumentError,
    NetworkError,
    OperationTimeoutError,
    UnsupportedError,
)
from geocomm.core.link_table import Links
from geocomm.core.message_log import announce
from geocomm.core.native import native
from geocomm.core.options import Options, transport_keys
from geocomm.core.patience import said_while
from geocomm.core.site import check_site_name
from geocomm.group.backend import group_admission
from geocomm.group.backend.group_creation import (
    become_world,
    begin_reports,
    build_group,
    introduce,
    listening_host,
    own_options,
)
from geocomm.group.backend.policy import Policy, first_policy
from geocomm.group.backend.policy_epochs import apply
from geocomm.group.backend.runtime import Group, runtime
from geocomm.group.membership import roll_call
from geocomm.group.membership.group_agreement import check
from geocomm.group.membership.one_site import Scope
from geocomm.group.membership.own_address import advertised
from geocomm.group.membership.rank_record import RankInfo, ranks_text, sites_of
from geocomm.security.key_folder import CA_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from geocomm._C import ReconfigurableGroup


# The program that forms groups carries handles around, perhaps in plaintext, and anybody may write one: they hold no
# secret that TLS needs, and what they claim is proven later. A rank that says it is of a site has to have that site's
# certificate when it connects.

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


_BELIEVED_REFUSAL = timedelta(seconds=2)
"""Shorter than of groups that end with a rank: a verdict in error costs a reconfigure."""
_STORE_KEY = "geocomm/reconfigure/store"


def create_reconfigurable(backend_options: Any, group_options: object) -> ReconfigurableGroup:
    """The backend of `init_process_group("geocomm", enable_reconfigure=True)`: without ranks until it is reconfigured.

    Waits for no other rank. Raises geocomm's errors where the options do not fit.
    """
    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        raise UnsupportedError(
            "TORCH_DISTRIBUTED_DEBUG=DETAIL wraps process groups, and its wrapper cannot reconfigure: use INFO"
        )
    options = own_options(group_options) or Options()
    if options.site is None:
        raise InvalidArgumentError(
            "enable_reconfigure needs GEOCOMM_SITE on every rank: sites that come later have other names"
        )
    member = GroupMember(backend_options, options)
    return native().ReconfigurableGroup(
        rank=backend_options.group_rank,
        size=backend_options.group_size,
        timeout=backend_options.timeout,
        handle=member.handle,
        reconfigure=member.reconfigure,
        on_shutdown=member.end,
    )


class GroupMember:
    """This process's part in a group whose ranks change."""

    def __init__(self, backend_options: Any, options: Options) -> None:
        self._store: dist.Store = backend_options.store
        self._held = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._process_ids: list[str] = []  # of the ranks that are there
        lighthouse = urlsplit(os.environ.get("TORCHFT_LIGHTHOUSE", "")).hostname
        if options.address is None and lighthouse:  # each site may have a MASTER_ADDR of its own
            options = options.replace(address=",".join(advertised(None, lighthouse)))
        info, self._options, endpoint = introduce(
            backend_options.group_rank,
            backend_options.group_rank,
            self._store,
            lambda: options,
            self._held,
            _BELIEVED_REFUSAL,
        )
        if endpoint is None:
            raise InvalidArgumentError(
                f"enable_reconfigure: {info.description} has no keys for TLS and is not on loopback. Make keys with "
                "`geocomm keys create` and set GEOCOMM_KEYS; or, to send plaintext over a network that you trust, "
                "GEOCOMM_SECURITY=insecure on every rank"
            )
        self._endpoint = endpoint
        keys = transport_keys(options)
        self._own = Handle(
            member=secrets.token_hex(16),
            turn=0,
            authority=authority_of(Path(keys) / CA_FILE) if keys else "",
            store=self._name_of_store(),
            rank=info,
        )

    def handle(self) -> str:
        """What others need to form a group with this rank."""
        # A channel that has failed is made anew by both ends, of which each asks for its handle before they meet.
        self._forget_others(self._process_ids)
        return self._own.text()

    def reconfigure(
        self, group: ReconfigurableGroup, uuid: int, handles: Sequence[str] | set[str], timeout: timedelta | None
    ) -> None:
        """Form the group of these handles; returns once all its ranks have met.

        Raises what is wrong with the arguments, in which case the ranks of before are still there; and geocomm's errors
        where the ranks did not meet: then nobody is there, until a reconfigure with another uuid.
        """
        with self._lock:
            members = members_of(self._own, uuid, handles)
            check(members.infos)
            group_admission.check_one_site(members.infos, members.own, Scope.UNKNOWN)
            self._check_stores(members)
            if len(sites_of(members.infos)[1]) > 1:
                group_admission.check_security(members.infos, self._options, members.own)
            self._own = self._own.model_copy(update={"turn": self._own.turn + 1})
            until = time.monotonic() + (timeout or group.options._timeout).total_seconds()
            group.leave()
            self._process_ids = [info.process_id for info in members.infos]
            self._forget_others(self._process_ids)
            who = ranks_text([info.rank for info in members.infos if info.rank != members.own])
            try:
                with said_while(announce, lambda: f"{who} to call reconfigure (uuid {uuid}), at rank {members.own}"):
                    made = self._meet(members, group.options._timeout, until)
            except GeocommError as error:
                raise type(error)(
                    f"reconfigure (uuid {uuid}) of {len(members.infos)} ranks failed at rank {members.own}: {error}. "
                    "All of them call it with the same uuid and the same handles in the same order; to try again, "
                    "exchange handles again and take a new uuid"
                ) from error
            group.adopt(made.backend)
            begin_reports(made)
            become_world(made)

    def end(self) -> None:
        """The group was shut down."""
        self._held.close()

    def _meet(self, members: Members, timeout: timedelta, until: float) -> Group:
        """The group, once all its ranks have come."""
        infos, rank = members.infos, members.own
        store = dist.PrefixStore(f"geocomm/group/{infos[0].group}/", self._store)
        if len(members.site_ranks) > 1:
            self._meet_inside(store, members, until)
        names = sites_of(infos)[1]
        first = Policy(epoch=0, links=Links.uniform(names), codecs=((self._options.min_compress_bytes, "none"),))
        policy = first if len(names) > 1 else None
        host = listening_host(self._own.rank.hosts)
        with runtime.endpoint(self._options, host, _BELIEVED_REFUSAL) as endpoint:
            made = build_group(store, rank, infos, timeout, self._options, endpoint, policy, split=None)
        made.store, made.is_reconfigurable = NoStore(), True
        backend: Any = made.backend
        try:
            barrier = dist.BarrierOptions()
            barrier.timeout = _left(until)
            backend.barrier(barrier).wait()
            if policy:
                apply(made, first_policy(FromFirst(made), rank, infos, self._options))
        except BaseException:
            backend.abort()
            backend.shutdown()
            raise
        return made

    def _meet_inside(self, store: dist.Store, members: Members, until: float) -> None:
        """Wait for the ranks of this site, which cannot begin to connect without each other."""
        ranks = members.site_ranks
        place = ranks.index(members.own)
        try:
            roll_call.gather(store, "meet", place, len(ranks), {}, _left(until), lambda _: None)
        except roll_call.Absent as absent:
            late = ranks_text([ranks[each] for each in absent.ranks])
            raise OperationTimeoutError(f"{late} of this site did not come in time") from absent
        except RuntimeError as error:
            raise NetworkError(f"the store of this site's ranks is gone: {error}") from error

    def _check_stores(self, members: Members) -> None:
        """Check that the ranks of each site have a store in which to meet."""
        stores: dict[str | None, set[str]] = {}
        for handle in members.handles:
            stores.setdefault(handle.rank.site, set()).add(handle.store)
        ranks_at = {site: [info.rank for info in members.infos if info.site == site] for site in stores}
        for site, found in stores.items():
            if len(ranks_at[site]) > 1 and (len(found) > 1 or "" in found):
                raise InvalidArgumentError(
                    f"{ranks_text(ranks_at[site])} are at site {site} and were not given the same store: ranks of one "
                    "site need a common one in init_process_group, such as that of their torchrun"
                )

    def _name_of_store(self) -> str:
        """Equal for all ranks that share the store; empty where it has no way to tell."""
        mine = secrets.token_hex(16)
        try:
            return self._store.compare_set(_STORE_KEY, "", mine).decode()
        except (RuntimeError, NotImplementedError):
            return ""

    def _forget_others(self, process_ids: list[str]) -> None:
        self._endpoint.forget_others([base64.b64decode(one) for one in process_ids])


class NoStore(dist.Store):
    """Stands where other groups have a store, for what geocomm does over a store of all ranks."""

    def _refuse(self, *_: object) -> Any:
        raise UnsupportedError(
            "the ranks of a process group that reconfigures have no common store: local steps, refresh_links and "
            "groups of a part of the ranks are not there. Elastic runs (geocomm run --elastic) have local steps"
        )

    set = get = wait = check = add = multi_get = compare_set = delete_key = _refuse  # pyright: ignore[reportAssignmentType]


class FromFirst(dist.Store):
    """Hands what rank 0 of a group sets to the other ranks, which get it: over the group itself."""

    def __init__(self, made: Group) -> None:
        super().__init__()
        self._backend: Any = made.backend
        self._text = ""

    def set(self, key: str, value: str) -> None:
        """By rank 0 alone, as often as the others get."""
        self._text = value
        content = torch.tensor(list(value.encode()), dtype=torch.uint8)
        self._broadcast(torch.tensor([content.numel()]))
        self._broadcast(content)

    def get(self, key: str) -> bytes:
        """What rank 0 has set."""
        if self._backend.rank() == 0:
            return self._text.encode()
        length = torch.zeros(1, dtype=torch.int64)
        self._broadcast(length)
        content = torch.zeros(int(length), dtype=torch.uint8)
        self._broadcast(content)
        return content.numpy().tobytes()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._backend.broadcast([tensor], options).wait()


def _left(until: float) -> timedelta:
    return timedelta(seconds=max(until - time.monotonic(), 0.001))
