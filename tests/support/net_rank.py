"""A rank that adds its number to the others': `python -m support.net_rank`. Prints the sum, and its own addresses."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist

from geocomm.group.backend.runtime import runtime


def main() -> None:
    dist.init_process_group("geocomm", timeout=timedelta(seconds=60))
    values = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(values)
    hosts = runtime.world.infos[dist.get_rank()].hosts
    print(f"sum={values[0].item()}", f"hosts={','.join(hosts)}", sep="\n", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
