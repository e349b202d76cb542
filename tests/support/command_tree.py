"""All commands of `geocomm`, by their words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import typer
import typer.testing

from geocomm.cli.main import build_app

APP = build_app()
"""For CliRunner, which would make all commands again for each line: a tenth of a second."""
typer.testing._get_command = functools.cache(typer.main.get_command)


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", {})
    if not below:
        yield words, command
    for name, each in below.items():
        yield from _commands(each, (*words, name))


COMMANDS = dict(_commands(typer.main.get_command(APP)))
"""The command itself by its words, such as ("wan", "run")."""
