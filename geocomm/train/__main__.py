"""`python -m geocomm.train --config run.yaml`, for launchers that start a module on every rank."""

from __future__ import annotations

import typer

from geocomm.cli.train import register

if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    register(app)
    app(prog_name="python -m geocomm.train")
