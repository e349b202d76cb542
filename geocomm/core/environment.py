"""GEOCOMM_* variables that are read where nobody has options, and a warning of those that nobody reads.

`geocomm.core.options` reads the variables of its fields; the modules of `core` are the only readers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from geocomm.core.addresses import Address, AddressError
from geocomm.core.bad_input import did_you_mean
from geocomm.core.place import local_world_size
from geocomm.core.units import parse_boolean, parse_size

CPU_LEVELS = ("scalar", "avx2", "avx512", "neon")
MAX_THREADS = 1024
LOG_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "off": 4}
LOG_FORMATS = ("text", "json")
PREFIX = "GEOCOMM_"
SCRIPTS_OWN = "script"
BACKENDS = (SCRIPTS_OWN, "geocomm")
BACKEND_NAMES = (SCRIPTS_OWN, "geocomm", "gloo", "nccl", "cpu:gloo,cuda:nccl")

OTHER_VARIABLES: tuple[tuple[str, str, str], ...] = (
    ("GEOCOMM_HUB", "", "where the job meets, host:port; `geocomm run` sets it"),
    (
        "GEOCOMM_BACKEND",
        "`script`",
        "backend over sites, `geocomm run --backend`: the script's own, or geocomm in its place",
    ),
    ("GEOCOMM_BACKEND_NAME", "`script`", "what `get_backend()` then says; `geocomm run --backend-name`"),
    ("GEOCOMM_AGENT", "", "socket of the site's agent; `geocomm run --elastic` sets it"),
    (
        "GEOCOMM_COLLECTOR",
        "",
        "socket of the node's collector of telemetry; `geocomm run` sets it",
    ),
    ("GEOCOMM_TELEMETRY", "", "folder for the telemetry of this machine's ranks, where no `geocomm run` collects it"),
    ("GEOCOMM_RUN_DIR", "", "folder of the run at this site; `geocomm run --elastic` sets it"),
    (
        "GEOCOMM_ALERT_WEBHOOK",
        "",
        "where the hub or leader posts alerts, as Alertmanager does; to hooks.slack.com as text",
    ),
    ("GEOCOMM_EGRESS_PRICE", "", "dollars per GB that leaves this site, for its ranks' reports"),
    ("GEOCOMM_EGRESS_BUDGET", "", "dollars a day that this site's egress may cost, for the alert EgressBudget"),
    ("GEOCOMM_ETCD_CA", "", "file of the authority of etcd's certificates; unset: etcd is spoken to without TLS"),
    ("GEOCOMM_ETCD_CERT", "", "this site's certificate for etcd"),
    ("GEOCOMM_ETCD_KEY", "", "its private key"),
    ("GEOCOMM_STORES", "", "TOML file with keys of stores of data, a table for each; unset: the environment's keys"),
    ("GEOCOMM_DATA_CACHE", "`~/.cache/geocomm/data`", "folder for what is fetched of a data set; nodes may share one"),
    ("GEOCOMM_DATA_CACHE_SIZE", "what the disk has", "the most that this folder may hold, such as 200gb"),
    ("GEOCOMM_LOG", "`warning`", "level of the log: debug, info, warning, error or off"),
    ("GEOCOMM_LOG_FORMAT", "`text`", "text, or json: an object a line, with site, rank, pid, step, term and entry"),
    ("GEOCOMM_CPU", "all that it has", "the most that codecs use of the CPU: scalar, avx2, avx512 or neon; same bytes"),
    (
        "GEOCOMM_GPU_BATCHES",
        "`0`",
        "collectives of CUDA tensors take all chunks of an operation at once; same bytes; has not run on a GPU",
    ),
    ("GEOCOMM_RDMA_ALLOW_TCP", "`0`", "transport=rdma may run over UCX's TCP and shared memory, for a trial"),
    ("GEOCOMM_WAN_CONTROL", "", "control socket of a running `geocomm wan run`, which sets it"),
    ("GEOCOMM_LOOPBACK_RUN", "", "which of its runs over loopback a process belongs to; `geocomm demo` sets it"),
)
"""Name, default and meaning of the variables that are no fields of Options, as the docs show them."""

# Read by setup.py and by the tests.
_NOT_OF_THE_PACKAGE = ("CUDA", "TEST_", "REQUIRE_", "WRITE_GOLDEN", "EXPECTED_CPU_LEVEL")

Value = TypeVar("Value")


def read(variable: str, parse: Callable[[str], Value], default: Value) -> Value:
    """What the text of `variable` means; `default` where it is unset or empty. InvalidArgumentError names it."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        return parse(text)
    except (ValueError, OverflowError) as error:
        raise refusal(f"{variable}={text}: {error}") from None


