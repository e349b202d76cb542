"""The commands of `geocomm`, and their help as it is written: in paragraphs that fit the terminal, with its brackets.

A command lives in a module of its own beside this one, on a typer application `app`, and is named here. It lets each
`UserError` pass. These modules import nothing heavy (torch, transformers, matplotlib) at module level, so that
`geocomm --help` answers at once.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Generator, Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from geocomm._version import __version__
from geocomm.cli.command_end import fail
from geocomm.core.bad_input import UserError
from geocomm.core.installation import build_facts


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


_HELP = """Train large models across distant sites.

Exit status of every command, unless its help says otherwise: 0; 1 where something failed; 2 where it could not begin,
as for wrong input; 128 + the signal that ended it. 125: no WAN can be emulated, or no emulator answers.
"""
# Each the module of the command of that name, and of commands that go with it.
_MODULES = (
    "demo",
    "train",
    "export",
    "serve",
    "subscribe",
    "run",
    "up",
    "top",
    "why",
    "dashboard",
    "alerts",
    "hang",
    "trace",
    "members",
    "log",
    "snapshot",
    "data",
    "keys",
    "doctor",
    "probe",
    "plan",
    "wan",
    "bench",
)


class _Commands(PlainGroup):
    """Commands of which each ends with a line where a `UserError` keeps it from its work."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            fail(str(ctx.invoked_subcommand), str(error), error.exit_status)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            command = str(ctx.invoked_subcommand)
            fail(command, f"torch is not installed for {sys.executable}: {sys.executable} -m pip install torch")


def build_app(modules: Sequence[str] = _MODULES) -> typer.Typer:
    """The typer application with the commands of these modules on it."""
    app = typer.Typer(
        name="geocomm",
        cls=_Commands,
        help=paragraphs(_HELP),
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
    )

    @app.callback()
    def _root(
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                callback=_print_version,
                is_eager=True,
                help="Print the version, and what it was built for.",
            ),
        ] = False,
    ) -> None:
        """Train large models across distant sites."""

    for module in modules:
        app.add_typer(import_module(f"geocomm.cli.{module}").app)
    fit_help(app)
    return app


def _print_version(asked: bool) -> None:
    if asked:
        native = build_facts() or "without a native module for the torch that is here"
        typer.echo(f"geocomm {__version__}, {native}")
        raise typer.Exit


def run_command() -> None:
    """Run the command line. Of the commands, only the one that is asked for is imported."""
    build_app([name for name in sys.argv[1:2] if name in _MODULES] or _MODULES)()
