"""torchrun with the hub as its rendezvous: what `geocomm run` starts on every node.

python -m geocomm.rendezvous.torchrun_at_hub HUB WAY TORCHRUN-ARGUMENTS

HUB and WAY are host:port: of the hub for all nodes, and as this one reaches it.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Any, NoReturn, cast

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from geocomm.core.addresses import HubAddress
from geocomm.core.bad_input import EXIT_BAD_INPUT
from geocomm.core.environment import keep_keys_from_ranks
from geocomm.core.errors import InvalidArgumentError
from geocomm.rendezvous.hub_rendezvous import hub_rendezvous_with, keys_or_refusal


def main(arguments: list[str]) -> None:
    """Run torchrun; exits with a line for arguments that would have it meet elsewhere, and nodes that do not fit
    together."""
    hub, way, *rest = arguments
    chosen = _parsed(rest)
    own = {
        "--standalone": chosen.standalone,
        "--rdzv-backend": chosen.rdzv_backend != "static",
        "--rdzv-endpoint": chosen.rdzv_endpoint,
        "--master-addr": chosen.master_addr != "127.0.0.1",
        "--master-port": chosen.master_port not in (None, 29500),  # torch's default, that of 2.11
    }
    if given := [name for name, used in own.items() if used]:
        _refuse(f"leave out {', '.join(given)}: the ranks meet at the hub, {hub}")
    fewest, _, most = str(chosen.nnodes).partition(":")
    if most and most != fewest:
        _refuse(f"--nnodes {chosen.nnodes}: the number of nodes has to be fixed")
    if chosen.node_rank is None:
        if fewest != "1":
            _refuse(f"--nnodes {fewest} needs --node-rank: 0 to {int(fewest) - 1}, another on each node")
        chosen.node_rank = 0
    rendezvous_handler_registry.register("geocomm", hub_rendezvous_with(keys_or_refusal(), HubAddress.parse(way)))
    keep_keys_from_ranks()
    chosen.rdzv_backend, chosen.rdzv_endpoint = "geocomm", hub
    chosen.rdzv_conf = ",".join(filter(None, [chosen.rdzv_conf, f"rank={chosen.node_rank}"]))
    chosen.node_rank = 0  # torchrun warns of a node rank, since it does not know this backend
    try:
        cast(Any, run).run(chosen)
    except InvalidArgumentError as error:
        _refuse(str(error))
    except ChildFailedError as error:  # of the ranks, which have told their errors; torchrun's own stack tells nothing
        print(f"geocomm run: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def _parsed(arguments: list[str]) -> Namespace:
    """torchrun's arguments; node_rank is None where neither they nor torchrun's variable say it."""
    parser = run.get_args_parser()
    if "PET_NODE_RANK" not in os.environ:
        parser.set_defaults(node_rank=None)
    return parser.parse_args(arguments)


def _refuse(message: str) -> NoReturn:
    print(f"geocomm run: {message}", file=sys.stderr, flush=True)
    sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main(sys.argv[1:])
