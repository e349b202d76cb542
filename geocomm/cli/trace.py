"""`geocomm trace`: the last steps of a run, for Perfetto."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import TelemetryFolder, fail, open_store, require_writable, say
from geocomm.core.units import count_text

if TYPE_CHECKING:
    from geocomm.observe.diagnosis.trace_export import Trace

app = typer.Typer()


@app.command()
def trace(
    out: Annotated[Path, typer.Option(metavar="PATH.tar", help="Write it here.")],
    folder: TelemetryFolder = Path(),
    steps: Annotated[int, typer.Option(min=1, help="How many of each rank's last steps.")] = 3,
) -> None:
    """Write the last steps of all ranks as a trace: open it at ui.perfetto.dev, or in trace_processor.

    Shows each rank's steps, operations between sites with their parts, what came from which rank, and rounds of local
    steps, all on one clock. Operations are known for an hour.

    Example:

        geocomm trace telemetry --steps 5 --out run.tar
    """
    from geocomm.observe.diagnosis.trace_export import read_trace, write_trace
    from geocomm.observe.telemetry.overview import moment

    require_writable("trace", "--out", out)
    store = open_store(folder)
    try:
        made = read_trace(store, moment(store, time.time()), steps)
        write_trace(made, out)
    except OSError as error:
        fail("trace", f"--out {out}: {error.strerror}", 1)
    say(f"{out}: {_told(made)}")
    if made.left_out:
        names = ", ".join(f"rank {rank.rank} (site {rank.site})" for rank in made.left_out)
        say(f"Left out, since silent or without a step: {names}.")


def _told(made: Trace) -> str:
    seconds = (made.end_ns - made.begin_ns) / 1e9
    operations = sum(len(one.operations) for one in made.ranks)
    most = f"{made.error_ns / 1e6:.3g} ms"
    clocks = (
        f"clocks agree within {most}"
        if made.clocks_measured
        else f"clocks may be {most} apart: some are by the machines' times of day, since no link has measured them"
    )
    return f"{count_text(len(made.ranks), 'rank')}, {seconds:.3g} s, {count_text(operations, 'operation')}; {clocks}."
