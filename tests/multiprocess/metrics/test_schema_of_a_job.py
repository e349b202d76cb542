"""The schema of metrics is what a real job reports: no counter is missing in it, and it promises no other."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch.distributed as dist

from geocomm.metrics import schema
from support import planned_gradients, reports
from support.harness import Ranks


def _counted() -> dict[str, Any]:
    """stats() after an operation, and after a step whose bucket was compressed; also what the native group reports."""
    import geocomm
    from geocomm.group.backend.runtime import runtime

    dist.all_reduce(torch.ones(1000))
    planned_gradients.make("balanced")
    planned_gradients.run_steps(0, 2)
    planned_gradients.handle().stats()  # settles the last step
    assert runtime.world is not None
    return geocomm.stats() | {"of the native group": runtime.world.backend.stats(), "of the log": geocomm.op_log()}


def _counted_with_local_steps() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What stats() has of three steps with rounds, and of a run that is gone; and the rounds."""
    import gc

    import geocomm

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=2, overlap=1, deterministic=True))
    for _ in range(3):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    living = geocomm.stats()["local_steps"]
    handle.finish()
    del handle
    gc.collect()
    assert geocomm.stats()["local_steps"] == []
    return living, geocomm.round_log()


def _kept(**more: Any) -> dict[str, Any]:
    """What a collector keeps of fields of a report."""
    own = {"site": "a", "rank": 0, "process": "0" * 16, "sequence": 1, "time": 0.0, "now_ns": 1}
    report = reports.line({**own, **more}).report
    return {name: getattr(report, name) for name in more}


def _without_nan(told: Any) -> Any:
    """As text, in which NaN is equal to itself."""
    return json.loads(json.dumps(told), parse_constant=str)


def test_job_with_local_steps_reports_what_the_schema_has_and_nothing_else() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        for (run,), rounds in ranks.run(_counted_with_local_steps):
            assert _without_nan(_kept(rounds=rounds)["rounds"]) == _without_nan(rounds)
            assert _without_nan(_kept(stats={"local_steps": [run]})["stats"]["local_steps"]) == [_without_nan(run)]
            assert rounds
            assert set(run) == set(schema.names(schema.LOCAL_STEPS))
            assert (run["steps"], run["rounds"]) == (3, 1)


def test_job_of_two_sites_reports_what_the_schema_has_and_nothing_else() -> None:
    with Ranks(["rome", "berlin"]) as ranks:
        ranks.init()
        for stats in ranks.run(_counted):
            native, operations = stats.pop("of the native group"), stats.pop("of the log")
            # Nothing of what a rank tells is refused, dropped or changed where it comes in.
            assert _without_nan(_kept(stats=stats)["stats"]) == _without_nan(stats)
            assert _without_nan(_kept(operations=operations)["operations"]) == _without_nan(operations)
            assert operations
            assert set(native) == set(schema.names(schema.COUNTERS))
            assert set(stats) == set(schema.names(schema.TOTALS))
            assert len(stats["groups"]) == 2
            for group in stats["groups"]:
                assert set(group) == set(schema.names(schema.GROUPS))
            (peer,) = stats["peers"]
            assert set(peer) == set(schema.names(schema.PEERS))
            assert set(stats["memory"]) == set(schema.names(schema.MEMORY))
            (hook,) = stats["gradients"]
            assert set(hook) == set(schema.names(schema.GRADIENTS))
            assert hook["buckets"]
            for bucket in hook["buckets"]:
                assert set(bucket) == set(schema.names(schema.BUCKETS))
