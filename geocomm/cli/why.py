"""`geocomm why`: what makes a run slow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from geocomm.cli.command_end import AsJson, TelemetryFolder, fail, open_store, say, standstill_text
from geocomm.core.units import count_text

if TYPE_CHECKING:
    from geocomm.observe.diagnosis.bottleneck import Diagnosis
    from geocomm.observe.diagnosis.run_window import RunWindow

app = typer.Typer()


@app.command()
def why(
    folder: TelemetryFolder = Path(),
    last: Annotated[int, typer.Option(min=2, help="Look at this many steps.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Say what makes a run slow, what it costs, and what helps.

    It replays the last steps without one cause at a time, and names the causes that would save most, with what was
    measured. It works during the run and after.

    Example:

        geocomm why telemetry
    """
    import sqlite3
    import time

    from geocomm.observe.diagnosis.bottleneck import diagnose
    from geocomm.observe.diagnosis.run_window import read_window
    from geocomm.observe.telemetry.overview import moment, overview

    store = open_store(folder)
    try:
        window = read_window(store, last)
        standstill_s = overview(store, moment(store, time.time())).standstill_seconds
    except (sqlite3.Error, OSError) as error:
        fail("why", str(error))
    diagnosis = diagnose(window)
    if as_json:
        typer.echo(json.dumps(_row(window, diagnosis, standstill_s)))
        return
    if standstill_s is not None:
        say(f"{standstill_text(standstill_s, folder)} Before that:", "bold red")
    _show(window, diagnosis)


def _row(window: RunWindow, diagnosis: Diagnosis, standstill_s: float | None) -> dict[str, object]:
    return {
        "steps": window.step_count,
        "ranks": len(window.ranks),
        "of_ranks": window.of_ranks,
        "last_heard": window.last_heard,
        "over": window.over,
        "standstill_seconds": round(standstill_s or 0.0, 1),
        "step_seconds": round(diagnosis.step_seconds, 6),
        "parts": diagnosis.parts,
        "verdicts": [verdict.row() for verdict in diagnosis.verdicts],
        "notes": list(diagnosis.notes),
    }


def _show(window: RunWindow, diagnosis: Diagnosis) -> None:
    if diagnosis.step_seconds > 0:
        parts = ", ".join(
            f"{name} {'not told' if seconds is None else f'{seconds / diagnosis.step_seconds:.0%}'}"
            for name, seconds in diagnosis.parts.items()
        )
        say(
            f"{count_text(window.step_count, 'step')} of {diagnosis.step_seconds:.3f} s, "
            f"{count_text(len(window.ranks), 'rank')}: {parts}."
        )
    from geocomm.observe.diagnosis.verdict import Cause, headline

    first, *others = diagnosis.verdicts
    say("")
    say(headline(first), "bold")
    for verdict in others:
        if verdict.cause is Cause.UNKNOWN:
            say(headline(verdict), "bold")
    evidence = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for name, value in first.evidence:
        evidence.add_row(name, value)
    say(evidence)
    say(f"  {first.fix}")
    others = [verdict for verdict in others if verdict.cause is not Cause.UNKNOWN]
    if others:
        say("")
        say("Also, each by itself:")
        for verdict in others:
            say(f"  {headline(verdict)}")
    for note in diagnosis.notes:
        say(note, "yellow")
