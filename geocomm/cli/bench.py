"""`geocomm bench`: measure an all-reduce over a link, the transport, codecs, and the kernels of a GPU."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from geocomm.cli.command_end import (
    AsJson,
    SecureOption,
    SiteKeysOption,
    fail,
    require_writable,
    say,
    wait_option,
    write_plot,
)
from geocomm.core.console import table_of, working
from geocomm.core.units import parse_size
from geocomm.lab.emulator.emulated_keys import site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, WanConfigError, link_changes

_Out = Annotated[Path | None, typer.Option(help="Write the report here, and beside it as JSON.", metavar="PATH.md")]

app = typer.Typer(name="bench", help="Measure geocomm on this machine.", no_args_is_help=True)


@app.command("wan")
def bench_wan(
    rtt: Annotated[str, typer.Option(help="Round-trip time between the sites.")] = "100ms",
    rate: Annotated[str, typer.Option(help="Rate of each direction.")] = "1gbit",
    loss: Annotated[str, typer.Option(help="Loss per TCP segment.")] = "0%",
    sites: Annotated[int, typer.Option(min=2, max=16, help="Sites.")] = 2,
    sizes: Annotated[str, typer.Option(help="Sizes of the fp32 tensor, by commas.")] = "64MiB",
    codecs: Annotated[str, typer.Option(help="Codecs of geocomm, by commas; none: exact.")] = "none,int8",
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of each site.")] = 1,
    gloo: Annotated[bool, typer.Option("--gloo/--no-gloo", help="Measure Gloo on the same link.")] = True,
    gloo8: Annotated[
        bool, typer.Option("--gloo8", help="Also Gloo at its best: its interface named 8 times, 8 slices at once.")
    ] = False,
    one_site: Annotated[
        bool, typer.Option("--one-site", help="Also geocomm and Gloo at one site, two ranks on loopback.")
    ] = False,
    secure: SecureOption = False,
    keys: SiteKeysOption = None,
    pacing: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=10, help="Cap geocomm at this part of the rate (GEOCOMM_MAX_PACING_BPS).", metavar="PART"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Valid operations of each row.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Operations before those.")] = 1,
    pause: Annotated[float, wait_option("--pause", "Time between barrier and operation.")] = 0.5,
    out: _Out = None,
) -> None:
    """Time an all-reduce over an emulated link, on geocomm and on Gloo, every result verified.

    Example:

        geocomm bench wan --rtt 100ms --rate 1gbit --loss 0.1% --codecs none,int8
    """
    from geocomm.lab.bench import wan_bench
    from geocomm.lab.bench.bench_report import Conditions
    from geocomm.lab.bench.wan_bench_report import BenchSection, rich_tables, write_results

    require_writable("bench", "--out", out)
    link = EmulatedLink(**link_changes(rtt=rtt, rate=rate, loss=loss))
    sizes_bytes = [parse_size(text, "sizes") // 4 * 4 for text in sizes.split(",")]
    if min(sizes_bytes) < 4:
        raise WanConfigError(f"sizes: {sizes!r} has a size below one fp32 element, 4 bytes")
    cases = [codec.strip() for codec in codecs.split(",") if codec.strip()]
    cases += [wan_bench.GLOO] * gloo + [wan_bench.GLOO_SLICED] * gloo8
    effort = wan_bench.Effort(repeats=repeats, warmup=warmup, pause_s=pause)
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    with site_keys([f"site{number}" for number in range(sites)], keys, secure) as folder:
        rows = wan_bench.bench_link(
            link, cases, sizes_bytes, sites=sites, ranks_per_site=ranks, effort=effort, keys=folder, pacing=pacing
        )
    if one_site:
        rows += wan_bench.bench_one_site(sizes_bytes, effort=effort)
    for table in rich_tables(rows):
        say(table)
    if out is not None:
        section = BenchSection(wan_bench.describe_link(link), conditions, tuple(rows))
        say(f"written: {write_results([section], out)}", err=True)


@app.command("link")
def bench_link(
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each row.")] = 5,
    seconds: Annotated[float, wait_option("--seconds", "Time of each.", 0.1)] = 2,
    streams: Annotated[int | None, typer.Option(min=1, max=64, help="Data streams of the channel.")] = None,
    both_ways: Annotated[bool, typer.Option("--both-ways/--one-way", help="Also with both ends sending.")] = True,
    out: _Out = None,
) -> None:
    """Move data between two processes over loopback: a channel, bare TCP, and both with TLS, taking turns.

    Example:

        geocomm bench link --rounds 3 --streams 4
    """
    from geocomm.lab.bench.bench_report import Conditions, write_pair
    from geocomm.lab.bench.link_bench import HEADINGS, bench, cases, markdown, row_cells

    require_writable("bench", "--out", out)
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    measured = cases((False, True) if both_ways else (False,))
    with working("measuring") as tell:
        rows = bench(measured, rounds=rounds, seconds=seconds, streams=streams, progress=tell)
    say(table_of(HEADINGS, map(row_cells, rows)))
    if out is None:
        return
    document = {"conditions": vars(conditions), "rows": [row.to_dict() for row in rows]}
    say(f"written: {write_pair(out, markdown(rows, conditions.lines()), document)}", err=True)


@app.command("codec")
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
    as_json: AsJson = False,
) -> None:
    """List the presets and codecs with ratio, error and speed, measured here and verified.

    Random numbers are normal ones: gradients compress better (see docs/how-to/choose-a-codec.md).

    Example:

        geocomm bench codec --codec int8 --codec balanced --threads 4
    """
    from geocomm.core.errors import GeocommError
    from geocomm.core.native import native
    from geocomm.lab.bench.codec_bench import NOTES, default_codecs, measure, plot_errors, rich_table
    from geocomm.lab.bench.codec_data import from_file, gaussian

    require_writable("bench", "--plot", plot)
    try:
        data = gaussian(elements, seed) if file is None else from_file(file, elements)
        rows = measure(codec or default_codecs(), data, rounds=rounds, threads=threads)
    except GeocommError as error:
        fail("bench", str(error), 2)
    if as_json:
        conditions = {"data": data.description, "cpu": native().cpu_level(), "threads": threads, "rounds": rounds}
        print(json.dumps({"conditions": conditions, "rows": [row.to_dict() for row in rows]}, indent=1))
    else:
        say(rich_table(rows, data))
        say(f"\n{NOTES}", "dim")
        say(f"Threads: {threads}. CPU level: {native().cpu_level()}.", "dim")
    if plot is not None:
        write_plot("bench", plot, lambda path: plot_errors(rows, data, path))


@app.command("gpu")
def bench_gpu(
    codec: Annotated[
        list[str] | None, typer.Option(help="A codec or preset; may be repeated. Default: one of each kind.")
    ] = None,
    elements: Annotated[int, typer.Option(min=1 << 10, max=1 << 30, help="float32 numbers to pack.")] = 1 << 26,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each row.")] = 10,
    out: _Out = None,
) -> None:
    """Compare each codec's bytes on the GPU with the CPU's, then time its kernels.

    Then two sites of one rank each, one of them on the GPU, all-reduce 64 MiB. Send the report in where something is
    wrong, or slow.

    Example:

        geocomm bench gpu --out gpu-report.md
    """
    from geocomm.core.errors import GeocommError
    from geocomm.lab.bench import gpu_bench
    from geocomm.lab.bench.bench_report import Conditions, write_pair

    require_writable("bench", "--out", out)
    gpu = gpu_bench.require_gpu()
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    kernels: list[gpu_bench.KernelRow] = []
    reduces: list[gpu_bench.ReduceRow] = []
    remarks: list[str] = []
    with working("measuring") as tell:
        for name in codec or gpu_bench.CODECS:
            tell(f"measuring {name}")
            try:
                kernels.append(gpu_bench.kernel_row(name, elements, rounds))
            except (GeocommError, gpu_bench.GpuBenchError, RuntimeError) as error:
                remarks.append(f"`{name}`: {error}")
        tell("measuring all-reduces")
        try:
            reduces = gpu_bench.reduce_rows(64 << 20, rounds)
        except gpu_bench.GpuBenchError as error:
            remarks.append(str(error))
    for headings, rows in (
        (gpu_bench.KERNEL_HEADINGS, [gpu_bench.kernel_cells(row) for row in kernels]),
        (gpu_bench.REDUCE_HEADINGS, [gpu_bench.reduce_cells(row) for row in reduces]),
    ):
        say(table_of(headings, rows))
    if out is not None:
        header = [*conditions.lines(), f"- {gpu}"]
        written = write_pair(
            out,
            gpu_bench.markdown(kernels, reduces, header, remarks),
            gpu_bench.document(kernels, reduces, conditions),
        )
        say(f"written: {written}", err=True)
    if remarks:
        fail("bench", "\n".join(remarks), 1)
