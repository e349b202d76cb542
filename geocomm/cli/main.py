"""Entry point of the `geocomm` console script.

A command lives in a module of its own beside this one and exposes `register(app)`. Modules import nothing heavy
(torch, transformers, matplotlib) at module level, so that `geocomm --help` answers at once.
"""

from __future__ import annotations

import importlib
import pkgutil

import typer

import geocomm.cli as commands


def build_app() -> typer.Typer:
    """The typer application with every command module beside this file registered on it."""
    app = typer.Typer(
        name="geocomm",
        help="Train large models across distant sites.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_show_locals=False,
    )

    @app.callback()
    def _root() -> None:
        """Train large models across distant sites."""

    for module in sorted(info.name for info in pkgutil.iter_modules(commands.__path__)):
        if module != "main":
            importlib.import_module(f"{commands.__name__}.{module}").register(app)
    return app


def main() -> None:
    """Run the command line."""
    build_app()()


if __name__ == "__main__":
    main()
