"""All commands of `geocomm`, by their words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from geocomm.cli.main import build_app


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name, each in below.items():
        yield from _commands(each, (*words, name))


COMMANDS = dict(_commands(typer.main.get_command(build_app())))
"""The command itself by its words, such as ("wan", "run")."""
