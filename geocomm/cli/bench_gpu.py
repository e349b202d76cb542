"""`geocomm bench gpu`: whether the kernels give the CPU's bits on this GPU, and what they cost."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.cli.command_end import fail, require_writable
from geocomm.cli.table import table_of


def bench_gpu(
    codec: Annotated[
        list[str] | None, typer.Option(help="A codec or preset; may be repeated. Default: one of each kind.")
    ] = None,
    elements: Annotated[int, typer.Option(min=1 << 10, max=1 << 30, help="float32 numbers to pack.")] = 1 << 26,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each row.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write the report here, and beside it as JSON.", metavar="PATH.md")
    ] = None,
) -> None:
    """Compare each codec's bytes on the GPU with the CPU's, then time its kernels beside a copy of the GPU's memory.

    Then two sites of one rank each, one of them on the GPU, all-reduce 64 MiB. Send the report in where something is
    wrong, or slow.

    Example:

        geocomm bench gpu --out gpu-report.md
    """
    from geocomm.core.errors import GeocommError
    from geocomm.lab.bench import gpu_bench
    from geocomm.lab.bench.bench_report import Conditions, write_pair

    require_writable("bench", "--out", out)
    console = Console(stderr=True, markup=False)
    try:
        gpu = gpu_bench.require_gpu()
    except gpu_bench.GpuBenchError as error:
        fail("bench", str(error), 2)
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    kernels: list[gpu_bench.KernelRow] = []
    reduces: list[gpu_bench.ReduceRow] = []
    remarks: list[str] = []
    with console.status("measuring") as status:
        for name in codec or gpu_bench.CODECS:
            status.update(f"measuring {name}")
            try:
                kernels.append(gpu_bench.kernel_row(name, elements, rounds))
            except (GeocommError, gpu_bench.GpuBenchError, RuntimeError) as error:
                remarks.append(f"`{name}`: {error}")
        status.update("measuring all-reduces")
        try:
            reduces = gpu_bench.reduce_rows(64 << 20, rounds)
        except gpu_bench.GpuBenchError as error:
            remarks.append(str(error))
    for headings, rows in (
        (gpu_bench.KERNEL_HEADINGS, [gpu_bench.kernel_cells(row) for row in kernels]),
        (gpu_bench.REDUCE_HEADINGS, [gpu_bench.reduce_cells(row) for row in reduces]),
    ):
        Console(markup=False).print(table_of(headings, rows))
    if out is not None:
        header = [*conditions.lines(), f"- {gpu}"]
        written = write_pair(
            out,
            gpu_bench.markdown(kernels, reduces, header, remarks),
            gpu_bench.document(kernels, reduces, conditions),
        )
        console.print(f"written: {written}", highlight=False)
    if remarks:
        fail("bench", "\n".join(remarks), 1)
