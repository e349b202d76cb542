"""The guard's way down to finer codecs, over real ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from geocomm.metrics.events import EventReader
from geocomm.metrics.events import events as events_of_process
from support import planned_gradients as planned
from support.harness import joined


def _growing(step: int, rank: int, name: str) -> torch.Tensor:
    """Fixed directions of which a top-k of one in 4096 sends the same few."""
    seed = list(planned.SHAPES).index(name)
    values = torch.randn(planned.SHAPES[name], generator=torch.Generator().manual_seed(seed)).sign() * 0.01
    values.view(-1)[:3] = 100.0 / (1 + step)
    return values


def _fall_back() -> tuple[str, list[dict[str, Any]], list[bool], list[dict[str, Any]]]:
    planned.plan = _growing
    planned.make("topk:k=1", guard_steps=4)
    replicas = []
    for number in range(60):
        mean = planned.step(number)
        gathered = [torch.empty_like(mean["three"]) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, mean["three"])
        replicas.append(all(torch.equal(one, mean["three"]) for one in gathered))
    stats = planned.handle().stats()
    events = [one.fields for one in EventReader(events_of_process).take() if one.kind == "codec_fallback"]
    return stats["codec"], stats["fallbacks"], replicas, events


def test_guard_falls_back_on_all_ranks_in_the_same_step() -> None:
    with joined(["a", "b", "a"], environment={"GEOCOMM_LOG": "warning"}) as ranks:
        results = ranks.run(_fall_back)
        assert all(result == results[0] for result in results)
        codec, fallbacks, replicas, events = results[0]
        assert fallbacks
        assert codec == fallbacks[-1]["codec"] != "topk:k=1"
        assert [{name: event[name] for name in ("step", "codec", "reason")} for event in events] == fallbacks
        assert [event["before"] for event in events] == ["topk:k=1", *(one["codec"] for one in fallbacks[:-1])]
        assert all(replicas)
        assert ranks.output(0).count("on all ranks") == len(fallbacks)
        assert ranks.output(1).count("on all ranks") == 0
