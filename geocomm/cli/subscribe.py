"""`geocomm subscribe`: a folder that has the newest weights of a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geocomm.cli.command_end import fail, say, wait_option
from geocomm.core.units import parse_rate

_HELP = """Keep FOLDER at the newest version of a stream of weights, which WeightPublisher writes.

Of several SOURCEs, the first that has a file gives it. FOLDER holds safetensors, and is always one whole version; its
geocomm.json says which. What cannot be had is said, and FOLDER stays as it is.

With --once the exit status is 1 if the newest version cannot be had.

Example:

    geocomm subscribe s3://bucket/run7 --into model --model-files base-model
    geocomm subscribe s3://bucket/run7 --into model --listen :29700
    geocomm subscribe tls://relay:29700 --into model --then 'systemctl reload my-engine'
"""

_SOURCES = "A folder, a bucket (s3://, gs://, az://), or tls://host:port of another geocomm subscribe --listen."

app = typer.Typer()


@app.command(help=_HELP)
def subscribe(
    sources: Annotated[list[str], typer.Argument(help=_SOURCES, metavar="SOURCE...")],
    into: Annotated[Path, typer.Option(help="The folder, which is made.", metavar="FOLDER")],
    then: Annotated[
        str | None,
        typer.Option(
            help="Run this by the shell at each version, with WEIGHTS_FOLDER and WEIGHTS_VERSION; the next version "
            "waits for it.",
            metavar="COMMAND",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Give the stream to others here, over TLS; needs keys.", metavar="[ADDRESS]:PORT"),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="Folder of keys: only signed versions count. Default: $GEOCOMM_KEYS.", metavar="FOLDER"),
    ] = None,
    publisher: Annotated[
        str | None, typer.Option(help="The site whose versions count. Default: any of the job.", metavar="SITE")
    ] = None,
    model_files: Annotated[
        Path | None,
        typer.Option(help="A model's folder, whose other files (config, tokenizer) are copied.", metavar="FOLDER"),
    ] = None,
    rate: Annotated[str | None, typer.Option(help='Fetch no faster than this, as "200mbit".', metavar="RATE")] = None,
    every: Annotated[float, wait_option("--every", "Look for a newer version so often.")] = 1,
    once: Annotated[bool, typer.Option("--once", help="End at the newest version.")] = False,
    wait: Annotated[
        float,
        wait_option(
            "--wait", "How long sources that do not answer are asked again, and --once waits for a first version."
        ),
    ] = 120,
) -> None:
    """Keep a folder at the newest version of a stream of weights."""
    from geocomm.core.errors import GeocommError
    from geocomm.core.message_log import announce, log
    from geocomm.security.key_folder import Keys
    from geocomm.weights.subscription import SubscribeSettings, Subscription

    settings = SubscribeSettings(
        sources=sources,
        into=into,
        then=then,
        listen=listen,
        keys=Keys.given(keys, readers=True),
        publisher=publisher or "",
        rate=None if rate is None else parse_rate(rate, "--rate") / 8,
        every_s=every,
        wait_s=wait,
        once=once,
        model_files=model_files,
    )
    try:
        ended_by = Subscription(settings, announce, log).run()
    except GeocommError as error:
        fail("subscribe", str(error), 1)
    if once and ended_by is not None:
        fail("subscribe", f"ended by {ended_by.name}: {into} may not be at the newest version", 128 + ended_by)
    if once:
        say(str(into))
