"""What commands share: options of several, how they print, how they end where they cannot do what was asked of them,
and the telemetry of a run that some of them read."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from geocomm.core.bad_input import BadInput
from geocomm.core.message_log import printable
from geocomm.core.units import UnitError, duration_text, parse_wait

if TYPE_CHECKING:
    from rich.console import RenderableType

    from geocomm.elastic.journal.journal import SqliteJournal
    from geocomm.observe.telemetry.run_store import RunStore

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SecureOption = Annotated[bool, typer.Option("--secure", help="TLS between the sites, with keys made for this run.")]
SiteKeysOption = Annotated[Path | None, typer.Option(help="TLS between the sites, with this folder of keys.")]
TelemetryFolder = Annotated[
    Path, typer.Argument(help="The folder of --telemetry at the hub, or a site's --run-dir.", metavar="[FOLDER]")
]


def wait_option(option: str, text: str, least_s: float = 0.0, most_s: float = math.inf) -> Any:
    """An option that says how long to wait: "90s", "2min" or a bare number of seconds; its value is in seconds.

    text: its help.
    """

    def read(said: str | float) -> float:
        try:
            seconds = parse_wait(said, option)
        except UnitError as error:  # of a ValueError the command line would say less
            raise BadInput(str(error)) from None
        if not least_s <= seconds <= most_s:
            limits = f"{least_s:g} s or more" if most_s == math.inf else f"{least_s:g} s to {most_s:g} s"
            raise BadInput(f"{option}: {said!r} is not {limits}")
        return seconds

    return typer.Option(option, help=f"{text} In seconds, or as 90s or 2min.", metavar="TIME", parser=read)


def say(what: RenderableType, style: str | None = None, *, err: bool = False, wrap: bool = False) -> None:
    """Print a table, or a line as it is, with no markup or colours of its own; err: to stderr; wrap: in several."""
    from geocomm.core.console import plain_console

    plain_console(err=err).print(what, style=style, soft_wrap=isinstance(what, str) and not wrap)


def fail(command: str, message: str, status: int = 2) -> NoReturn:
    """Say on stderr what is wrong, which another machine may have told, and exit with `status`."""
    say(printable(f"geocomm {command}: {message}", keep="\n\t"), "red", err=True)
    raise typer.Exit(status)


def require_writable(command: str, option: str, path: Path | None) -> None:
    """Before the work whose result goes to `path`: make its folder, and end with status 2 where writing would fail."""
    if path is None:
        return
    folder = path.absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(command, f"{option} {path}: {folder} cannot be made: {error.strerror}")
    if path.is_dir():
        fail(command, f"{option} {path}: it is a folder; name a file")
    if not os.access(path if path.exists() else folder, os.W_OK):
        fail(command, f"{option} {path}: it may not be written")


def write_plot(command: str, path: Path, draw: Callable[[Path], None]) -> None:
    """Run `draw`, which needs matplotlib, and say what it wrote."""
    try:
        draw(path)
    except ImportError:
        fail(command, "--plot needs matplotlib: pip install matplotlib")
    except (OSError, ValueError) as error:
        fail(command, f"--plot {path}: {error}")
    say(f"written: {path}", err=True)


def open_store(folder: Path) -> RunStore:
    """The run store in `folder`; BadInput: there is none."""
    from geocomm.observe.telemetry.run_store import RunStore

    try:
        return RunStore(folder)
    except (sqlite3.Error, OSError) as error:
        raise BadInput(str(error)) from None


@contextlib.contextmanager
def journal_in(run_dir: Path) -> Generator[SqliteJournal]:
    """The journal in a site's run folder; BadInput: it has none."""
    from geocomm.core.run_dir import RunDir
    from geocomm.elastic.journal.journal import SqliteJournal

    path = RunDir(run_dir).journal
    if not path.is_file():
        raise BadInput(f"{run_dir} has no {path.name}: it is not the run folder of a site of an elastic run")
    with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
        yield journal


def standstill_text(seconds: float, folder: Path) -> str:
    """What comes first where a run stands still."""
    return f"No step for {duration_text(seconds)}: geocomm hang {folder} says who has not come to what."
