"""torchrun with the hub as its rendezvous: what `geocomm run` starts on every node, by `torchrun_process`.

Its arguments are HUB WAY WAIT_S TORCHRUN-ARGUMENTS. HUB and WAY are host:port: of the hub for all nodes, and as this
one reaches it. WAIT_S: how long it has to answer; IS_HUB: it is this node.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)

from geocomm.core.addresses import Address
from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.environment import keep_keys_from_ranks
from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.message_log import log, tell
from geocomm.core.options import from_environment
from geocomm.core.site import site_name
from geocomm.group.rendezvous.first_error import hide_torchruns_lines, tell_failure
from geocomm.group.rendezvous.hub_rendezvous import HubRendezvousMaker, keys_or_refusal
from geocomm.group.rendezvous.launch_checks import (
    check_codec,
    check_nodes,
    check_ports,
    check_program,
    check_variables,
    local_ranks,
)
from geocomm.group.rendezvous.run_at_hub import IS_HUB
from geocomm.group.rendezvous.tunnel import probe
from geocomm.security.key_folder import Keys, KeysError, sites_of
from geocomm.wire.greeting import ProtocolError, SessionRefused


def _as_given(option: str, words: Sequence[str]) -> str:
    """An option of torchrun as the user gave it: torchrun reads variables, too, which some launchers of jobs set."""
    variable = "PET_" + option.removeprefix("--").replace("-", "_").upper()
    is_written = any(word.partition("=")[0].replace("_", "-") == option for word in words)
    return option if is_written or variable not in os.environ else f"the variable {variable}"


def main(arguments: list[str]) -> None:
    """Run torchrun; exits with a line for arguments that would have it meet elsewhere, for what ranks would refuse, and
    nodes that do not fit together."""
    hub, way, wait_s, *rest = arguments
    chosen = _parsed(rest)
    own = {
        "--standalone": chosen.standalone,
        "--rdzv-backend": chosen.rdzv_backend != "static",
        "--rdzv-endpoint": chosen.rdzv_endpoint,
        "--master-addr": chosen.master_addr != "127.0.0.1",
        "--master-port": chosen.master_port not in (None, 29500),  # torch's default, that of 2.11
    }
    if given := [_as_given(name, rest) for name, used in own.items() if used]:
        _refuse(f"leave out {', '.join(given)}: the ranks meet at the hub, {hub}")
    try:
        sites = _number_by_sites(chosen)
        check_nodes(chosen)
        check_program(chosen)
        check_codec()
        check_ports(check_variables(), local_ranks(chosen))
        if wait_s != IS_HUB:
            _find_hub(Address.parse(way), float(wait_s))
    except (
        BadInput,
        InvalidArgumentError,
        UnsupportedError,
        KeysError,
        SessionRefused,
        ProtocolError,
        OSError,
    ) as error:
        _refuse(str(error))
    rendezvous = HubRendezvousMaker(keys_or_refusal(), Address.parse(way), sites)
    rendezvous_handler_registry.register("geocomm", rendezvous)
    keep_keys_from_ranks()
    chosen.rdzv_backend, chosen.rdzv_endpoint = "geocomm", hub
    chosen.rdzv_conf = ",".join(filter(None, [chosen.rdzv_conf, f"rank={chosen.node_rank or 0}"]))
    chosen.node_rank = 0  # torchrun warns of a node rank, since it does not know this backend
    hide_torchruns_lines()
    try:
        cast(Any, run).run(chosen)
    except InvalidArgumentError as error:
        _refuse(str(error))
    except RendezvousConnectionError as error:
        cause = str(error).partition("\n")[0]
        tell("run", f"the hub at {hub} is gone ({cause}): geocomm run has ended there, and its last lines say why")
        sys.exit(1)
    except SignalException as stop:  # torchrun has ended the ranks
        tell("run", f"ended by {stop.sigval.name}")
        sys.exit(128 + stop.sigval)
    except (RendezvousClosedError, RendezvousTimeoutError) as error:
        tell("run", str(error))
        sys.exit(1)
    except ChildFailedError as error:  # of the ranks, which have told their errors; torchrun's own stack tells nothing
        nodes = int(str(chosen.nnodes).partition(":")[0])
        tell_failure(error, site_name() or "", rendezvous.made and rendezvous.made.store, nodes)
        sys.exit(1)
    finally:
        if rendezvous.made is not None:
            rendezvous.made.leave()


def _find_hub(hub: Address, wait_s: float) -> None:
    """Raises what `probe` does. What it waits for, and an error, say why this node is not the hub."""

    def why_not() -> str:
        with contextlib.suppress(OSError):  # its name is not known any more
            return f"; {'' if hub.is_here else 'this node is not the hub: '}{hub.why_not_free()}"
        return ""

    try:
        asyncio.run(probe(hub, Keys.load(keys_or_refusal()), wait_s, log, also=why_not))
    except (ConnectionError, ProtocolError) as error:
        raise type(error)(f"{error}{why_not()}") from None
    except KeysError as error:  # a hub has answered: elsewhere it is the one that was meant
        raise KeysError(f"{error}{why_not() if hub.is_here else ''}") from None


def _parsed(arguments: list[str]) -> Namespace:
    """torchrun's arguments; nnodes and node_rank are None where neither they nor torchrun's variables say them."""
    parser = run.get_args_parser()
    cast(Any, parser).error = _refuse  # its own prints forty lines of usage before what is wrong
    unsaid = {name: None for name in ("nnodes", "node_rank") if f"PET_{name.upper()}" not in os.environ}
    parser.set_defaults(**unsaid)
    return parser.parse_args(arguments)


def _number_by_sites(chosen: Namespace) -> dict[int, str]:
    """What is not said of nnodes and node_rank: one node for each site that the folder of keys lists, in that order.
    The sites by these numbers; none where they are said.

    KeysError where that list has a bad name."""
    sites = [] if from_environment("one_site") else sites_of(keys_or_refusal())
    fits = site_name() in sites and chosen.nnodes in (None, str(len(sites)))
    numbered = dict(enumerate(sites)) if fits and chosen.node_rank is None else {}
    if fits and (chosen.nnodes is None or chosen.node_rank is None):
        chosen.nnodes = str(len(sites))
        chosen.node_rank = sites.index(str(site_name())) if chosen.node_rank is None else chosen.node_rank
        log(f"node {chosen.node_rank} of {chosen.nnodes}: one for each site with keys, {', '.join(sites)}")
    chosen.nnodes = chosen.nnodes or "1"
    return numbered


def _refuse(message: str) -> NoReturn:
    tell("run", message)
    sys.exit(EXIT_BAD_INPUT)
