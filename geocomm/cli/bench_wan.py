"""`geocomm bench wan`: what an all-reduce costs over an emulated link."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.cli.command_end import fail, require_writable
from geocomm.core.units import UnitError, parse_size
from geocomm.lab.emulator.emulated_keys import site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, WanConfigError, WanError, link_changes


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
    secure: Annotated[
        bool, typer.Option("--secure", help="TLS between the sites, with keys made for this run.")
    ] = False,
    keys: Annotated[Path | None, typer.Option(help="TLS between the sites, with this folder of keys.")] = None,
    pacing: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=10, help="Cap geocomm at this part of the rate (GEOCOMM_MAX_PACING_BPS).", metavar="PART"
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Valid operations of each row.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Operations before those.")] = 1,
    pause: Annotated[float, typer.Option(min=0, help="Seconds between barrier and operation.")] = 0.5,
    out: Annotated[
        Path | None, typer.Option(help="Write the report here, and beside it as JSON.", metavar="PATH.md")
    ] = None,
) -> None:
    """Time an all-reduce over an emulated link: geocomm, and Gloo, in one run, every result verified.

    Example:

        geocomm bench wan --rtt 100ms --rate 1gbit --loss 0.1% --codecs none,int8
    """
    from geocomm.lab.bench.bench_report import Conditions
    from geocomm.lab.bench.wan_bench import (
        GLOO,
        GLOO_SLICED,
        BenchError,
        Effort,
        bench_link,
        bench_one_site,
        describe_link,
        max_nmse,
    )
    from geocomm.lab.bench.wan_bench_report import BenchSection, rich_tables, write_results

    require_writable("bench", "--out", out)
    try:
        link = EmulatedLink(**link_changes(rtt=rtt, rate=rate, loss=loss))
        sizes_bytes = [parse_size(text, "sizes") // 4 * 4 for text in sizes.split(",")]
        if min(sizes_bytes) < 4:
            raise WanConfigError(f"sizes: {sizes!r} has a size below one fp32 element, 4 bytes")
        cases = [codec.strip() for codec in codecs.split(",") if codec.strip()] + [GLOO] * gloo + [GLOO_SLICED] * gloo8
        for case in cases:
            max_nmse(case)
    except (WanConfigError, UnitError, BenchError) as error:
        fail("bench", str(error))
    effort = Effort(repeats=repeats, warmup=warmup, pause_s=pause)
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    try:
        with site_keys([f"site{number}" for number in range(sites)], keys, secure) as folder:
            rows = bench_link(
                link, cases, sizes_bytes, sites=sites, ranks_per_site=ranks, effort=effort, keys=folder, pacing=pacing
            )
        if one_site:
            rows += bench_one_site(sizes_bytes, effort=effort)
    except (WanError, BenchError) as error:
        status = 2 if isinstance(error, WanConfigError) else 125 if isinstance(error, WanError) else 1
        fail("bench", str(error), status)
    for table in rich_tables(rows):
        Console(markup=False).print(table)
    if out is not None:
        section = BenchSection(describe_link(link), conditions, tuple(rows))
        Console(stderr=True, markup=False).print(f"written: {write_results([section], out)}", highlight=False)
