"""torch.distributed.debug in a job with keys: its HTTP server of each rank listens on all interfaces, without TLS and
without a password, and shows stacks and what the ranks send."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from geocomm.core.addresses import is_loopback
from geocomm.core.errors import UnsupportedError


def forbid() -> None:
    """Refuse that server in this process from now on, unless it listens on loopback. Raises UnsupportedError where it
    runs already.

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
