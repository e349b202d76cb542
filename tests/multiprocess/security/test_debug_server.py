"""torch's debug server in a job with keys: plain HTTP on all interfaces, which security=required forbids."""

from __future__ import annotations

import http.client
import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.security.job_ca import JobCa
from support.harness import Ranks, joined

pytestmark = pytest.mark.skipif(
    not hasattr(importlib.import_module("torch.distributed"), "debug")
    and importlib.util.find_spec("torch.distributed.debug") is None,
    reason="this torch has no debug server",
)


@pytest.fixture
def variables(tmp_path: Path) -> dict[int, dict[str, str]]:
    """Of the ranks."""
    JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    return {
        rank: {"GEOCOMM_KEYS": str(tmp_path / "keys" / "ab"[rank]), "GEOCOMM_SECURITY": "required"} for rank in (0, 1)
    }


def _debug() -> Any:
    return importlib.import_module("torch.distributed.debug")


def _serve(host: str) -> int:
    """The port of a server of the class that start_debug_server makes."""
    server = _debug()._WorkerServer(host, 0)
    port = server.port
    # A shutdown() before its thread serves would be lost, and wait for ever.
    asking = http.client.HTTPConnection("localhost", port, timeout=60)
    asking.request("GET", "/")
    asking.getresponse().read()
    asking.close()
    server.shutdown()
    return port


def _start() -> None:
    """As `from torch.distributed.debug import start_debug_server` before the group was made; without its store."""
    debug = _debug()
    debug.tcpstore_client = lambda: dist.HashStore()
    debug.start_debug_server(port=0)


def _sum() -> float:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return float(tensor[0])


def test_debug_server_of_a_job_with_keys_is_refused_beyond_loopback(variables: dict[int, dict[str, str]]) -> None:
    with joined(["a", "b"], environment_of=variables) as ranks:
        for outcome in ranks.outcomes(_start):
            assert "plain HTTP" in outcome.require("UnsupportedError").message
        assert all(port > 0 for port in ranks.run(_serve, "127.0.0.1"))
        assert ranks.run(_sum) == [2.0, 2.0]


def _listen_before() -> None:
    debug = _debug()
    debug._WORKER_SERVER = debug._WorkerServer("::", 0)


def test_group_with_keys_is_refused_where_the_debug_server_runs(variables: dict[int, dict[str, str]]) -> None:
    with Ranks(["a", "b"], environment_of=variables) as ranks:
        ranks.outcomes(_listen_before, ranks=[1])
        own, other = reversed(ranks.try_init())
        assert "stop_debug_server()" in own.require("UnsupportedError").message
        assert "stop_debug_server()" in other.require("InvalidArgumentError").message


def test_debug_server_of_a_job_without_keys_is_not_looked_at() -> None:
    with joined(["a", "b"], environment={"GEOCOMM_SECURITY": "insecure"}) as ranks:
        assert all(port > 0 for port in ranks.run(_serve, "::"))
