"""`geocomm up` and `geocomm down`: a run at all sites, over ssh."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import fail

if TYPE_CHECKING:
    from geocomm.cli.ssh_sites.sites_file import Node, SitesFile

_HELP = """Start a run at all sites from this machine, over ssh, and watch it.

SITES says how the machines are reached (docs/how-to/start-all-sites.md):

    hub = "192.0.2.10:29400"         # where they meet: a machine, a port
    [sites.frankfurt]
    ssh = "ubuntu@192.0.2.10"        # or several: ["a", "b"]
    [sites.virginia]
    ssh = "virginia"                 # a host of ~/.ssh/config

It makes keys if there are none, copies each site's own and the script's folder, checks the machines, and starts geocomm
run at each:

    geocomm up sites.toml -- --nproc-per-node 8 train.py --lr 0.1

The run needs this machine no more. Ctrl+C ends it at all sites; --attach comes back to it.
"""

_Sites = Annotated[Path, typer.Argument(help="The sites, in TOML.", metavar="[SITES]", show_default=False)]
_Only = Annotated[str, typer.Option(help="These sites alone.", metavar="A,B")]
_SITES = Path("sites.toml")

app = typer.Typer()


@app.command(help=_HELP)
def up(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SITES] [-- TORCHRUN-ARGUMENTS]",
            help="The sites, in a .toml file. After --, as for geocomm run: options, script, arguments.",
        ),
    ] = None,
    elastic: Annotated[bool, typer.Option("--elastic", help="Each site is a job in an elastic run.")] = False,
    attach: Annotated[bool, typer.Option("--attach", help="Watch the run that is there.")] = False,
    only: _Only = "",
    print_: Annotated[bool, typer.Option("--print", help="Print the commands that it would run, and end.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Show all lines that the sites write.")] = False,
    doctor: Annotated[bool, typer.Option("--doctor/--no-doctor", help="Check the machines before the start.")] = True,
) -> None:
    from geocomm.cli.ssh_sites import launch
    from geocomm.cli.ssh_sites.code_folder import CodeFolder

    given = words or []
    sites, arguments = (Path(given[0]), given[1:]) if given and given[0].endswith(".toml") else (_SITES, given)
    with _refusals("up"):
        found = _read("up", sites)
        nodes = _chosen("up", found, only)
        if attach:
            if arguments or elastic or print_:
                fail("up", "--attach takes no script, --elastic or --print: the run has them")
            raise typer.Exit(asyncio.run(launch.attach(found, nodes, logs=logs)))
        if only and not elastic:
            fail("up", "--only is for --elastic and --attach: other runs need all their sites")
        if elastic and (found.backend or found.backend_name):
            fail("up", f"{sites}: backend and backend_name are for runs without --elastic: leave them out")
        if elastic and (several := next((n for n in nodes if len(n.site.ssh) > 1 and n.site.site_hub is None), None)):
            fail("up", f'sites.{several.site_name}: several nodes need site_hub = "host:port", where they meet')
        code = CodeFolder.of(arguments, found.exclude, found.keys)
        what = launch.Up(found, nodes, code, elastic, doctor, logs)
        if print_:
            for text in launch.commands(what):
                typer.echo(text, nl=False)
            return
        raise typer.Exit(asyncio.run(launch.up(what)))


@app.command()
def down(sites: _Sites = _SITES, only: _Only = "") -> None:
    """End the run of geocomm up at all sites. What has not ended after 90 s is killed.

    Example:

        geocomm down sites.toml
    """
    from geocomm.cli.ssh_sites import launch

    with _refusals("down"):
        found = _read("down", sites)
        raise typer.Exit(asyncio.run(launch.attach(found, _chosen("down", found, only), logs=False, ending=True)))


def _read(command: str, path: Path) -> SitesFile:
    from geocomm.cli.ssh_sites.sites_file import SitesFile

    if shutil.which("ssh") is None:
        fail(command, "there is no ssh on this machine: install OpenSSH's client")
    return SitesFile.read(path)


def _chosen(command: str, sites: SitesFile, only: str) -> list[Node]:
    from geocomm.core.bad_input import did_you_mean

    names = list(filter(None, only.split(","))) or list(sites.sites)
    if unknown := next((name for name in names if name not in sites.sites), None):
        fail(command, f"--only: there is no site {unknown!r}{did_you_mean(unknown, sites.sites)}")
    return [node for node in sites.nodes if node.site_name in names]


@contextlib.contextmanager
def _refusals(command: str) -> Generator[None]:
    """Ends the command with the reason why it could not be done."""
    try:
        yield
    except OSError as error:
        fail(command, f"{error.filename or 'ssh'}: {error.strerror}")
    except KeyboardInterrupt:
        fail(command, "interrupted; nothing goes on", 130)
