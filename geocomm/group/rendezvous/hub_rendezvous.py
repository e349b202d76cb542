"""torch's rendezvous through the hub: `init_method="geocomm://host:port"`, and torchrun's backend behind `geocomm run`.

No store listens outside of loopback: servers get a socket that is bound already, clients dial a tunnel.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NoReturn, cast
from urllib.parse import parse_qs, urlsplit

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from geocomm.core.addresses import Address, AddressError, listen_on, loopback_listener
from geocomm.core.environment import (
    SCRIPTS_OWN,
    backend_name,
    backend_over_sites,
    collector_socket,
)
from geocomm.core.errors import AuthenticationError, GeocommError, InvalidArgumentError, NetworkError
from geocomm.core.message_log import log
from geocomm.core.options import from_environment
from geocomm.core.patience import Waiting
from geocomm.core.place import rank_and_world_size
from geocomm.core.site import site_name
from geocomm.core.units import count_text
from geocomm.group.membership.one_site import check_nodes
from geocomm.group.membership.own_address import remember_hub
from geocomm.group.membership.roll_call import differences
from geocomm.group.rendezvous.agents_store import AgentsStore, nodes_text
from geocomm.group.rendezvous.store_process import StoreProcess
from geocomm.security.key_folder import KeysError

AGENTS_STORE = "agents"
_JOIN_LIMIT = timedelta(minutes=10)
_STORE_LIMIT = timedelta(minutes=5)
_POLL_S = 0.25
_WATCH_S = 2.0


def loopback_store(timeout: timedelta = _STORE_LIMIT) -> dist.TCPStore:
    """A store server that only this machine reaches."""
    listener = loopback_listener()
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=timeout,
    )


def _client(port: int, timeout: timedelta) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timeout)


def keys_or_refusal() -> str:
    """The folder of GEOCOMM_KEYS; AuthenticationError where it is not set."""
    folder = from_environment("keys")
    if folder is None:
        raise AuthenticationError(
            "the rendezvous at a hub is always encrypted and needs keys: make them with geocomm keys create a b and "
            "set GEOCOMM_KEYS to this site's folder"
        )
    return folder


def _tunnel(hub: Address, keys: str, store: str, limit: timedelta) -> StoreProcess:
    try:
        return StoreProcess.tunnel(hub, keys, store, limit.total_seconds())
    except KeysError as error:
        raise AuthenticationError(str(error)) from error
    except ConnectionError as error:
        raise NetworkError(f"hub {hub}: {error}") from error


class _Meetings:
    """The hubs and tunnels of init_method in this process; a rendezvous at the same address has a store of its own."""

    def __init__(self) -> None:
        self._counts: dict[Address, int] = {}
        self._hubs: dict[Address, StoreProcess] = {}
        self._kept: list[tuple[StoreProcess, dist.Store]] = []
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._leave_to_parent)

    def store(self, hub: Address, listen: str | None, rank: int, timeout: timedelta) -> dist.Store:
        number = self._counts[hub] = self._counts.get(hub, 0) + 1
        name = f"init-{number}"
        if rank != 0:
            tunnel = _tunnel(hub, keys_or_refusal(), name, timeout)
            store = _client(tunnel.port, timeout)
            self._kept.append((tunnel, store))
            return store
        if hub not in self._hubs:
            self._hubs[hub] = _start_hub(hub, listen)
        store = loopback_store(timeout)
        self._hubs[hub].add_store(name, store.port)
        self._kept.append((self._hubs[hub], store))
        return store

    def close(self) -> None:
        kept, self._kept, self._hubs = self._kept, [], {}
        for process, _ in kept:
            process.close()

    def _leave_to_parent(self) -> None:
        """Leave the rendezvous to the parent, in a forked child, whose process groups meet elsewhere."""
        kept, self._kept, self._hubs, self._counts = self._kept, [], {}, {}
        for process, _ in kept:
            process.leave_to_parent()


_meetings = _Meetings()


def _start_hub(hub: Address, listen: str | None) -> StoreProcess:
    keys = keys_or_refusal()
    try:
        listener = hub.listen() if listen is None else listen_on(listen)
    except (OSError, AddressError) as error:
        raise InvalidArgumentError(f"cannot listen at {listen or hub}: {error}") from error
    if listener is None:
        raise InvalidArgumentError(
            f"rank 0 is the hub, but it cannot listen at {hub}: {hub.why_not_free()}. Name another address, or, behind "
            f"a translated one, say where to listen: geocomm://{hub}?listen=[::]:{hub.port}"
        )
    try:
        return StoreProcess.hub(listener, keys)
    except KeysError as error:
        raise AuthenticationError(str(error)) from error


def meet_at_hub(url: str, timeout: timedelta = _STORE_LIMIT, **_: Any) -> Iterator[tuple[dist.Store, int, int]]:
    """torch's handler of geocomm:// addresses: geocomm://host:port[?rank=R&world_size=N&listen=address:port]."""
    query = {name: values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        hub = Address.parse(url)
        rank, world_size = rank_and_world_size(query.get("rank"), query.get("world_size"))
    except AddressError as error:
        raise InvalidArgumentError(f"init_method: {error}") from None
    except (KeyError, ValueError) as error:
        raise InvalidArgumentError(
            f"init_method {url}: rank and world_size are not given, as arguments or in RANK and WORLD_SIZE ({error})"
        ) from None
    remember_hub(hub)
    yield _meetings.store(hub, query.get("listen"), rank, timeout), rank, world_size
    raise RuntimeError("geocomm:// rendezvous: a second one takes another init_process_group")


class HubRendezvous(RendezvousHandler):
    """A fixed number of nodes that meet at the hub, again whenever one of them starts anew, each time in a new store.

    A node takes part in a round by setting ROUND/NODE in the agents' store to what it says of itself; "round" is the
    highest round that somebody called for. A node joins no round twice, so one that was restarted calls for the next,
    and the others follow. One that follows and finds its number taken there is not the only node of that number. Before
    its first round that ends the job ("duplicate" says so to all). Later it gives way: it may have been cut off and
    replaced.
    """

    def __init__(
        self,
        hub: Address,
        way: Address,
        keys: str,
        node: int,
        nodes: int,
        run_id: str,
        limit: timedelta,
        sites: Mapping[int, str],
    ) -> None:
        """hub: as all nodes name it. way: where this one dials it. sites: those of nodes, as far as they are known
        before these have come."""
        self._hub, self._way, self._keys, self._node, self._nodes = hub, way, keys, node, nodes
        self._run_id, self._limit = run_id, limit
        own = {
            "site": site_name(),
            "one_site": from_environment("one_site"),
            "machine": socket.gethostname(),
            "agent": uuid.uuid4().hex,
        }
        groups = {"--backend": backend_over_sites(), "--backend-name": backend_name()}
        self._own = json.dumps({**own, "groups": groups, "nodes": nodes, "telemetry": collector_socket() is not None})
        self._round = 0
        self._called = 0
        self._sites: dict[int, str | None] = dict(sites)  # of the nodes of the last round
        self._tunnels: list[StoreProcess] = []
        self.store: dist.Store | None = None
        """The store of the agents of all nodes; None before they have met."""
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()

    def get_backend(self) -> str:
        return "geocomm"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Raises InvalidArgumentError, on all nodes, where these do not fit together."""
        try:
            store = self._agents_store()
            self._round = self._join(store)
            self._check_nodes(store)
            for tunnel in self._tunnels[1:]:
                tunnel.close()
            del self._tunnels[1:]
            workers = _tunnel(self._way, self._keys, f"round-{self._round}", self._limit)
        except InvalidArgumentError:
            raise
        except (GeocommError, dist.DistError) as error:
            raise RendezvousConnectionError(str(error)) from error
        self._tunnels.append(workers)
        info = RendezvousStoreInfo("127.0.0.1", workers.port)
        agents = AgentsStore(f"agents/{self._round}", store, self._node, self._sites, self.is_closed, log)
        return RendezvousInfo(agents, self._node, self._nodes, info)

    def num_nodes_waiting(self) -> int:
        return int(self._called > self._round)

    def is_closed(self) -> bool:
        return self.store is not None and self.store.check(["closed"])

    def set_closed(self) -> None:
        if self.store is not None:
            self.store.set("closed", "1")

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        self._ended.set()
        with contextlib.suppress(dist.DistError):
            self.set_closed()
        return True

    def leave(self) -> None:
        """After `shutdown`, close the ways to the hub, which ends once every node has done so."""
        if not self._ended.is_set():  # a signal ends this process, and nobody waits for it
            return
        for tunnel in reversed(self._tunnels):
            tunnel.close()
        self._tunnels = []

    def _agents_store(self) -> dist.Store:
        if self.store is None:
            self._tunnels = [_tunnel(self._way, self._keys, AGENTS_STORE, self._limit)]
            self.store = dist.PrefixStore(self._run_id, _client(self._tunnels[0].port, _STORE_LIMIT))
            self._watcher = threading.Thread(target=self._watch, name="geocomm-rendezvous", daemon=True)
            self._watcher.start()
        return self.store

    def _join(self, store: dist.Store) -> int:
        """Take part in the next round; returns its number once every node does."""
        end = time.monotonic() + self._limit.total_seconds()
        waiting = Waiting(log)
        mine = max(self._round + 1, _called_for(store))
        # Of a round before this process came, the number may be that of a process that is gone.
        joined = self._round > 0
        while True:
            while (holder := store.compare_set(f"{mine}/{self._node}", "", self._own)).decode() != self._own:
                if joined:
                    self._refuse_number(store, json.loads(holder))
                mine = max(mine + 1, _called_for(store))
            joined = True
            _call_for(store, mine)
            while _called_for(store) == mine:
                # Not store.wait(), which writes lines of its own to the terminal at each time-out.
                if store.check([f"{mine}/{node}" for node in range(self._nodes)]):
                    return mine
                is_closed = store.check(["closed"])  # asked first: what is wrong is said before the node ends
                if store.check(["duplicate"]):
                    raise InvalidArgumentError(store.get("duplicate").decode())
                if is_closed:
                    raise RendezvousClosedError("the job has ended on another node")
                if time.monotonic() > end:
                    raise RendezvousTimeoutError(self._missing(store, mine))
                waiting.tell(functools.partial(self._awaited, store, mine))
                time.sleep(_POLL_S)
            mine = _called_for(store)

    def _refuse_number(self, store: dist.Store, other: Mapping[str, Any]) -> NoReturn:
        """Another node that lives has this one's number. Raises InvalidArgumentError, on all nodes before round 1."""
        own = json.loads(self._own)
        has_one_name = own["site"] == other["site"]
        two_sites = "if they are two sites, give each its own keys or name; else " if has_one_name else ""
        message = (
            f"two nodes have --node-rank {self._node}: {own['machine']} (site {own['site']}) and {other['machine']} "
            f"(site {other['site']}); {two_sites}give each of the {count_text(self._nodes, 'node')} one of its own, "
            f"0 to {self._nodes - 1}"
        )
        if self._round == 0:
            store.set("duplicate", message)
        raise InvalidArgumentError(message)

    def _check_nodes(self, store: dist.Store) -> None:
        nodes = [json.loads(store.get(f"{self._round}/{node}")) for node in range(self._nodes)]
        self._sites = {number: node["site"] for number, node in enumerate(nodes)}
        for number, node in enumerate(nodes):
            if (other := node.get("nodes", self._nodes)) != self._nodes:
                raise InvalidArgumentError(
                    f"node {self._node} counts --nnodes {self._nodes}, node {number} (site {node['site']}) counts "
                    f"{other}; say the same on all, or copy the sites' folders of keys there again"
                )
        refuse_different_backends([node.get("groups", {}) for node in nodes], self._sites)
        check_nodes([node["site"] for node in nodes], one_site=all(node["one_site"] for node in nodes))
        if self._round == 1 and (silent := without_telemetry([node.get("telemetry") for node in nodes], self._sites)):
            log(silent)

    def _missing(self, store: dist.Store, number: int) -> str:
        waited = f"waited {self._limit.total_seconds():g} s for"
        return f"{waited} {self._awaited(store, number)}, to come to hub {self._hub}"

    def _awaited(self, store: dist.Store, number: int) -> str:
        away = [node for node in range(self._nodes) if not store.check([f"{number}/{node}"])]
        sites = dict(self._sites)
        for node in set(range(self._nodes)) - set(away):
            sites[node] = json.loads(store.get(f"{number}/{node}"))["site"]
        return nodes_text(away, self._nodes, sites)

    def _watch(self) -> None:
        """Notices that another node calls for a new round, without keeping the agent from watching its workers."""
        with contextlib.suppress(dist.DistError, RuntimeError):
            store = dist.PrefixStore(self._run_id, _client(self._tunnels[0].port, _STORE_LIMIT))
            while not self._ended.wait(_WATCH_S):
                self._called = _called_for(store)


def _called_for(store: dist.Store) -> int:
    return int(store.get("round")) if store.check(["round"]) else 0


def _call_for(store: dist.Store, number: int) -> int:
    """Raise "round" to `number`; returns what it is then, which may be more."""
    while (known := _called_for(store)) < number:
        store.compare_set("round", str(known) if known else "", str(number))
    return known


class HubRendezvousMaker:
    """torchrun's way to make one, for a site's folder of keys, where this node dials the hub, and the sites by the
    numbers of their nodes, where keys number them."""

    def __init__(self, keys: str, way: Address, sites: Mapping[int, str]) -> None:
        self._keys, self._way, self._sites = keys, way, sites
        self.made: HubRendezvous | None = None

    def __call__(self, parameters: RendezvousParameters) -> HubRendezvous:
        config: dict[str, Any] = cast(Any, parameters).config
        self.made = HubRendezvous(
            Address.parse(parameters.endpoint),
            self._way,
            self._keys,
            node=int(config["rank"]),
            nodes=parameters.max_nodes,
            run_id=parameters.run_id,
            limit=timedelta(seconds=int(config.get("timeout", _JOIN_LIMIT.total_seconds()))),
            sites=self._sites,
        )
        return self.made


def refuse_different_backends(given: Sequence[Mapping[str, str]], sites: Mapping[int, str | None]) -> None:
    """Raise InvalidArgumentError where nodes were started with different `--backend` or `--backend-name`: their ranks
    would wait for each other. given: of each node, by its number."""
    for difference in differences(given)[:1]:
        sides = "; ".join(
            f"{nodes_text(nodes, len(given), sites)}: {value or SCRIPTS_OWN}" for value, nodes in difference.sides
        )
        raise InvalidArgumentError(f"the nodes differ in {difference.name}: {sides}. Give all the same")


def without_telemetry(has_it: Sequence[bool | None], sites: Mapping[int, str | None]) -> str:
    """What to say where some nodes collect telemetry and others do not; empty: all do, or none does."""
    silent = [node for node, has in enumerate(has_it) if not has]
    if len(silent) in (0, len(has_it)):
        return ""
    nodes = nodes_text(silent, len(has_it), sites)
    return (
        f"no telemetry of {nodes}: start every node with --telemetry FOLDER, else geocomm why and top do not know what "
        "is done there"
    )
