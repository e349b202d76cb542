"""What every command's help has: paragraphs as wide as the terminal, and an example that the command would take."""

from __future__ import annotations

import itertools
import re
import shlex

import pytest
from typer.testing import CliRunner

from geocomm._version import __version__
from geocomm.cli.main import paragraphs
from geocomm.core.installation import build_facts
from support.command_tree import APP, COMMANDS


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


def test_lines_of_an_example_stay_apart() -> None:
    assert paragraphs("One\nparagraph.\n\n    first --\n      second\n\nAnother\none.") == (
        "One paragraph.\n\n    first --\n      second\n\nAnother one."
    )


def test_version_is_that_of_the_package_and_tells_what_it_was_built_for() -> None:
    result = CliRunner().invoke(APP, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"geocomm {__version__}, {build_facts()}\n")
