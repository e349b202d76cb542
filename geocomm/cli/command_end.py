"""How commands end that cannot do what was asked of them, and how they write a plot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console


def fail(command: str, message: str, status: int = 2) -> NoReturn:
    """Say on stderr what is wrong, and exit with `status`."""
    Console(stderr=True).print(
        f"geocomm {command}: {message}", style="red", markup=False, highlight=False, soft_wrap=True
    )
    raise typer.Exit(status)


def write_plot(command: str, path: Path, draw: Callable[[Path], None]) -> None:
    """Run `draw`, which needs matplotlib, and say what it wrote."""
    try:
        draw(path)
    except ImportError:
        fail(command, "--plot needs matplotlib: pip install matplotlib")
    except (OSError, ValueError) as error:
        fail(command, f"--plot {path}: {error}")
    Console(stderr=True).print(f"written: {path}", highlight=False)
