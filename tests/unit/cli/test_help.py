"""What every command's help has: paragraphs as wide as the terminal, and an example that the command would take."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from geocomm._version import __version__
from geocomm.cli.commands import PlainGroup, fit_help, paragraphs
from geocomm.core.installation import build_facts
from support.command_tree import APP, COMMANDS, GROUPS


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("columns", [60, 100])
def test_paragraphs_fill_the_lines_of_the_terminal(words: tuple[str, ...], columns: int) -> None:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(APP, [*words, "--help"])
    assert result.exit_code == 0, result.output
    text = result.stdout.split("╭")[0]
    lines = [line.rstrip() for line in text.splitlines() if "Usage:" not in line]
    for line, following in itertools.pairwise(lines):
        if any(not each.strip() or each.startswith("     ") for each in (line, following)):
            continue  # between paragraphs, or an example
        word = following.split()[0]
        assert len(line) + 1 + len(word) > columns - 2, f"{line!r} has room for {word!r}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example_with_options_that_it_knows(words: tuple[str, ...]) -> None:
    command = COMMANDS[words]
    start = " ".join(("geocomm", *words))
    examples = [line.strip() for line in command.help.splitlines() if line.startswith("    ") and start in line]
    assert examples, f"{start} has no example"
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for example in examples:
        own = example[example.index(start) + len(start) :].split(" -- ")[0]
        given = [word for word in shlex.split(own.partition("'")[0]) if re.match(r"--\w", word)]
        assert set(given) <= known, example


def shown(app: typer.Typer, words: Sequence[str], columns: int) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    return " ".join(re.sub("[─│╭╮╰╯]", " ", result.stdout).split())


@pytest.mark.parametrize("words", [*COMMANDS, *GROUPS], ids=" ".join)
def test_help_shows_all_that_is_written(words: tuple[str, ...]) -> None:
    command = COMMANDS[words] if words in COMMANDS else GROUPS[words]
    below = [each.help.partition("\n\n")[0] for each in getattr(command, "commands", {}).values()]
    written = [command.help, *below, *(parameter.help for parameter in command.params)]
    text = shown(APP, words, 2000)
    for part in "\n\n".join(filter(None, written)).split("\n\n"):
        assert " ".join(part.split()) in text


def test_help_has_no_markup() -> None:
    app = typer.Typer(cls=PlainGroup)
    below = typer.Typer(help="Group [bold]one[/bold].")

    @below.command(help="Command [sites.a].\n\n    [sites.b]\n    c = [1]\n\nSee [/none] and \\[x].", epilog="An [end]")
    def one(  # pyright: ignore[reportUnusedFunction]
        path: Annotated[str, typer.Option(help="A [path] or [link=x]y[/link].")] = "[red]",
    ) -> None:
        print(path)

    @below.command(help="Another [two].")
    def two() -> None:  # pyright: ignore[reportUnusedFunction]
        pass

    app.add_typer(below, name="below")
    fit_help(app)
    for _ in range(2):  # the second time, too
        text = shown(app, ("below", "one"), 200)
        written = ("Command [sites.a].", "[sites.b] c = [1]", "See [/none] and \\[x].")
        for part in (*written, "A [path] or [link=x]y[/link].", "[red]", "An [end]"):
            assert part in text
        text = shown(app, ("below",), 200)
        for part in ("Group [bold]one[/bold].", "Command [sites.a].", "Another [two]."):
            assert part in text


def test_lines_of_an_example_stay_apart() -> None:
    assert paragraphs("One\nparagraph.\n\n    first --\n      second\n\nAnother\none.") == (
        "One paragraph.\n\n    first --\n      second\n\nAnother one."
    )


def test_version_is_that_of_the_package_and_tells_what_it_was_built_for() -> None:
    result = CliRunner().invoke(APP, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"geocomm {__version__}, {build_facts()}\n")
