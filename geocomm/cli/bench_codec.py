"""`geocomm bench codec`: what each codec makes of data, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.cli.command_end import fail, require_writable, write_plot


def bench_codec(
    codec: Annotated[
        list[str] | None,
        typer.Option(help="A codec or preset, such as 'int4:block=64+huffman'; may be repeated. Default: a choice."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Measure on a .npy, .pt or .safetensors file, or on raw float32 numbers.")
    ] = None,
    elements: Annotated[
        int, typer.Option(min=1, max=1 << 28, help="Random numbers, or at most this many of the file.")
    ] = 1 << 22,
    rounds: Annotated[int, typer.Option(min=1, help="Times that each codec is timed.")] = 5,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Threads of the codecs.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of the random numbers.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw error over ratio into PATH.", metavar="PATH.png")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the presets and codecs with their ratio, error and speed, measured on the spot and verified.

    Random numbers are normal ones: gradients compress better (see docs/how-to/choose-a-codec.md).

    Example:

        geocomm bench codec --codec int8 --codec balanced --threads 4
    """
    from geocomm.core.errors import GeocommError
    from geocomm.core.native import native
    from geocomm.lab.bench.codec_bench import CodecBenchError, default_codecs, measure
    from geocomm.lab.bench.codec_data import CodecDataError, from_file, gaussian
    from geocomm.lab.bench.codec_report import NOTES, rich_table

    require_writable("bench", "--plot", plot)
    try:
        data = gaussian(elements, seed) if file is None else from_file(file, elements)
        rows = measure(codec or default_codecs(), data, rounds=rounds, threads=threads)
    except (CodecDataError, GeocommError) as error:
        fail("bench", str(error), 2)
    except CodecBenchError as error:
        fail("bench", str(error), 1)
    if as_json:
        conditions = {"data": data.description, "cpu": native().cpu_level(), "threads": threads, "rounds": rounds}
        print(json.dumps({"conditions": conditions, "rows": [row.to_dict() for row in rows]}, indent=1))
    else:
        console = Console(markup=False)
        console.print(rich_table(rows, data))
        console.print(f"\n{NOTES}", highlight=False, style="dim")
        console.print(f"Threads: {threads}. CPU level: {native().cpu_level()}.", highlight=False, style="dim")
    if plot is not None:
        from geocomm.lab.bench.codec_report import plot as draw

        write_plot("bench", plot, lambda path: draw(rows, data, path))
