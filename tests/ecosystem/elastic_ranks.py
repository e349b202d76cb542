"""A rank of test_elastic_restart: trains with DDP, saves every step, and goes on from the last checkpoint.

elastic_ranks.py BACKEND FOLDER FAIL        FAIL: the step in which rank 1 dies, once (-1: none)
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel
from training_cases import Net, batch, digest_of

STEPS = 6


def main(backend: str, folder: Path, fail: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    net = Net()
    del net.other_head
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    state = {
        "step": torch.tensor(0),
        "net": net.state_dict(),
        "momentum": [torch.zeros_like(p) for p in net.parameters()],
    }
    done = sorted(folder.glob("step*/.metadata"))
    if done:
        dcp.load(state, checkpoint_id=done[-1].parent)
        net.load_state_dict(state["net"])
        for parameter, saved in zip(net.parameters(), state["momentum"], strict=True):
            optimizer.state[parameter]["momentum_buffer"] = saved
    first = int(state["step"])
    for step in range(first, STEPS):
        if step == fail and dist.get_rank() == 1 and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(17)
        x, y = batch(step)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["step"].fill_(step + 1)
        state["momentum"] = [optimizer.state[parameter]["momentum_buffer"] for parameter in net.parameters()]
        dcp.save(state, checkpoint_id=folder / f"step{step + 1}")
    result = {"digest": digest_of(net.parameters()), "first step": first}
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
