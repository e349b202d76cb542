"""What rounds of local steps send."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import geocomm
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Reduce
from support.local_models import adamw

FRAGMENTS, CYCLES = 4, 3
FRAME_BYTES = 4 * 256 * 256
"""Of a fragment, which crosses exactly."""


def sent_to_sites(reduce: Reduce) -> dict[str, int]:
    """Bytes that this rank, alone at its site, has sent to each other site in `CYCLES` of `FRAGMENTS` rounds."""
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(FRAGMENTS)))
    handle = local_steps(
        model,
        optimizer := adamw(model),
        LocalSettings(every=4, overlap=0, codec="none", fragments=FRAGMENTS, deterministic=True, reduce=reduce),
    )

    def sent() -> dict[str, int]:
        dist.barrier()  # what the others have received is counted as sent
        return {peer["site"]: peer["bytes_sent"] for peer in geocomm.stats()["peers"]}

    before = sent()
    for step in range(4 * CYCLES):
        model(torch.randn(4, 256, generator=torch.Generator().manual_seed(step))).square().mean().backward()
        optimizer.step()
    after = sent()
    handle.finish()
    return {site: after[site] - before[site] for site in after}
