"""The options of a leader that say which data it deals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import fail

if TYPE_CHECKING:
    from geocomm.journal.sequencer_events import DealtSet

_PANEL = "Elastic runs"
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        help="At the leader: the catalog of a data set, of which each site gets what to read next.",
        metavar="URL",
        rich_help_panel=_PANEL,
    ),
]
LengthOption = Annotated[
    int,
    typer.Option("--sequence-length", min=0, help="With --data: tokens of a sequence.", rich_help_panel=_PANEL),
]
HeldOutOption = Annotated[
    float,
    typer.Option(
        "--held-out-fraction",
        min=0,
        max=0.5,
        help="With --data: this part of the sequences is never trained on.",
        rich_help_panel=_PANEL,
    ),
]
DoubtOption = Annotated[
    float,
    typer.Option(
        "--doubt",
        min=0,
        help="At the leader: minutes until others get what a missing site has not read; 0: never.",
        metavar="MINUTES",
        rich_help_panel=_PANEL,
    ),
]


def dealt_set(command: str, data: str, sequence_length: int, held_out_fraction: float) -> DealtSet | None:
    """What the options say. Ends the command where they do not fit."""
    from geocomm.core.bad_input import BadInput
    from geocomm.data.corpus.packing import held_out_every
    from geocomm.data.shard_sequences import SetName
    from geocomm.journal.sequencer_events import DealtSet

    if not data:
        if sequence_length or held_out_fraction:
            fail(command, "--sequence-length and --held-out-fraction are for --data")
        return None
    if not sequence_length:
        fail(command, "--data needs --sequence-length")
    try:
        name = SetName.parse(data)
    except BadInput as error:
        fail(command, str(error))
    if name.number is not None:
        fail(command, f"--data {data}: an elastic run reads the newest version, and each newer one: leave out @")
    url = name.url if "://" in name.url else str(Path(name.url.removeprefix("file:")).expanduser().resolve())
    return DealtSet(url, sequence_length, held_out_every(held_out_fraction))
