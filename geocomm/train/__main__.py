"""`python -m geocomm.train --config run.yaml`, for launchers that start a module on every rank."""

from __future__ import annotations

from geocomm.core.ended_by_signal import end_in_a_line
from geocomm.core.place import speaks_here

if __name__ == "__main__":
    end_in_a_line("train", speaks=speaks_here())  # before the imports, in which a Ctrl+C may come
    import typer

    from geocomm.cli.train import train

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(train)
    app(prog_name="python -m geocomm.train")
