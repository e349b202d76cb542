"""What `geocomm run` looks at before it starts ranks: a mistake in what the user gave is reported once, in a line,
before tracebacks.

The first functions need no torch. The others run in the process that is about to be torchrun. All raise BadInput, or
an InvalidArgumentError or UnsupportedError whose message stands alone.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
import time
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path

from geocomm.core.addresses import Address, listen_everywhere, listen_on, port_holder
from geocomm.core.bad_input import BadInput
from geocomm.core.environment import check_other_variables
from geocomm.core.options import Options
from geocomm.core.units import count_text

_PORT_LIMIT_S = 5.0
"""Ranks of the job before may be about to leave a port."""
_POLL_S = 0.25


def check_variables() -> Options:
    """Every GEOCOMM_* variable but the codecs', whose grammar needs torch. The options."""
    check_other_variables()
    return Options(codec="none", codecs=())


def check_ports(options: Options, ranks: int) -> None:
    """The ports that this machine's `ranks` ranks will listen on."""
    _check_free(options.port, ranks, "GEOCOMM_PORT", listen_everywhere)
    at = options.metrics_address
    _check_free(options.metrics_port, ranks, "GEOCOMM_METRICS_PORT", lambda port: listen_on(str(Address(at, port))))


def check_codec() -> None:
    """GEOCOMM_CODEC and GEOCOMM_CODECS."""
    from geocomm.codecs.codec_spec import AUTO, without_feedback
    from geocomm.group.planning.codec_choice import candidates

    options = Options()
    if options.codec == AUTO:
        candidates(options)
    else:
        without_feedback(options.codec)


def check_nodes(chosen: Namespace) -> None:
    """The counts of nodes and ranks in torchrun's arguments. node_rank: None where nobody said it."""
    fewest, _, most = str(chosen.nnodes).partition(":")
    if most and most != fewest:
        raise BadInput(f"--nnodes {chosen.nnodes}: the number of nodes has to be fixed")
    if not fewest.isdecimal() or int(fewest) < 1:
        raise BadInput(f"--nnodes {chosen.nnodes}: it must be the number of nodes")
    nodes = int(fewest)
    if chosen.node_rank is None and nodes > 1:
        raise BadInput(f"--nnodes {nodes} needs --node-rank: 0 to {nodes - 1}, another on each node")
    if not 0 <= (chosen.node_rank or 0) < nodes:
        raise BadInput(f"--node-rank {chosen.node_rank}: of {nodes} nodes, it must be 0 to {nodes - 1}")


def local_ranks(chosen: Namespace) -> int:
    """How many ranks torchrun's arguments start on this node."""
    from torch.distributed.run import determine_local_world_size

    try:
        ranks = int(determine_local_world_size(str(chosen.nproc_per_node)))  # pyright: ignore[reportUnknownArgumentType]
    except ValueError as error:
        raise BadInput(f"--nproc-per-node {chosen.nproc_per_node}: {error}") from None
    if ranks < 1:
        raise BadInput(f"--nproc-per-node {chosen.nproc_per_node}: it must be 1 or more")
    return ranks


def check_program(chosen: Namespace) -> None:
    """Check that the program is there, and is Python as far as can be known without running it."""
    program = str(chosen.training_script)
    if chosen.no_python or chosen.run_path or os.environ.get("PYTHON_EXEC"):  # torchrun's, for another Python
        return
    if chosen.module:
        if importlib.util.find_spec(program.partition(".")[0]) is None:
            raise BadInput(f"-m {program}: there is no such module here")
        return
    path = Path(program)
    if (path / "__main__.py").is_file() or zipfile.is_zipfile(path) or path.suffix == ".pyc":
        return  # Python runs these, too
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise BadInput(f"{program}: there is no such file{where}")
    try:
        with warnings.catch_warnings(action="ignore"):  # the ranks tell them
            compile(path.read_bytes(), program, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise BadInput(f"{program}, line {error.lineno}: {type(error).__name__}: {error.msg}") from None
    except ValueError as error:  # null bytes
        raise BadInput(f"{program} is not a Python program: {error}") from None
    except OSError as error:
        raise BadInput(f"{program}: {error.strerror}") from None


def _check_free(first: int | None, ranks: int, variable: str, listen: Callable[[int], socket.socket]) -> None:
    if first is None:
        return
    last = first + ranks - 1
    if last > 65535:
        raise BadInput(f"{variable}={first}: {count_text(ranks, 'rank')} need ports up to {last}; 65535 is the last")
    busy = [*range(first, first + ranks)]
    end = time.monotonic() + _PORT_LIMIT_S
    while busy := list(_busy(busy, variable, listen)):
        if time.monotonic() > end:
            raise BadInput(
                f"port {busy[0]} is taken by {port_holder(busy[0])} here: end that process, or set another {variable}"
            )
        time.sleep(_POLL_S)


def _busy(ports: Iterable[int], variable: str, listen: Callable[[int], socket.socket]) -> Iterable[int]:
    for port in ports:
        try:
            listen(port).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                yield port
            elif error.errno == errno.EACCES:
                raise BadInput(f"{variable}: port {port} is below 1024 and for root alone: set another one") from None
