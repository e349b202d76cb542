"""torchrun with the hub as its rendezvous: what `geocomm run` starts on every node.

python -m geocomm.launch HOST:PORT TORCHRUN-ARGUMENTS
"""

from __future__ import annotations

import sys

from torch.distributed import run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from geocomm.errors import InvalidArgumentError
from geocomm.options import keep_keys_from_ranks
from geocomm.rendezvous import hub_rendezvous_with, keys_or_refusal


def main(arguments: list[str]) -> None:
    """Run torchrun; exits with a line for arguments that would have it meet elsewhere, and nodes that do not fit
    together."""
    hub, *rest = arguments
    chosen = run.parse_args(rest)
    own = {
        "--standalone": chosen.standalone,
        "--rdzv-backend": chosen.rdzv_backend != "static",
        "--rdzv-endpoint": chosen.rdzv_endpoint,
        "--master-addr": chosen.master_addr != "127.0.0.1",
        "--master-port": chosen.master_port is not None,
    }
    if given := [name for name, used in own.items() if used]:
        sys.exit(f"geocomm run: leave out {', '.join(given)}: the ranks meet at the hub, {hub}")
    fewest, _, most = str(chosen.nnodes).partition(":")
    if most and most != fewest:
        sys.exit(f"geocomm run: --nnodes {chosen.nnodes}: the number of nodes has to be fixed")
    rendezvous_handler_registry.register("geocomm", hub_rendezvous_with(keys_or_refusal()))
    keep_keys_from_ranks()
    chosen.rdzv_backend, chosen.rdzv_endpoint = "geocomm", hub
    chosen.rdzv_conf = ",".join(filter(None, [chosen.rdzv_conf, f"rank={chosen.node_rank}"]))
    chosen.node_rank = 0  # torchrun warns of a node rank, since it does not know this backend
    try:
        run.run(chosen)
    except InvalidArgumentError as error:
        sys.exit(f"geocomm run: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
