"""A rank of an elastic run whose data is dealt: trains a small model, and writes down which sequences it has read.

python -m support.data_rank OUT BATCH_SIZE STEP_SECONDS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import geocomm

EVERY = 5


def main(out: str, batch_size: str, step_seconds: str) -> None:
    """Train until the file OUT/stop is there, or the site has left."""
    rank, ranks = 0, int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("geocomm")
        rank = dist.get_rank()
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(8, 8)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=EVERY, fragments=2))
    data = geocomm.SiteDataset(outer, batch_size=int(batch_size))
    stop = Path(out) / "stop"
    with (Path(out) / f"{os.environ['GEOCOMM_SITE']}.{rank}.jsonl").open("a", buffering=1) as log:
        at = outer.site_tokens // (data.batch_tokens // (int(batch_size) * ranks)) + rank * int(batch_size)
        for rows in data:
            print(json.dumps({"at": at, "ids": [int(row[0]) for row in rows]}), file=log)
            at += int(batch_size) * ranks
            model(rows[:, :8].float() / 1e6).square().mean().backward()
            time.sleep(float(step_seconds))
            outer.count_tokens(data.batch_tokens)
            optimizer.step()
            optimizer.zero_grad()
            stops = torch.tensor([int(stop.exists())])
            if ranks > 1:
                dist.all_reduce(stops)
            if stops.item():
                break
        outer.finish()
        print(json.dumps({"end": True}), file=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
