"""A rank of an elastic run: trains a small model with local steps, and writes a line of JSON after each step.

python -m tests.support.elastic_training OUT STEPS STEP_SECONDS EVERY [plain|ddp|fsdp2|cuda [FRAGMENTS [REDUCE]]]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
import xxhash
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import geocomm
from geocomm.elastic.journal.messages import Offer, Peer, Summed
from geocomm.sync.local_steps.elastic.frame_mail import FrameMail
from geocomm.sync.local_steps.model.optimizer_state import local_part

FEATURES = 64
MAILED: list[tuple[str, str, int, int]] = []
"""Frames that this rank has mailed, to which sites, and for which fragment and version."""
_send = FrameMail.send


def _counted_send(of: FrameMail, offer: Offer | Summed, peers: Sequence[Peer], content: torch.Tensor) -> None:
    MAILED.extend((offer.frame, peer.site, offer.fragment, offer.version) for peer in peers)
    _send(of, offer, peers, content)


def weights_digest(model: torch.nn.Module) -> str:
    """Of all parameters, in order."""
    found = xxhash.xxh3_128()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        found.update(whole.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def moments(optimizer: torch.optim.Optimizer) -> list[float]:
    """What tells this rank's second moments from those of another step; nothing where there are none."""
    return [float(local_part(state["exp_avg_sq"]).double().sum()) for state in optimizer.state.values() if state]


def build_model(fragments: int = 2) -> torch.nn.Sequential:
    """Equal at every site, and of so many parameters at least."""
    torch.manual_seed(0)
    more = [torch.nn.Linear(64, 64) for _ in range(max(0, fragments - 5) // 2)]
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64), *more, torch.nn.Linear(64, FEATURES)
    )


def main(
    out: str,
    steps: str,
    step_seconds: str,
    every: str,
    wrap: str = "plain",
    fragments: str = "2",
    reduce: Literal["all", "aggregator"] = "all",
) -> None:
    """Train, and say how it went."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("geocomm")
    model: torch.nn.Module = build_model(int(fragments))
    target = torch.randn(FEATURES, FEATURES) / 8
    if wrap == "ddp":
        model = DistributedDataParallel(model)
    elif wrap == "fsdp2":
        fully_shard(model, mesh=geocomm.device_mesh())
    elif wrap == "cuda":
        model, target = model.cuda(), target.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = geocomm.LocalSettings(every=int(every), fragments=int(fragments), reduce=reduce)
    handle = geocomm.local_steps(model, optimizer, settings)
    name = f"{os.environ['GEOCOMM_SITE']}.{os.environ.get('RANK', '0')}"
    FrameMail.send = _counted_send
    generator = torch.Generator().manual_seed(xxhash.xxh3_64(name.encode()).intdigest() % 2**31)
    began_with = moments(optimizer)
    stop = Path(out) / "stop"
    with (Path(out) / f"{name}.jsonl").open("a", buffering=1) as log:
        taken = 0
        while taken < int(steps) and not stop.exists():
            begun = time.monotonic()
            inputs = torch.randn(32, FEATURES, generator=generator).to(target.device)
            loss = (model(inputs) - inputs @ target).square().mean()
            loss.backward()
            time.sleep(float(step_seconds))
            optimizer.step()
            optimizer.zero_grad()
            taken += 1
            numbers = handle.stats()
            print(
                json.dumps(
                    {
                        "step": numbers["steps"],
                        "at": time.monotonic(),
                        "took": time.monotonic() - begun,
                        "loss": float(loss.detach()),
                        "rounds": numbers["rounds"],
                        "moments": moments(optimizer),
                        "began_with": began_with,
                    }
                ),
                file=log,
            )
        handle.finish()
        print(json.dumps({"end": weights_digest(model), "round_log": geocomm.round_log(), "mailed": MAILED}), file=log)


if __name__ == "__main__":
    main(*sys.argv[1:])
