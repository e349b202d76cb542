"""Commands, options and variables that README and docs name are those that geocomm has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from geocomm.cli.commands import build_app
from geocomm.core.environment import OTHER_VARIABLES
from geocomm.core.options import Options

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md"))),
]
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
ROOT_COMMAND = typer.main.get_command(build_app())


def commands_of(text: str) -> Iterator[str]:
    """What stands behind `geocomm`, up to the end of its line, in code blocks and in code inside of sentences."""
    inline = FENCE.sub("", text)
    for code in (*FENCE.findall(text), *(" ".join(one.split()) for one in INLINE.findall(inline))):
        for line in code.replace("\\\n", " ").splitlines():
            found = re.search(r"(?:^|[\s;/'(])geocomm ([a-z]+(?!\w*:).*)", line.split(" # ")[0])  # "geocomm agent: …"
            if found is not None:
                yield re.split(r" [|&;<>]|; |\) ", found[1])[0]


def fault_of(words: list[str]) -> str | None:
    """What of these words geocomm does not have; those after `--` are another program's."""
    words = words[: words.index("--")] if "--" in words else words
    command: Any = ROOT_COMMAND
    while words and (commands := getattr(command, "commands", None)):
        if words[0] not in commands:
            return f"no command {words[0]}"
        command = commands[words.pop(0)]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    lacking = [word for word in words if word.startswith("-") and word.partition("=")[0] not in known | {"-"}]
    return f"no option {lacking[0]}" if lacking else None


def words_of(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an apostrophe of a shell around it
        return command.replace("'", "").replace('"', "").split()


def test_unknown_commands_and_options_are_found() -> None:
    (command,) = commands_of("Run `geocomm keys make --out=x`.")
    assert fault_of(words_of(command)) == "no command make"
    (command,) = commands_of("```\ngeocomm run --hubb a:1 -- --nproc-per-node 8 train.py  # here\n```\n")
    assert fault_of(words_of(command)) == "no option --hubb"


def test_commands_and_options_exist() -> None:
    faults: list[str] = []
    checked = 0
    for page in PAGES:
        for command in commands_of(page.read_text(encoding="utf-8")):
            checked += 1
            fault = fault_of(words_of(command))
            if fault is not None:
                faults.append(f"{page.relative_to(ROOT)}: {fault}: geocomm {command}")
    assert checked > 150
    assert faults == []


OF_BUILDS_AND_TESTS = {"GEOCOMM_CUDA", "GEOCOMM_UNITY", "GEOCOMM_NEEDS", "GEOCOMM_REQUIRE_ALL"}


def test_variables_exist() -> None:
    known = (
        {f"GEOCOMM_{name.upper()}" for name in Options.model_fields}
        | {name for name, _, _ in OTHER_VARIABLES}
        | OF_BUILDS_AND_TESTS
    )
    for page in PAGES:
        for name in set(re.findall(r"\bGEOCOMM_[A-Z_]*[A-Z]\b", page.read_text(encoding="utf-8"))):
            assert name in known, f"{page.relative_to(ROOT)}: {name}"
