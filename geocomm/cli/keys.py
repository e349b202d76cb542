"""`geocomm keys`: keys for the sites of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import fail, say
from geocomm.core.console import table_of
from geocomm.security.key_folder import REVOKED_FILE

if TYPE_CHECKING:
    from geocomm.security.job_ca import JobCa

_HELP = """Manage the keys by which the sites of a job know each other, one folder per site.

Copy each site's folder to that site, and set GEOCOMM_KEYS to it there. Anyone who has the CA's key can join the job.
See docs/explanation/security-model.md.
"""
_DAYS = 365

_Out = Annotated[Path, typer.Option(help="Folder of the CA and of the sites' folders.")]
_Days = Annotated[int, typer.Option(help="How long the certificates hold.")]
_Site = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")]
_OUT = Path("geocomm-keys")


class Role(StrEnum):
    """What keys are good for."""

    SITE = "site"
    READER = "reader"


app = typer.Typer(name="keys", help=_HELP, no_args_is_help=True)


@app.command()
def create(
    sites: Annotated[list[str], typer.Argument(metavar="SITE", help="Names of the sites.")],
    job: Annotated[
        str | None,
        typer.Option(help="Name of the job, which all its certificates have. Default: job.", show_default=False),
    ] = None,
    out: _Out = _OUT,
    days: _Days = _DAYS,
) -> None:
    """Make a job's CA, and keys for its sites.

    Example:

        geocomm keys create frankfurt virginia --out geocomm-keys
    """
    with _authorities(out) as authorities:
        ca = authorities.create(out, job or "job", sites, days)
        for site in sites:
            say(f"{out / site}: keys of site {site}: copy it to that site, and set GEOCOMM_KEYS to it")
        _warn_of_ca_key(ca)
        if job is None:
            say(
                f"The job is called {ca.job}: certificates have its name, and errors tell it. With keys of several "
                "jobs, give each a name by --job"
            )


@app.command("list")
def list_keys(out: _Out = _OUT) -> None:
    """List the sites with keys, until when they hold, and which are void.

    Example:

        geocomm keys list
    """
    with _authorities(out) as authorities:
        ca = authorities.open(out)
        rows = [
            (
                *(one.site, f"{one.begins:%Y-%m-%d}", f"{one.ends:%Y-%m-%d}"),
                "void" if one.revoked else "expired" if one.ends < datetime.now(UTC) else "good",
                Role.READER if one.is_reader else Role.SITE,
            )
            for one in ca.certificates()
        ]
        columns = ("site", "from", "until", "keys", "role")
        say(table_of(columns, rows, title=f"Job {ca.job}", text=columns))


@app.command()
def add(
    site: _Site,
    out: _Out = _OUT,
    days: _Days = _DAYS,
    role: Annotated[
        Role, typer.Option(help="reader: may fetch streams of weights (geocomm subscribe), and nothing else.")
    ] = Role.SITE,
) -> None:
    """Make keys for one more site; with --role reader, for who only follows streams of weights.

    Example:

        geocomm keys add tokyo
    """
    with _authorities(out) as authorities:
        ca = authorities.open(out)
        is_reader = role is Role.READER
        folder = ca.add(site, days, reader=is_reader)
        whose, where = ("a reader", "where weights are read") if is_reader else (f"site {site}", "that site")
        say(f"{folder}: keys of {whose}: copy it to {where}, and set GEOCOMM_KEYS to it")
        _warn_of_ca_key(ca)


@app.command()
def renew(site: _Site, out: _Out = _OUT, days: _Days = _DAYS) -> None:
    """Make new keys for a site.

    Example:

        geocomm keys renew virginia --days 30
    """
    with _authorities(out) as authorities:
        ca = authorities.open(out)
        say(f"{ca.renew(site, days)}: copy it to that site, over the folder that GEOCOMM_KEYS names there")
        _warn_of_ca_key(ca)


@app.command()
def revoke(site: _Site, out: _Out = _OUT) -> None:
    """Declare a site's keys void.

    Example:

        geocomm keys revoke virginia
    """
    with _authorities(out) as authorities:
        ca = authorities.open(out)
        path = ca.revoke(site)
        say(
            f"{path}: the keys of site {site} are void. Copy this file into the folder of keys at EVERY site "
            f"({REVOKED_FILE} beside cert.pem): until then that site still lets {site} in",
            "bold yellow",
        )
        _warn_of_ca_key(ca)


@contextlib.contextmanager
def _authorities(out: Path) -> Generator[type[JobCa]]:
    """Ends the command with the reason why it could not be done."""
    try:
        from geocomm.security.job_ca import JobCa

        yield JobCa
    except ImportError as error:
        fail("keys", f"{error}; pip install cryptography")
    except OSError as error:
        fail("keys", f"cannot write {error.filename or out}: {error.strerror}; nothing was changed")


def _warn_of_ca_key(ca: JobCa) -> None:
    from geocomm.security.job_ca import CA_KEY_FILE

    say(
        f"{ca.folder / CA_KEY_FILE}: the key of the job's CA. KEEP IT OFF THE SITES: anyone who has it can join the "
        f"job {ca.job!r} as any site",
        "bold yellow",
    )
