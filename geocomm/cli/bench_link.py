"""`geocomm bench link`: what the transport moves on this machine, beside what the kernel and OpenSSL move."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.cli.command_end import fail, require_writable
from geocomm.cli.table import table_of


def bench_link(
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each row.")] = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time of each.")] = 2,
    streams: Annotated[int | None, typer.Option(min=1, max=64, help="Data streams of the channel.")] = None,
    both_ways: Annotated[bool, typer.Option("--both-ways/--one-way", help="Also with both ends sending.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Write the report here, and beside it as JSON.", metavar="PATH.md")
    ] = None,
) -> None:
    """Move data between two processes over loopback: a channel, bare TCP, and both with TLS, taking turns.

    Example:

        geocomm bench link --rounds 3 --streams 4
    """
    from geocomm.lab.bench.bench_report import Conditions, write_pair
    from geocomm.lab.bench.link_bench import HEADINGS, LinkBenchError, bench, cases, markdown, row_cells

    require_writable("bench", "--out", out)
    console = Console(stderr=True, markup=False)
    conditions = Conditions.here(shlex.join(["geocomm", *sys.argv[1:]]))
    measured = cases((False, True) if both_ways else (False,))
    try:
        with console.status("measuring") as status:
            rows = bench(measured, rounds=rounds, seconds=seconds, streams=streams, progress=status.update)
    except LinkBenchError as error:
        fail("bench", str(error), 1)
    Console(markup=False).print(table_of(HEADINGS, map(row_cells, rows)))
    if out is None:
        return
    document = {"conditions": vars(conditions), "rows": [row.to_dict() for row in rows]}
    console.print(f"written: {write_pair(out, markdown(rows, conditions.lines()), document)}", highlight=False)
