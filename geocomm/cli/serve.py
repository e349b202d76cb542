"""`geocomm serve`: a model behind an OpenAI-compatible address."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from geocomm.cli.command_end import wait_option
from geocomm.train.serve.engines import Engine, FollowSettings

_HELP = """Serve MODEL, a folder of geocomm export, behind an OpenAI-compatible address.

The engine is vLLM with a GPU, else transformers; llama.cpp for GGUF. Prints "ready" and a curl line when the model is
loaded. Without --api-key-file, only a loopback --host is allowed; vLLM and llama.cpp ask for keys.

The exit status is the engine's.

With --follow, which is for transformers, the newest weights of a stream (WeightPublisher) answer: they are swapped
between requests. The header x-geocomm-weights of each answer says by which version it is; 0: the weights of MODEL.

Example:

    geocomm serve model-hf
    geocomm serve model-hf --engine vllm --python vllm-env/bin/python -- --max-model-len 4096
    geocomm serve model-hf --follow s3://bucket/run7
    geocomm serve model-gguf --host 0.0.0.0 --api-key-file api.key
"""

app = typer.Typer()


@app.command(help=_HELP)
def serve(
    model: Annotated[Path, typer.Argument(help="Folder of geocomm export.", metavar="MODEL")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="For the engine; write them after --.", metavar="ENGINE-ARGUMENTS...")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="What computes.")] = Engine.AUTO,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with the key that clients must show.", metavar="PATH")
    ] = None,
    python: Annotated[
        str, typer.Option(help="Python that has the engine. Default: this one.", metavar="PATH", show_default=False)
    ] = sys.executable,
    name: Annotated[str | None, typer.Option(help="What clients call the model. Default: the folder's name.")] = None,
    follow: Annotated[
        list[str] | None,
        typer.Option(
            help="A stream of weights, as for geocomm subscribe; again: another source of it.", metavar="SOURCE"
        ),
    ] = None,
    publisher: Annotated[
        str | None, typer.Option(help="With --follow: the site whose versions count.", metavar="SITE")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(help="With --follow: only signed versions count. Default: $GEOCOMM_KEYS.", metavar="FOLDER"),
    ] = None,
    start_timeout: Annotated[
        float, wait_option("--start-timeout", "How long the engine has to load the model.", 1)
    ] = 1800,
) -> None:
    """Serve a model folder at an OpenAI-compatible address."""
    from geocomm.train.serve.serving import Serving
    from geocomm.train.serve.serving import serve as run

    python = os.path.abspath(python) if os.sep in python else python  # not resolved: a link names its environment
    stream = _stream(follow or (), keys, publisher)
    serving = Serving(model, engine, host, port, api_key_file, python, name, start_timeout, arguments or (), stream)
    raise typer.Exit(run(serving))


def _stream(sources: Sequence[str], keys: Path | None, publisher: str | None) -> FollowSettings | None:
    """Raises BadInput for what cannot be used."""
    from geocomm.core.bad_input import BadInput
    from geocomm.security.key_folder import Keys
    from geocomm.weights.relay_place import open_source

    if not sources:
        if publisher or keys:
            raise BadInput("--publisher and --keys are for --follow")
        return None
    loaded = Keys.given(keys, readers=True)
    for url in sources:
        open_source(url, loaded)
    folders = {url: Path(url.removeprefix("file:")).expanduser().absolute() for url in sources if "://" not in url}
    return FollowSettings(
        sources=tuple(str(folders.get(url, url)) for url in sources),
        keys="" if loaded is None else str(loaded.folder.absolute()),
        publisher=publisher or "",
    )
