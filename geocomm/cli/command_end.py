"""How commands end that cannot do what was asked of them, and in which forms they give what they found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def fail(command: str, message: str, status: int = 2) -> NoReturn:
    """Say on stderr what is wrong, and exit with `status`."""
    from rich.console import Console

    Console(stderr=True, markup=False).print(
        f"geocomm {command}: {message}", style="red", highlight=False, soft_wrap=True
    )
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
    from rich.console import Console

    try:
        draw(path)
    except ImportError:
        fail(command, "--plot needs matplotlib: pip install matplotlib")
    except (OSError, ValueError) as error:
        fail(command, f"--plot {path}: {error}")
    Console(stderr=True, markup=False).print(f"written: {path}", highlight=False)
