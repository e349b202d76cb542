"""Keys for the sites of an emulated WAN: a folder of `geocomm keys`, or keys that live as long as the run."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from geocomm.lab.emulator.emulated_links import WanConfigError

_DAYS = 30
"""More than alerts ask for."""


@contextlib.contextmanager
def site_keys(
    sites: Sequence[str], folder: Path | None, secure: bool, readers: Sequence[str] = ()
) -> Generator[Path | None]:
    """The folder with a folder of keys for each of `sites`: `folder`, looked through, or, if `secure`, a new one, which
    is gone at the end; None for neither. readers: those of the sites that only read weights. Raises WanConfigError.
    """
    if folder is None and not secure:
        yield None
        return
    from geocomm.security.job_ca import JobCa
    from geocomm.security.key_folder import Keys, KeysError

    try:
        if folder is not None:
            for site in sites:
                if (named := Keys.load(folder / site, readers=site in readers).identity.site) != site:
                    raise WanConfigError(f"keys: {folder / site} holds those of site {named!r}")
            yield folder
            return
        with tempfile.TemporaryDirectory(prefix="geocomm-keys-") as made:
            ca = JobCa.create(Path(made), "wan", [site for site in sites if site not in readers], _DAYS)
            for site in readers:
                ca.add(site, _DAYS, reader=True)
            yield Path(made)
    except KeysError as error:
        raise WanConfigError(f"keys: {error}") from error


def site_environment(environment: Mapping[str, str], keys: Path | None) -> dict[str, str]:
    """What the sites inherit: TLS is required where they get keys, and impossible where they have none."""
    security = "required" if keys is not None else "insecure"
    own = {name: value for name, value in environment.items() if name != "GEOCOMM_KEYS"}
    return own | {"GEOCOMM_SECURITY": security}


def hub_command(module: Sequence[str]) -> list[str]:
    """A site's command that runs `module` (arguments of torchrun from the script on) as its one rank, and meets the
    others at a hub at site 0, so that the rendezvous is encrypted too."""
    start = (
        'exec "$0" -m geocomm run --hub "$MASTER_ADDR:$MASTER_PORT" -- '
        '--nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node 1 "$@"'
    )
    return ["/bin/sh", "-c", start, sys.executable, *module]
