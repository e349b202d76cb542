"""Groups whose sites are joined by RDMA: UCX over its TCP and its shared memory, since there is no card here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from geocomm.core.native import rdma_plugin
from support.harness import Ranks, joined

pytestmark = pytest.mark.skipif(not Path(rdma_plugin()).exists(), reason="built without UCX's headers (libucx-dev)")

QUIET = {"UCX_LOG_LEVEL": "fatal", "UCX_MEM_EVENTS": "n"}
OVER_TCP = QUIET | {"UCX_TLS": "tcp", "GEOCOMM_RDMA_ALLOW_TCP": "1", "GEOCOMM_RDMA_TRUSTED": "1"}
OVER_SHARED_MEMORY = OVER_TCP | {"UCX_TLS": "posix,sysv,cma,self"}


def _sums_and_transports() -> tuple[list[float], dict[str, str]]:
    """First elements of three all-reduces, and what carried them to the ranks of each site."""
    from geocomm.group.backend.runtime import runtime

    totals = []
    for elements in (10, 300_000, 3_000_000):
        tensor = torch.full((elements,), float(dist.get_rank() + 1))
        dist.all_reduce(tensor)
        assert bool((tensor == tensor[0]).all())
        totals.append(float(tensor[0]))
    return totals, {channel["site"]: channel["transport"] for channel in runtime.channel_stats()}


@pytest.fixture(params=["tcp", "shared-memory"])
def ways(request: pytest.FixtureRequest) -> dict[str, str]:
    return OVER_TCP if request.param == "tcp" else OVER_SHARED_MEMORY


def test_all_reduce_of_two_sites_goes_over_rdma(ways: dict[str, str]) -> None:
    with joined(["a", "b"], environment=ways | {"GEOCOMM_TRANSPORT": "rdma"}) as ranks:
        for totals, transports in ranks.run(_sums_and_transports):
            assert totals == [3.0] * 3
            assert all(transport.startswith("rdma (") for transport in transports.values()), transports


def test_all_reduce_of_three_sites_mixes_rdma_and_tcp() -> None:
    with joined(["a", "b", "c"], environment=OVER_TCP | {"GEOCOMM_TRANSPORT": "rdma:a,b"}) as ranks:
        outcomes = ranks.run(_sums_and_transports)
        assert [totals for totals, _ in outcomes] == [[6.0] * 3] * 3
        of_a, of_b, of_c = (transports for _, transports in outcomes)
        assert of_a["b"].startswith("rdma (")
        assert of_b["a"].startswith("rdma (")
        assert [of_a["c"], of_b["c"], of_c["a"], of_c["b"]] == ["tcp"] * 4


def test_machine_without_rdma_is_an_error_on_every_rank() -> None:
    strict = QUIET | {"UCX_TLS": "tcp", "GEOCOMM_TRANSPORT": "rdma", "GEOCOMM_RDMA_TRUSTED": "1"}
    with Ranks(["a", "b"], environment=strict) as ranks:
        for outcome in ranks.try_init():
            message = outcome.require("UnsupportedError").message
            assert "no RDMA device" in message
            assert "tcp" in message


def test_rdma_on_one_rank_only_is_named_on_every_rank() -> None:
    with Ranks(["a", "b"], environment=OVER_TCP, environment_of={0: {"GEOCOMM_TRANSPORT": "rdma"}}) as ranks:
        for outcome in ranks.try_init():
            assert "option transport" in outcome.require("InvalidArgumentError").message


def test_site_that_no_rank_has_is_named_on_every_rank() -> None:
    with Ranks(["a", "b"], environment=OVER_TCP | {"GEOCOMM_TRANSPORT": "rdma:a,c"}) as ranks:
        for outcome in ranks.try_init():
            assert "names c" in outcome.require("InvalidArgumentError").message
