"""The help of all commands, as it is written: in paragraphs that fit the terminal, and with its brackets."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator, Iterator
from typing import Any, cast

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override


class PlainCommand(TyperCommand):
    """A command whose help has no markup. An option that it lacks may be torchrun's, where it takes such."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            takes = any("TORCHRUN-ARGUMENTS" in str(param.metavar) for param in self.params)
            if takes and type(error).__name__ == "NoSuchOption":  # of click, which some versions of typer bring
                cast(Any, error).message += "; those of torchrun come after --"
            raise

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _escaped(self):
            super().format_help(ctx, formatter)


class PlainGroup(TyperGroup):
    """A group of commands whose help has no markup."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        with _escaped(self):
            super().format_help(ctx, formatter)


def fit_help(app: typer.Typer) -> None:
    """Have the help of every command of `app`, and of the groups in it, shown as `paragraphs` without markup."""
    for command in app.registered_commands:
        command.cls = PlainCommand
        command.help = paragraphs(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        if group.typer_instance is None:
            continue
        info = group.typer_instance.info
        info.cls = PlainGroup
        if isinstance(info.help, str):
            info.help = paragraphs(info.help)
        fit_help(group.typer_instance)


def paragraphs(text: str) -> str:
    """`text` as rich breaks it to fit the terminal: without line breaks inside of paragraphs; indented lines, which are
    examples, keep theirs."""
    blocks = text.strip().split("\n\n")
    return "\n\n".join(block if block.startswith(" ") else " ".join(block.split("\n")) for block in blocks)


@contextlib.contextmanager
def _escaped(command: Any) -> Generator[None]:
    """Within it the texts of a command, of its options and of the commands below are what rich shows as they are."""
    texts = [(holder, name, text) for holder in _holders(command) for name in ("help", "short_help", "epilog")
             if isinstance(text := getattr(holder, name, None), str)]  # fmt: skip
    for holder, name, text in texts:
        setattr(holder, name, escape(text))
    try:
        yield
    finally:
        for holder, name, text in texts:
            setattr(holder, name, text)


def _holders(command: Any) -> Iterator[Any]:
    yield command
    yield from command.params
    yield from getattr(command, "commands", {}).values()
