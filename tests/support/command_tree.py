"""All commands of `geocomm`, by their words."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import typer
import typer.testing

from geocomm.cli.commands import build_app

APP = build_app()
"""For CliRunner, which would make all commands again for each line: a tenth of a second."""
typer.testing._get_command = functools.cache(typer.main.get_command)


def _all(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _all(each, (*words, name))


_ALL = dict(_all(typer.main.get_command(APP)))
COMMANDS = {words: each for words, each in _ALL.items() if not hasattr(each, "commands")}
"""The command itself by its words, such as ("wan", "run")."""
GROUPS = {words: each for words, each in _ALL.items() if hasattr(each, "commands")}
"""Those that have commands, such as ("wan",); () is all of geocomm."""
