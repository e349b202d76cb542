"""One rank of `geocomm bench gpu`: all-reduces of CUDA and CPU tensors, each checked, then timed in turn.

Only rank 0 is on the GPU: two processes that share one take turns on it, by slices of milliseconds.

`python -m geocomm.lab.bench.gpu_bench_worker OUT BYTES ROUNDS`; rank 0 writes OUT. The default process group is Gloo.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.options import Options
from geocomm.core.typed_torch import new_group

CODECS = ("none", "int8", "balanced", "lossless")


def inputs(elements: int) -> list[torch.Tensor]:
    """What each rank brings."""
    return [torch.randn(elements, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]


def all_reduce_seconds(values: torch.Tensor, group: dist.ProcessGroup | None, exact: bool) -> float:
    """One all-reduce, from a barrier to the end on the device. RuntimeError: the sum is wrong."""
    tensor = values[dist.get_rank()].clone()
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(tensor, group=group)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    wanted = values[0] + values[1]
    error = float((tensor - wanted).double().square().sum() / wanted.double().square().sum())
    if error > (0 if exact else 0.05):
        raise RuntimeError(f"the sum is wrong: its squared error is {error:.2g} of its squared norm")
    return seconds


def main() -> None:
    """Every case in turn, ROUNDS times after one that warms up."""
    out, size_bytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo")
    values = torch.stack(inputs(size_bytes // 4))
    of_device = {"cuda": values.cuda() if dist.get_rank() == 0 else values, "cpu": values}
    cases: list[tuple[str, str, dist.ProcessGroup | None, bool]] = [("gloo", "cuda", None, True)]
    for codec in CODECS:
        group = new_group(range(2), backend="geocomm", pg_options=Options(codec=codec))
        cases += [(codec, device, group, codec_spec(codec).exact) for device in of_device]
    times: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds + 1):
        for case, (_, device, group, exact) in zip(times, cases, strict=True):
            case.append(all_reduce_seconds(of_device[device], group, exact))
    rows = [
        {"name": name, "device": device, "seconds": statistics.median(seconds[1:])}
        for (name, device, _, _), seconds in zip(cases, times, strict=True)
    ]
    if dist.get_rank() == 0:
        out.write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
