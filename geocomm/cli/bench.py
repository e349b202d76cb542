"""`geocomm bench`: measure an all-reduce over a link, the transport, codecs, and the kernels of a GPU."""

from __future__ import annotations

import typer

from geocomm.cli.bench_codec import bench_codec
from geocomm.cli.bench_gpu import bench_gpu
from geocomm.cli.bench_link import bench_link
from geocomm.cli.bench_wan import bench_wan


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    bench = typer.Typer(help="Measure geocomm on this machine.", no_args_is_help=True)
    bench.command("wan")(bench_wan)
    bench.command("link")(bench_link)
    bench.command("codec")(bench_codec)
    bench.command("gpu")(bench_gpu)
    app.add_typer(bench, name="bench")
