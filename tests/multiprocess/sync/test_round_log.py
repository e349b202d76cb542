"""The round log: the times of rounds between two sites, who is waited for, and who has not come."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist

import geocomm
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.harness import Ranks
from support.local_models import adamw, make_model, train_steps

SITES = ["a", "b"]
EVERY = 4
TIMES = ("due_ns", "begun_ns", "offered_ns", "listed_ns", "averaged_ns", "applied_ns")

_run: dict[str, Any] = {}


def _begin() -> None:
    model = make_model()
    settings = LocalSettings(every=EVERY, overlap=2, codec="int8", deterministic=True)
    _run.update(model=model, optimizer=(optimizer := adamw(model)), handle=local_steps(model, optimizer, settings))


def _train(begin: int, end: int) -> None:
    train_steps(_run["model"], _run["optimizer"], SITES[dist.get_rank()], range(begin, end))


def _finish() -> None:
    handle: LocalSteps = _run["handle"]
    handle.finish()


def _on(ranks: Ranks, rank: int, begin: int, end: int) -> None:
    (outcome,) = ranks.outcomes(_train, begin, end, ranks=[rank])
    assert outcome.failure is None, outcome.failure


def test_rounds_have_times_in_order_and_name_the_late_site() -> None:
    with Ranks(SITES) as ranks:
        ranks.init()
        ranks.run(_begin)
        _on(ranks, 0, 0, EVERY)
        # Site b has not come: site a sees it, with its own part done.
        for _ in range(1200):
            (row,), there = ranks.run(geocomm.round_log)
            if row["offered_ns"] is not None:
                break
            time.sleep(0.05)
        assert there == []
        assert (row["round"], row["fragment"], row["elastic"], row["last"], row["step"]) == (0, 0, False, False, EVERY)
        assert row["due_ns"] <= row["begun_ns"] < row["offered_ns"]
        assert row["listed_ns"] is row["counted"] is row["last_arrived"] is None
        assert [(peer["site"], peer["arrived_ns"]) for peer in row["peers"]] == [("b", None)]

        _on(ranks, 1, 0, EVERY)
        ranks.run(_train, EVERY, 2 * EVERY + 1)  # the last round has a step, and counts
        ranks.run(_finish)
        logs = ranks.run(geocomm.round_log)
        for site, rows in zip(SITES, logs, strict=True):
            # Both machines are this one, so their clocks are.
            assert [one["last"] for one in rows] == [False, False, True]
            assert [one["number"] for one in rows] == [1, 2, 3]
            for one in rows:
                times = [one[name] for name in TIMES if name != "due_ns" or not one["last"]]
                assert times == sorted(times)
                (peer,) = one["peers"]
                assert peer["site"] != site
                assert peer["announced_ns"] <= peer["arrived_ns"] <= one["averaged_ns"]
                assert one["counted"] == SITES
                assert one["attempts"] == 1
                assert 0 < one["coding_ns"] < one["averaged_ns"] - one["begun_ns"]
                assert one["stored_ns"] is None
                assert not one["failed"]
        assert [[one["last_arrived"] for one in rows] for rows in logs] == [["b"] * 3, ["a"] * 3]
        for here, (peer,) in zip(logs[0], (one["peers"] for one in logs[1]), strict=True):
            assert (peer["bytes"], peer["step"], peer["weight"]) == (here["bytes"], here["step"], here["weight"])
            assert peer["arrived_ns"] > here["begun_ns"]
        assert ranks.run(geocomm.round_log, 2) == [rows[2:] for rows in logs]
