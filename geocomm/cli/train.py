"""`geocomm train`: the training driver."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from geocomm.core.installation import install_command

app = typer.Typer()


@app.command()
def train(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="YAML file of the run; without it, all defaults.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Change a field, e.g. training.steps=50; repeatable."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the whole configuration with all defaults, and leave.")
    ] = False,
    local_rank: Annotated[int | None, typer.Option("--local_rank", "--local-rank", hidden=True)] = None,
) -> None:
    """Train a causal language model with DeepSpeed over one or more sites.

    Start it on every rank: with `geocomm run … -m geocomm.train`, torchrun, the deepspeed launcher, `geocomm wan run …
    -- geocomm train`, or alone for one process. See docs/tutorials/train-a-model.md.

    Example:

        geocomm train --set model.preset=tiny --set training.steps=50
        geocomm train --config run.yaml --set output_dir=runs/second
    """
    try:
        from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
        from geocomm.train.loop.config_text import format_config, load_config
    except ImportError as error:
        typer.echo(f"geocomm train: {error}; {install_command('train')}", err=True)
        raise typer.Exit(2) from None
    if print_config:
        try:
            typer.echo(format_config(load_config(config, assignments or ())), nl=False)
        except BadInput as error:
            typer.echo(f"geocomm train: {error}", err=True)
            raise typer.Exit(EXIT_BAD_INPUT) from None
        return
    # torch warns of each connection to its store whose address has no name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from geocomm.train.loop.driver import run

    raise typer.Exit(run(config, assignments or ()))