def refusal(message: str) -> Exception:
    """An InvalidArgumentError."""
    from geocomm.core.errors import InvalidArgumentError  # imports torch; the environment itself does not need it

    return InvalidArgumentError(message)


def etcd_tls_files() -> tuple[str | None, str | None, str | None]:
    """Authority, certificate and private key for etcd, from GEOCOMM_ETCD_CA, _CERT and _KEY."""
    ca, certificate, key = (os.environ.get(f"GEOCOMM_ETCD_{part}") or None for part in ("CA", "CERT", "KEY"))
    return ca, certificate, key


def _choice(variable: str, allowed: Collection[str], default: str) -> str:
    """The word of `allowed` that a variable has; `default` where it is empty."""
    text = os.environ.get(variable, "").lower()
    if text and text not in allowed:
        raise refusal(f"{variable} is {text!r}; it must be one of {', '.join(allowed)}{did_you_mean(text, allowed)}")
    return text or default


def log_level() -> int:
    """Level of the native core's log lines, from GEOCOMM_LOG (debug, info, warning, error, off; default warning)."""
    return LOG_LEVELS[_choice("GEOCOMM_LOG", LOG_LEVELS, "warning")]


def log_is_json() -> bool:
    """Whether lines of the log are objects of JSON, from GEOCOMM_LOG_FORMAT (text, json; default text)."""
    return _choice("GEOCOMM_LOG_FORMAT", LOG_FORMATS, "text") == "json"


def cpu_level() -> str | None:
    """The most that codecs may use of the CPU, from GEOCOMM_CPU (scalar, avx2, avx512, neon); None: all that it has."""
    return _choice("GEOCOMM_CPU", CPU_LEVELS, "") or None


def gpu_batches() -> bool:
    """Whether collectives of CUDA tensors take all chunks of an operation at once, from GEOCOMM_GPU_BATCHES."""
    return read("GEOCOMM_GPU_BATCHES", parse_boolean, default=False)


def rdma_allow_tcp() -> bool:
    """Whether transport=rdma may run over UCX's TCP and shared memory, from GEOCOMM_RDMA_ALLOW_TCP. For tests."""
    return read("GEOCOMM_RDMA_ALLOW_TCP", parse_boolean, default=False)


def keep_keys_from_ranks() -> None:
    """Under security=insecure, where ranks have no use for keys, take GEOCOMM_KEYS out of what processes started from
    here inherit: only the rendezvous is encrypted then."""
    if os.environ.get("GEOCOMM_SECURITY") == "insecure":
        os.environ.pop("GEOCOMM_KEYS", None)


def backend_over_sites() -> str:
    """Which backend groups over sites have, from GEOCOMM_BACKEND: the one that the script names (SCRIPTS_OWN), or
    geocomm in its place."""
    return _choice("GEOCOMM_BACKEND", BACKENDS, SCRIPTS_OWN)


def backend_name() -> str:
    """What a script is told of such a group, from GEOCOMM_BACKEND_NAME; SCRIPTS_OWN: what it asked for."""
    return _choice("GEOCOMM_BACKEND_NAME", BACKEND_NAMES, SCRIPTS_OWN)


def collector_socket() -> str | None:
    """Where this process reports to once a second, from GEOCOMM_COLLECTOR; None: nowhere."""
    return os.environ.get("GEOCOMM_COLLECTOR") or None


def telemetry_folder() -> Path | None:
    """Where this machine's ranks keep their telemetry by themselves, from GEOCOMM_TELEMETRY; None: nowhere."""
    folder = os.environ.get("GEOCOMM_TELEMETRY")
    return Path(folder) if folder else None


def under_geocomm_run() -> bool:
    """Whether `geocomm run` has started this process, or what started it: it has looked at the variables."""
    return any(os.environ.get(name) for name in ("GEOCOMM_HUB", "GEOCOMM_AGENT"))


