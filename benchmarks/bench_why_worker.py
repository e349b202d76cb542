"""A rank of `bench_why.py`: steps of a sleep and some all-reduces, as its environment says."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist

import geocomm
from geocomm.core.typed_torch import all_reduce


def number(name: str, default: float) -> float:
    """What the environment says."""
    return float(os.environ.get(f"WHY_{name}", default))


def main() -> None:
    """Train nothing, at the pace of the plan."""
    torch.set_num_threads(1)
    slow = os.environ["GEOCOMM_SITE"] == os.environ.get("WHY_SLOW_SITE")
    compute = number("COMPUTE", 0.1) + (number("SLOW", 0.0) if slow else 0.0)
    loading = number("INPUT", 0.0)
    steps, operations = int(number("STEPS", 40)), int(number("OPERATIONS", 2))
    dist.init_process_group("geocomm")
    generator = torch.Generator().manual_seed(int(number("SEED", 0)))
    tensors = [torch.randn(int(number("KIB", 1024) * 256), generator=generator) for _ in range(operations)]
    for step in range(steps):
        began = time.monotonic()
        time.sleep(loading)
        loaded = time.monotonic() - began
        time.sleep(compute)  # an accelerator computes: it takes no core
        for tensor in tensors:
            all_reduce(tensor)
            tensor /= dist.get_world_size()
        geocomm.report_step(step + 1, input_seconds=loaded, of_steps=steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
