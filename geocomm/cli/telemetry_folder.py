"""What the commands share that read a run's telemetry."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.core.bad_input import BadInput
from geocomm.core.units import duration_text

if TYPE_CHECKING:
    from geocomm.observe.telemetry.run_store import RunStore

TelemetryFolder = Annotated[
    Path, typer.Argument(help="The folder of --telemetry at the hub, or a site's --run-dir.", metavar="[FOLDER]")
]


def open_store(folder: Path) -> RunStore:
    """The run store in `folder`; BadInput: there is none."""
    from geocomm.observe.telemetry.run_store import RunStore

    try:
        return RunStore(folder)
    except (sqlite3.Error, OSError) as error:
        raise BadInput(str(error)) from None


def standstill_text(seconds: float, folder: Path) -> str:
    """What comes first where a run stands still."""
    return f"No step for {duration_text(seconds)}: geocomm hang {folder} says who has not come to what."
