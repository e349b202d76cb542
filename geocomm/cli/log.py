"""`geocomm log`: the journal of an elastic run, one line an entry."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from geocomm.cli.command_end import fail, journal_in, say
from geocomm.core.console import plain_console
from geocomm.core.units import count_text

if TYPE_CHECKING:
    from geocomm.elastic.journal.entries import Entry
    from geocomm.elastic.journal.journal import SqliteJournal

_LOOKED_AT_EVERY_S = 0.5

app = typer.Typer()


@app.command()
def log(
    run_dir: Annotated[Path, typer.Argument(help="The run folder of a site.", metavar="RUN_DIR")],
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as JSON.")] = False,
    follow: Annotated[bool, typer.Option(help="Then show what is appended, until the run ends or Ctrl-C.")] = False,
    verify: Annotated[
        bool,
        typer.Option(
            help="Print no entries: check every hash and place, and say from which entry on that was possible."
        ),
    ] = False,
) -> None:
    """Show the journal of an elastic run: who joined, left or was away, and whose frames counted in which round.

    Any site's copy will do, during the run and after. Exit status: 1 for a damaged journal.

    Example:

        geocomm log runs/night --follow
    """
    from geocomm.core.run_dir import RunDir
    from geocomm.elastic.journal.entries import BadLineError

    console = plain_console(soft_wrap=True)

    def show(entry: Entry) -> None:
        if as_json:
            print(entry.line, flush=True)
        else:
            console.print(Text.assemble((f"{entry.index:>6}", "dim"), " ", told(entry)))

    try:
        with journal_in(run_dir) as journal:
            if verify:
                say(_verified(journal))
                return
            with contextlib.suppress(KeyboardInterrupt):
                for entry in _followed(journal) if follow else journal.read():
                    show(entry)
    except BadLineError as error:
        fail("log", f"{RunDir(run_dir).journal} is damaged: {error}", 1)


def _verified(journal: SqliteJournal) -> str:
    first = journal.base.index + 1
    state, confirmed = journal.verify()
    before = "a snapshot in the journal confirms" if confirmed else "no snapshot in the journal confirms yet"
    begin = f". They begin with entry {first}, after a state of the run that {before}" if first else ""
    return f"{state.head.index + 1 - first} entries, each in its place; the last is {state.head.hash[:16]}{begin}"


def told(entry: Entry) -> str:
    """An entry in plain words."""
    from geocomm.elastic.journal import entries as kinds

    match entry:
        case kinds.Genesis():
            return (
                f"run {entry.run[:12]} begins: {count_text(entry.fragments, 'fragment')}, a round of "
                f"each every {count_text(entry.every, 'step')}"
            )
        case kinds.Join():
            return f"{entry.site} joins, with run folder {entry.store[:12]}"
        case kinds.Ready():
            return f"{entry.site} takes part"
        case kinds.Away():
            return f"{entry.site} is away: {entry.why}"
        case kinds.Left():
            return f"{entry.site} has left"
        case kinds.Removed():
            return f"{entry.site} was removed: {entry.why}"
        case kinds.Round() | kinds.SummedRound():
            who = ", ".join(f"{one.site} (weight {one.weight})" for one in entry.members)
            change = f"; from now on every {count_text(entry.every, 'step')}" if entry.every else ""
            by = f", averaged by {entry.sum.site}" if isinstance(entry, kinds.SummedRound) else ""
            return f"fragment {entry.fragment}, round {entry.version}: {who}{by}{change}"
        case kinds.Skip():
            return f"fragment {entry.fragment}, round {entry.version} is void: {entry.why}"
        case kinds.Snapshot():
            return "sites keep their states as a snapshot"
        case kinds.Kept():
            return f"snapshot {entry.snapshot} is kept: {', '.join(entry.sites)} have it"
        case kinds.Data():
            return f"deals are of version {entry.number} of {entry.set}, in sequences of {entry.sequence_length} tokens"
        case kinds.Deal():
            what = f"shards {entry.shards}" if entry.shards else f"the rest of deal {entry.rest} from {entry.start} on"
            return f"{entry.site} reads {what}: {count_text(entry.sequences, 'sequence')}"
        case kinds.TakenBack():
            return f"what {entry.site} has not counted goes to others, from its token {entry.taken} on: {entry.why}"
        case kinds.TermBegun():
            return f"{entry.site} leads from now on, at {entry.address}: term {entry.term}"
        case kinds.End():
            return "the run is over: all sites have left"


def _followed(journal: SqliteJournal) -> Iterator[Entry]:
    from geocomm.elastic.journal.entries import End

    first = 0
    while True:
        for entry in journal.read(first):
            first = entry.index + 1
            yield entry
            if isinstance(entry, End):
                return
        time.sleep(_LOOKED_AT_EVERY_S)