def alert_webhook() -> str | None:
    """Where alerts are posted, from GEOCOMM_ALERT_WEBHOOK; None: nowhere."""
    url = os.environ.get("GEOCOMM_ALERT_WEBHOOK") or None
    if url is not None and not url.startswith(("http://", "https://")):
        raise refusal(f"GEOCOMM_ALERT_WEBHOOK is {url!r}; it must begin with https:// or http://")
    return url


def egress_price() -> float | None:
    """Dollars per GB that leaves this site, from GEOCOMM_EGRESS_PRICE; None: not known."""
    return read("GEOCOMM_EGRESS_PRICE", _dollars, default=None)


def egress_budget() -> float | None:
    """Dollars a day that this site's egress may cost, from GEOCOMM_EGRESS_BUDGET; None: there is no limit."""
    return read("GEOCOMM_EGRESS_BUDGET", _dollars, default=None)


def stores_file() -> Path | None:
    """Where the keys of stores of data are, from GEOCOMM_STORES; None: in the environment."""
    path = os.environ.get("GEOCOMM_STORES")
    return Path(path) if path else None


def data_cache() -> tuple[Path, int | None]:
    """Folder for what is fetched of data sets, and the most bytes in it, None: what the disk has. From
    GEOCOMM_DATA_CACHE and GEOCOMM_DATA_CACHE_SIZE."""
    folder = Path(os.environ.get("GEOCOMM_DATA_CACHE") or "~/.cache/geocomm/data").expanduser()
    return folder, read("GEOCOMM_DATA_CACHE_SIZE", parse_size, default=None)


def _dollars(text: str) -> float:
    dollars = float(text)
    if not 0 <= dollars < math.inf:
        raise ValueError("a number of dollars, 0 or more")
    return dollars


def hub_address() -> Address | None:
    """Where the job meets, from GEOCOMM_HUB, which `geocomm run` sets for the ranks."""
    text = os.environ.get("GEOCOMM_HUB")
    try:
        return Address.parse(text) if text else None
    except AddressError as error:
        raise refusal(f"GEOCOMM_HUB: {error}") from None


AGENT_OF_FIRST_NODE = "first-node"
"""GEOCOMM_AGENT on the other nodes of a site."""


def agent_socket() -> str | None:
    """Where the agent of an elastic run listens, from GEOCOMM_AGENT; None: this is no elastic run."""
    return os.environ.get("GEOCOMM_AGENT") or None


def run_folder() -> str | None:
    """What the site has of an elastic run, from GEOCOMM_RUN_DIR."""
    return os.environ.get("GEOCOMM_RUN_DIR") or None


def check_other_variables() -> None:
    """Read the variables that are no options. Raises InvalidArgumentError for the first that cannot be."""
    for reads in (
        *(log_level, cpu_level, gpu_batches, rdma_allow_tcp, alert_webhook, egress_price, egress_budget),
        *(backend_over_sites, backend_name),
    ):
        reads()


def tensor_threads() -> int:
    """Codec threads of `geocomm.compress`, which has no options: GEOCOMM_THREADS, else the share of the cores."""
    threads = read("GEOCOMM_THREADS", int, default=None)
    if threads is None:
        return share_of_cores()
    if not 1 <= threads <= MAX_THREADS:
        raise refusal(f"GEOCOMM_THREADS is {threads}; it must be a whole number from 1 to {MAX_THREADS}")
    return threads


def share_of_cores() -> int:
    """The cores that this process may use, divided among the ranks of this machine."""
    return max(1, math.floor(len(os.sched_getaffinity(0)) / local_world_size()))


def unknown_variables(of_options: Iterable[str]) -> list[str]:
    """A line for each GEOCOMM_* variable of the environment that nobody reads; `of_options`: those of its fields."""
    known = {name.removeprefix(PREFIX) for name in (*of_options, *(name for name, _, _ in OTHER_VARIABLES))}
    given = [name.removeprefix(PREFIX) for name in sorted(os.environ) if name.startswith(PREFIX)]
    return [
        f"{PREFIX}{name} is set, but geocomm reads no variable of this name{did_you_mean(name, known, PREFIX)}"
        for name in given
        if name not in known and not name.startswith(_NOT_OF_THE_PACKAGE)
    ]
