"""`geocomm run`: torchrun over sites that meet at a hub, through TLS."""

from __future__ import annotations

from typing import Annotated

import typer

from geocomm.cli.command_end import fail

_HELP = """Run torchrun on this node; the nodes meet at HUB, over TLS, on that one port.

Start it on every node with the same --hub and with the arguments of torch.distributed.run, less those that say where to
meet:

    GEOCOMM_KEYS=keys/frankfurt geocomm run --hub 192.0.2.10:29400 --
      --nnodes 2 --node-rank 0 --nproc-per-node 8 train.py

The node that has the host's address is the hub, besides its ranks; the others only dial out to it. The site's name
comes from its keys (geocomm keys). torch's C++ parts log errors alone unless TORCH_CPP_LOG_LEVEL is set. The exit
status is torchrun's; 2: it could not begin.
"""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("run", help=_HELP, context_settings={"allow_interspersed_args": False})(run)


def run(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="TORCHRUN-ARGUMENTS...", help="For torch.distributed.run; write them after --."),
    ],
    hub: Annotated[str, typer.Option(help="Where the nodes meet: host:port, the same on all.", metavar="HOST:PORT")],
    listen: Annotated[
        str | None,
        typer.Option(
            help="This node is the hub and listens here, such as 0.0.0.0:29400, since --hub is a translated address.",
            metavar="ADDRESS:PORT",
        ),
    ] = None,
    keys: Annotated[str | None, typer.Option(help="This site's folder of keys.", show_default="$GEOCOMM_KEYS")] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds that the hub has to appear.")] = 300,
) -> None:
    """Start this site's ranks, and the hub at one site."""
    from geocomm.core.addresses import HubAddress, HubAddressError
    from geocomm.core.environment import keys_folder
    from geocomm.core.site import site_name
    from geocomm.rendezvous.run_at_hub import run_at_hub
    from geocomm.security.keys import Keys, KeysError

    folder = keys or keys_folder()
    if folder is None:
        fail("run", "no keys: make them once with geocomm keys create a b, and set GEOCOMM_KEYS to this site's folder")
    try:
        loaded = Keys.load(folder)
        if (site := site_name()) not in (None, loaded.identity.site):
            fail(
                "run", f"GEOCOMM_SITE is {site!r}, but the keys in {folder} are those of site {loaded.identity.site!r}"
            )
        status = run_at_hub(HubAddress.parse(hub), listen, loaded, arguments, wait)
    except (KeysError, HubAddressError) as error:
        fail("run", str(error))
    except OSError as error:
        fail("run", f"{hub}: {error.strerror or error}")
    raise typer.Exit(status)
