"""A rank of bench_elastic.py: local steps on a model whose state is large and whose steps are cheap.

elastic_worker.py FOLDER WIDTH STEP_SECONDS EVERY

Writes a line of JSON for each step to FOLDER/SITE.jsonl, until there is a file FOLDER/stop; before them one that says
when all was imported (`begins`). In an elastic run it is a
site of its own; else all ranks are one process group.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import geocomm
from geocomm.sync.local_steps.local_steps import LocalSteps

ROWS = 4


def anchors(handle: LocalSteps) -> list[list[int | str]]:
    """[version, digest] of each fragment."""
    held = handle._own._held  # pyright: ignore[reportPrivateUsage]
    return [[held[index].version, held[index].digest()] for index in sorted(held)]


def main(folder: str, width: int, step_seconds: float, every: int) -> None:
    """Train until asked to stop."""
    began = time.monotonic()
    grouped = int(os.environ["WORLD_SIZE"]) > 1
    if grouped:
        dist.init_process_group("geocomm")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.Linear(width, width, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    reduce = "aggregator" if os.environ.get("REDUCE") == "aggregator" else "all"
    handle = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=every, reduce=reduce))
    torch.manual_seed(int.from_bytes(os.environ["GEOCOMM_SITE"].encode(), "big"))
    stop = Path(folder) / "stop"
    with (Path(folder) / f"{os.environ['GEOCOMM_SITE']}.jsonl").open("a", buffering=1, encoding="utf-8") as log:
        print(json.dumps({"begins": began}), file=log)
        rounds, more = 0, 1
        while more:
            begun = time.monotonic()
            inputs = torch.randn(ROWS, width)
            (model(inputs) - inputs).square().mean().backward()
            time.sleep(max(0.0, begun + step_seconds - time.monotonic()))
            hooked = time.monotonic()
            optimizer.step()
            ended = time.monotonic()
            optimizer.zero_grad()
            line: dict[str, Any] = {"at": ended, "took": ended - begun, "hook": ended - hooked, "step": handle.run_step}
            if handle.stats()["rounds"] != rounds:
                rounds = handle.stats()["rounds"]
                line["states"] = anchors(handle)
            print(json.dumps(line), file=log)
            more = int(not stop.exists())
            if grouped:  # all end after the same step; outside of what is measured
                told = torch.tensor([more])
                dist.all_reduce(told, op=dist.ReduceOp.MIN)
                more = int(told)
        handle.finish()
    if grouped:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
