"""`geocomm keygen`: keys for the sites of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.command_end import fail


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("keygen")(keygen)


def keygen(
    sites: Annotated[str | None, typer.Option(help="Make a job's CA, and keys for these sites: a,b,c.")] = None,
    add: Annotated[str | None, typer.Option(help="Make keys for one more site.", metavar="SITE")] = None,
    renew: Annotated[str | None, typer.Option(help="Make new keys for a site.", metavar="SITE")] = None,
    revoke: Annotated[str | None, typer.Option(help="Declare a site's keys void.", metavar="SITE")] = None,
    job: Annotated[str, typer.Option(help="Name of the job; with --sites.")] = "job",
    out: Annotated[Path, typer.Option(help="Folder of the CA and of the sites' folders.")] = Path("geocomm-keys"),
    days: Annotated[int, typer.Option(help="How long the certificates hold.")] = 365,
) -> None:
    """Make the keys with which the sites of a job know each other, one folder per site.

    Copy each site's folder to that site, by a way that you trust, and set GEOCOMM_KEYS to it there. The CA's key stays
    where it is made: whoever has it can join the job. See docs/security.md.
    """
    try:
        from geocomm.job_ca import CA_KEY_FILE, JobCa
        from geocomm.security import REVOKED_FILE, KeysError
    except ImportError as error:
        fail("keygen", f"{error}; pip install cryptography")
    if sum(choice is not None for choice in (sites, add, renew, revoke)) != 1:
        fail("keygen", "give one of --sites, --add, --renew and --revoke")
    console = Console(soft_wrap=True, highlight=False)
    try:
        if sites is not None:
            names = [name.strip() for name in sites.split(",") if name.strip()]
            ca = JobCa.create(out, job, names, days)
            for name in names:
                console.print(
                    f"{out / name}: keys of site {name}: copy it to that site, and set GEOCOMM_KEYS to it", markup=False
                )
        else:
            ca = JobCa.open(out)
            if revoke is not None:
                path = ca.revoke(revoke)
                console.print(
                    f"{path}: the keys of site {revoke} are void. Copy this file into the folder of keys at EVERY "
                    f"site ({REVOKED_FILE} beside cert.pem): until then that site still lets {revoke} in",
                    style="bold yellow",
                    markup=False,
                )
            else:
                folder = ca.renew(renew, days) if renew is not None else ca.add(add or "", days)
                console.print(
                    f"{folder}: copy it to that site, over the folder that GEOCOMM_KEYS names there", markup=False
                )
    except KeysError as error:
        fail("keygen", str(error))
    except OSError as error:
        fail("keygen", f"cannot write {error.filename or out}: {error.strerror}; nothing was changed")
    console.print(
        f"{ca.folder / CA_KEY_FILE}: the key of the job's CA. KEEP IT OFF THE SITES: whoever has it can join job "
        f"{ca.job} as any site",
        style="bold yellow",
        markup=False,
    )
