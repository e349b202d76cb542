"""Help that fits the terminal: the text of a command has one line for each paragraph, and rich breaks them."""

from __future__ import annotations

import inspect

import typer


def paragraphs(text: str) -> str:
    """`text` without the line breaks inside of its paragraphs; indented lines, which are examples, keep theirs."""
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(block if block.startswith(" ") else " ".join(block.split("\n")) for block in blocks)


def fit_help(app: typer.Typer) -> None:
    """Do that for every command of `app` and of the groups in it."""
    for command in app.registered_commands:
        written = command.help or inspect.getdoc(command.callback) if command.callback else command.help
        command.help = paragraphs(written or "")
    for group in app.registered_groups:
        if group.typer_instance is None:
            continue
        info = group.typer_instance.info
        if isinstance(info.help, str):
            info.help = paragraphs(info.help)
        fit_help(group.typer_instance)
