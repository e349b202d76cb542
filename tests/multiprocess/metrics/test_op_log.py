"""The operation log: the times of collectives over two sites, and who has not come to one that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import geocomm
from support.harness import Ranks

ELEMENTS = 100_000


def _last_number() -> int:
    return max((row["number"] for row in geocomm.op_log()), default=0)


def _log_after(number: int) -> list[dict[str, Any]]:
    return geocomm.op_log(number)


def _coding_seconds() -> tuple[float, float, float]:
    """For making messages of reductions, for using them, and for both as the log has it."""
    counters = geocomm.stats()
    logged = sum(row["coding_ns"] for row in geocomm.op_log() if row["codec"])
    return counters["encode_seconds"], counters["decode_seconds"], logged * 1e-9


def _collectives() -> tuple[int, int, list[dict[str, Any]]]:
    before, began = _last_number(), time.monotonic_ns()
    dist.all_reduce(torch.ones(ELEMENTS))
    dist.broadcast(torch.ones(10), 0)
    return began, time.monotonic_ns(), geocomm.op_log(before)


def _on(ranks: Ranks, rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
    (outcome,) = ranks.outcomes(function, *arguments, ranks=[rank])
    assert outcome.failure is None, outcome.failure
    return outcome.value


_hanging: list[Any] = []


def _begin() -> None:
    _hanging.append(dist.all_reduce(torch.ones(ELEMENTS), async_op=True))


def _end() -> None:
    _hanging.pop().wait()


def _sparse_sum() -> list[dict[str, Any]]:
    before = _last_number()
    tensor = torch.sparse_coo_tensor(torch.tensor([[1, 5]]), torch.ones(2, 3), (9, 3), check_invariants=True)
    dist.all_reduce(tensor)
    return geocomm.op_log(before)


def _calls_on_a_failed_group() -> list[dict[str, Any]]:
    """Operations of every way to issue one, after one whose time was up."""
    before = _last_number()
    calls: list[Callable[[], Any]] = [
        lambda: dist.all_reduce(torch.ones(ELEMENTS)),
        lambda: dist.barrier(),
        lambda: dist.broadcast(torch.ones(0), 0),
        lambda: dist.send(torch.ones(3), 1),
        lambda: dist.recv(torch.ones(6)[::2], 1),
        lambda: _sparse_sum(),
    ]
    for call in calls:
        with pytest.raises(geocomm.GeocommError):
            call()
    return geocomm.op_log(before)


def test_times_of_a_collective_follow_each_other_and_its_bytes_are_counted() -> None:
    with Ranks(["rome", "berlin"], environment={"GEOCOMM_CODEC": "int8"}) as ranks:
        ranks.init()
        for rank, (began, ended, rows) in enumerate(ranks.run(_collectives)):
            reduced, broadcast = rows
            assert (reduced["kind"], reduced["dtype"], reduced["elements"]) == ("all_reduce", "float32", ELEMENTS)
            assert reduced["codec"].startswith("int8")
            assert (broadcast["kind"], broadcast["codec"]) == ("broadcast", "")
            assert (broadcast["number"], broadcast["sequence"]) == (reduced["number"] + 1, reduced["sequence"] + 1)
            assert 3 < reduced["raw_bytes_sent"] / reduced["wire_bytes_sent"] < 4.1
            (peer,) = reduced["peers"]
            assert (peer["rank"], peer["site"]) == (1 - rank, ("berlin", "rome")[rank])
            order = [began, reduced["issued_ns"], reduced["began_ns"], peer["first_in_ns"], peer["last_in_ns"]]
            order += [reduced["exchanged_ns"], reduced["ended_ns"], reduced["wait_ended_ns"], ended]
            assert order == sorted(order)
            assert reduced["began_ns"] < reduced["encoded_ns"] <= reduced["exchanged_ns"]
            assert reduced["coding_ns"] > 0
            assert reduced["wait_began_ns"] >= reduced["issued_ns"]
            assert not reduced["failed"]
        for encoding, decoding, logged in ranks.run(_coding_seconds):
            assert encoding > 0
            assert decoding > 0
            assert encoding + decoding == pytest.approx(logged, rel=1e-6)
        # Both machines are this one, so their clocks are: nothing arrives before it was sent.
        logs = ranks.run(_log_after, 0)
        for here, there in zip(*logs, strict=True):
            assert (here["group"], here["sequence"]) == (there["group"], there["sequence"])
            for row, other in ((here, there), (there, here)):
                assert all(peer["first_in_ns"] > other["began_ns"] for peer in row["peers"])


def test_operation_that_hangs_names_the_rank_that_has_not_come() -> None:
    with Ranks(["rome", "berlin", "oslo"]) as ranks:
        ranks.init()
        number = _on(ranks, 0, _last_number)
        _on(ranks, 0, _begin)
        _on(ranks, 1, _begin)
        for _ in range(1200):
            (row,) = _on(ranks, 0, _log_after, number)
            came = {peer["site"] for peer in row["peers"] if peer["first_in_ns"] is not None}
            if came:
                break
            time.sleep(0.05)
        assert row["ended_ns"] is None
        assert {peer["site"] for peer in row["peers"]} - came == {"oslo"}
        _on(ranks, 2, _begin)
        ranks.run(_end)
        (row,) = _on(ranks, 0, _log_after, number)
        assert row["ended_ns"] is not None


def test_sparse_sum_is_one_operation_that_ends() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        for rank, rows in enumerate(ranks.run(_sparse_sum)):
            (row,) = rows
            assert (row["kind"], row["failed"]) == ("sparse_all_reduce", False)
            assert row["issued_ns"] <= row["began_ns"] <= row["exchanged_ns"] <= row["ended_ns"]
            assert [peer["rank"] for peer in row["peers"]] == [1 - rank]


def test_calls_on_a_failed_group_are_no_operations_under_way() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        ranks.set_timeout(1)
        (row,) = _on(ranks, 0, _calls_on_a_failed_group)
        assert (row["kind"], row["failed"]) == ("all_reduce", True)
        assert row["ended_ns"] is not None
