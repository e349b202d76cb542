"""Whether a group may be: one site on several machines, plaintext outside loopback, other backends over sites, sites
that transport names; and torch's debug server."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from geocomm.core.addresses import is_loopback
from geocomm.core.errors import AuthenticationError, InvalidArgumentError, UnsupportedError
from geocomm.core.message_log import logger
from geocomm.core.once import Once
from geocomm.core.options import Options
from geocomm.core.transport_choice import TransportChoice
from geocomm.group.membership import one_site
from geocomm.group.membership.one_site import Scope
from geocomm.group.membership.rank_record import Presence, RankInfo, from_record, ranks_text, sites_of


def check_one_site(infos: list[RankInfo], rank: int, scope: Scope) -> None:
    warning = one_site.check_one_site([from_record(Presence, info.presence) for info in infos], scope)
    if warning and rank == 0:
        logger().warning(warning)


def check_transport(site_names: list[str], options: Options) -> None:
    unknown = TransportChoice.parse(options.transport).unknown_sites(site_names)
    if unknown:
        raise InvalidArgumentError(
            f"transport={options.transport} names {', '.join(unknown)}, but the sites of the job are "
            f"{', '.join(site_names)}"
        )


def check_security(infos: list[RankInfo], options: Options, global_rank: int) -> None:
    outside = _outside(infos)
    if options.security == "required":
        if outside and not options.keys:
            raise AuthenticationError(
                f"security=required, but there are no keys for TLS, and {outside[0].description} is not on loopback. "
                "Make keys with `geocomm keys create` and set GEOCOMM_KEYS to the folder of each site; or, to send "
                "plaintext over a network that you trust, GEOCOMM_SECURITY=insecure on every rank"
            )
        debugged = [info.global_rank for info in infos if info.detail_debugging]
        if debugged:
            raise UnsupportedError(
                f"TORCH_DISTRIBUTED_DEBUG=DETAIL (on {ranks_text(debugged)}) makes torch connect all ranks over "
                "plaintext Gloo, which security=required forbids across sites; use INFO, or GEOCOMM_SECURITY=insecure"
            )
        exposed = [info for info in infos if info.store_host and not is_loopback(info.store_host)]
        if exposed:
            raise AuthenticationError(
                f"torch's store at {exposed[0].store_host} carries plaintext, which security=required forbids across "
                "sites; meet at a hub: geocomm run --hub HOST:PORT -- TORCHRUN-ARGUMENTS, or "
                'init_method="geocomm://HOST:PORT"; or trust the network: GEOCOMM_SECURITY=insecure on every rank'
            )
    elif outside and global_rank == 0:
        _warn_of_plaintext()


def check_other_backend(infos: list[RankInfo], backend: str, rank: int | None) -> None:
    """Whether a group of Gloo or NCCL may be. infos: of its ranks. rank: this one, of a default group; None of a part
    of one, of which nobody need be warned again."""
    site_names = sites_of(infos)[1]
    # As in check_security: a job without keys on loopback keeps its plaintext on this machine.
    exposed = any(info.agreed["keys"] == "set" for info in infos) or bool(_outside(infos))
    if len(site_names) < 2 or not exposed:
        return
    if all(info.agreed["security"] == "insecure" for info in infos):
        if rank == 0:
            _warn_of_plaintext()
        return
    fix = 'new_group(backend="geocomm")' if rank is None else 'init_process_group("geocomm")'
    raise InvalidArgumentError(
        f"a process group of {backend} over the sites {', '.join(site_names)} sends PLAINTEXT between them, which "
        "security=required forbids. Start the script as it is with geocomm run --backend geocomm; or have it say "
        f"geocomm: {fix}. Inside a site other backends may stay. On a network that you trust: "
        "GEOCOMM_SECURITY=insecure on every rank"
    )


def _outside(infos: list[RankInfo]) -> list[RankInfo]:
    """The ranks that others dial at more than loopback."""
    on_one_machine = len({info.machine for info in infos}) == 1
    enough = any if on_one_machine else all
    return [info for info in infos if not enough(map(is_loopback, info.hosts))]


@Once
def _warn_of_plaintext() -> None:
    """Once in a job, however many groups it makes."""
    logger().warning(
        "security=insecure: everything between the sites travels as PLAINTEXT, and anyone who can reach the port can "
        "try to connect"
    )


def forbid_debug_server() -> None:
    """Refuse the server of torch.distributed.debug in this process from now on, unless it listens on loopback. Raises
    UnsupportedError where it runs already.

    For a job with keys: each rank's listens on all interfaces, without TLS and without a password, and shows stacks and
    what the ranks send.

    torch makes it in `start_debug_server`, which whoever wants it may have imported by now: so what that function
    calls is put out of its reach.
    """
    try:
        debug: Any = importlib.import_module("torch.distributed.debug")
        serve = debug._WorkerServer
    except (ImportError, AttributeError):  # this torch has no such server
        return
    if debug._WORKER_SERVER is not None:
        raise UnsupportedError(
            "torch.distributed.debug listens on all interfaces for plain HTTP, which security=required forbids in a "
            "job with keys: call stop_debug_server() before the process group is made. `geocomm hang` shows where "
            "ranks wait; or trust the network: GEOCOMM_SECURITY=insecure on every rank"
        )
    if not hasattr(serve, "__wrapped__"):
        debug._WorkerServer = _on_loopback_alone(serve)


def _on_loopback_alone(serve: Any) -> Any:
    @functools.wraps(serve, updated=())
    def serve_on_loopback(host: str, *port: int) -> Any:
        if port and not is_loopback(host):  # else the path of a Unix socket
            raise UnsupportedError(
                f"torch.distributed.debug would listen at {host} for plain HTTP, which security=required forbids in a "
                "job with keys. `geocomm hang` shows where ranks wait; or trust the network: "
                "GEOCOMM_SECURITY=insecure on every rank"
            )
        return serve(host, *port)

    return serve_on_loopback
