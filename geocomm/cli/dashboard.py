"""`geocomm dashboard`: the page of a run, for a browser."""

from __future__ import annotations

import contextlib
import re
import secrets
import signal
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from geocomm.cli.command_end import fail, open_store

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

app = typer.Typer()


@app.command()
def dashboard(
    folder: Annotated[Path, typer.Argument(help="The folder of --telemetry at the hub, or a site's --run-dir.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the page is; 0: a free one.")] = 8420,
    address: Annotated[
        str, typer.Option(help="Listen here. Beyond this machine the page needs the token that is printed.")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None,
        typer.Option(help="Without a token: another name of this page's host, such as a proxy's."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="GEOCOMM_DASHBOARD_TOKEN", help="Ask for this token. Default: one is made with --address."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write the page to this file, and end.", metavar="FILE.html")
    ] = None,
) -> None:
    """Show all sites of a run on one page: steps, links, rounds, what is slow, and who is silent.

    It works during the run and after. Prometheus finds the metrics of all sites at /metrics.

    Example:

        geocomm dashboard telemetry
        geocomm dashboard telemetry --export report.html
    """
    from geocomm.core.addresses import listen_on
    from geocomm.core.installation import install_command
    from geocomm.group.membership.own_address import url_for_others

    if token is not None and not re.fullmatch(r"[!-~]+", token):
        fail("dashboard", "--token: one word of ASCII letters, digits and signs; without it, --address makes one")
    store = open_store(folder)
    try:
        import uvicorn

        from geocomm.observe.dashboard.app import dashboard_app, write_report
    except ImportError as error:
        fail("dashboard", f"the package {error.name} is missing: {install_command('dashboard')}")
    if export is not None:
        try:
            write_report(store, export)
        except OSError as error:
            fail("dashboard", f"{export}: {error.strerror}", 1)
        typer.echo(f"{export}: {export.stat().st_size / 1e6:.1f} MB")
        return
    store.close()
    if token is None and address not in _LOOPBACK:
        token = secrets.token_urlsafe(24)
    hosts = frozenset({*_LOOPBACK, address, *(name.lower() for name in host or ())})
    app = dashboard_app(folder, token, hosts)
    # A stream never ends by itself, so that a browser would keep this command from ending.
    config = uvicorn.Config(
        app, host=address, port=port, log_level="warning", lifespan="off", timeout_graceful_shutdown=1
    )
    try:
        listener = listen_on(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")
    except OSError as error:
        fail("dashboard", f"cannot listen on {address}:{port}: {error.strerror or error}; --port 0 takes a free port")
    page = url_for_others(address, listener.getsockname()[1])
    # It returns or raises KeyboardInterrupt, as the moment has it: it raises the signal again within its loop.
    with contextlib.suppress(KeyboardInterrupt):
        typer.echo(f"{page}/{'' if token is None else f'?token={quote(token)}'}   (Ctrl+C ends it)")
        uvicorn.Server(config).run(sockets=[listener])
    raise typer.Exit(128 + signal.SIGINT)
