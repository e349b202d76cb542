"""torchft's Manager over two sites: what it trains equals what it trains over Gloo, and replica groups come and go."""

from __future__ import annotations

import functools
import importlib.util
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
import torchft_cases as cases
from training_cases import Trained
from worlds import assert_equal

from geocomm.security.job_ca import JobCa
from support.harness import Outcome, Ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="torchft is not installed"),
]

STEPS = 6
INSECURE = {"GEOCOMM_SECURITY": "insecure"}  # some versions of torchft name their stores by the machine's host name

WITHOUT_RECONFIGURE = pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "reconfigure")
    or importlib.util.find_spec("torchft") is None
    or not hasattr(importlib.import_module("torchft.process_group"), "reconfigure_with_store"),
    reason="needs torch 2.14 and a torchft that takes its process groups",
)

CASES: dict[str, Callable[..., Trained]] = {
    "DDP": cases.ddp,
    "LocalSGD": functools.partial(cases.local_steps, diloco=False),
    "DiLoCo": functools.partial(cases.local_steps, diloco=True),
}


@contextmanager
def _lighthouse(replicas: int) -> Iterator[str]:
    """Its address; replicas: how many it takes at least. It waits for others that it has heard from in the last 3 s."""
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=replicas, join_timeout_ms=20_000, quorum_tick_ms=50, heartbeat_timeout_ms=3000
    )
    try:
        yield server.address()
    finally:
        server.shutdown()


def _train(backend: str, case: Callable[..., Trained]) -> list[Trained]:
    with _lighthouse(2) as lighthouse, Ranks(["a", "b"], environment=INSECURE, time_limit=90) as ranks:
        return ranks.run(case, backend, lighthouse, STEPS)


@pytest.mark.parametrize("name", CASES)
def test_torchft_over_two_sites_equals_gloo_bit_for_bit(name: str) -> None:
    over_sites = _train("geocomm", CASES[name])
    assert all(trained.wire_bytes > 0 for trained in over_sites), "nothing crossed between the sites"
    assert_equal(over_sites, _train("gloo", CASES[name]))
    if name != "DiLoCo":  # whose fragments take turns
        assert over_sites[0].digest == over_sites[1].digest


@pytest.mark.parametrize("backend", ["geocomm", pytest.param("reconfigure", marks=WITHOUT_RECONFIGURE)])
def test_replica_group_that_dies_is_done_without_and_one_that_comes_is_taken_in(backend: str, tmp_path: Path) -> None:
    """All have the same data, so that whoever was there, the parameters are those of one that trained alone."""
    environment_of: dict[int, dict[str, str]] = dict.fromkeys(range(3), INSECURE)
    if backend == "reconfigure":
        JobCa.create(tmp_path / "keys", "run", ["a", "b"], 30)
        environment_of = {rank: {"GEOCOMM_KEYS": str(tmp_path / "keys" / "abb"[rank])} for rank in range(3)}
    with _lighthouse(1) as lighthouse, Ranks(["a", "b", "b"], environment_of=environment_of, time_limit=90) as ranks:
        _survived(ranks.outcomes(cases.join, lighthouse, backend, ranks=[0, 1]))
        ranks.begin(cases.train_while, 1, 2, ranks=[0])
        (dead,) = ranks.outcomes(cases.train_while, 2, 9, 3, ranks=[1])
        assert dead.exit_code == -signal.SIGKILL
        (alone,) = _survived(ranks.finish(ranks=[0]))
        assert alone.participants == [2, 2, 2, 1, 1]
        assert alone.discarded > 0
        assert alone.lost.startswith("rank 1 (site b, ")

        _survived(ranks.outcomes(cases.join, lighthouse, backend, ranks=[2]))
        survivor, newcomer = _survived(ranks.outcomes(cases.train_while, 2, 3, ranks=[0, 2]))
        assert survivor.participants[-3:] == newcomer.participants[-3:] == [2, 2, 2]
        assert survivor.wire_bytes > alone.wire_bytes > 0
        assert survivor.steps == newcomer.steps >= 8
        (expected,) = ranks.outcomes(cases.undisturbed, survivor.steps, ranks=[0])
        assert survivor.digest == newcomer.digest == expected.value


def test_abort_ends_an_operation_and_the_next_configuration_works() -> None:
    with Ranks(["a", "b"], time_limit=60) as ranks:
        aborted, other = ranks.run(cases.abort_and_configure_again, ranks.new_store())
        assert aborted == ("AbortedError", "AbortedError", 2.0)
        assert other == ("", "NoneType", 2.0)


def _survived(outcomes: list[Outcome]) -> list[cases.Survived]:
    assert [outcome.failure.traceback for outcome in outcomes if outcome.failure] == []
    return [outcome.value for outcome in outcomes]
