"""Options of the backend: the one place that reads `GEOCOMM_*` variables.

`geocomm.Options(codec="int8")` sets what it is given; every other field comes from its variable, else from the default.
An explicit argument beats the environment. Pass it as `pg_options` of `init_process_group` or `new_group`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from geocomm.hub_address import HubAddress, HubAddressError
from geocomm.transport_choice import TransportChoice, TransportTextError
from geocomm.units import parse_duration, parse_rate, parse_size

CPU_LEVELS = ("scalar", "avx2", "avx512")
MAX_THREADS = 1024
LOG_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "off": 4}
TRANSPORTS = ("tcp", "rdma")
SECURITIES = ("required", "insecure")
# Fields that mean something inside one site too, or that geocomm itself fills in (address).
_OF_ANY_JOB = frozenset(
    {
        *("one_site", "address", "threads", "preserve_inputs"),
        *("metrics_port", "metrics_address", "stats_file", "stats_interval"),
    }
)


class _Unset:
    """The default of every field: look in the environment, then take the field's own default."""

    def __repr__(self) -> str:
        return "<environment or default>"


_UNSET: Any = _Unset()
_MINUTE = timedelta(minutes=1)
_A_SECOND = "a time of at least 1 s"
_A_TENTH = "a time from 0.1 s to a day"


def _boolean(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither 1 (true) nor 0 (false)")


def _duration(text: str) -> timedelta:
    return timedelta(seconds=float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text, "duration"))


def _size(text: str) -> int:
    return parse_size(text, "size")


def _rate(text: str) -> int:
    return round(parse_rate(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _field(default: Any, variable: str, parse: Callable[[str], Any], help_text: str) -> Any:
    metadata = {"default": default, "variable": variable, "parse": parse, "help": help_text}
    return dataclasses.field(default=_UNSET, metadata=metadata)


@dataclasses.dataclass
class Options:
    """How this process group crosses sites. Ranks may differ in site, address, port, outbound_only, threads, and in how
    they report (metrics_*, stats_*); the rest must agree. A process reports as its first group says.

    Raises `geocomm.InvalidArgumentError` from `validate()` (which the backend calls) for a value that cannot be, naming
    the field, its variable and the nearest right value.
    """

    site: str | None = _field(None, "GEOCOMM_SITE", str, "name of this rank's site; unset on all ranks: one site")
    one_site: bool = _field(
        False,
        "GEOCOMM_ONE_SITE",
        _boolean,
        "all ranks are at one site of several machines, with a network that may carry plaintext",
    )
    codec: str = _field(
        "none", "GEOCOMM_CODEC", str, "codec of reductions across sites, such as int8 or int4:block=128; or auto"
    )
    codecs: tuple[str, ...] = _field(
        ("lossless", "bf16", "int8", "int4", "balanced", "small"),
        "GEOCOMM_CODECS",
        _names,
        "what codec=auto may choose, by commas; none is always among it",
    )
    max_nmse: float = _field(
        1e-3, "GEOCOMM_MAX_NMSE", float, "codec=auto: most squared error over squared norm (docs/codecs.md)"
    )
    max_relative_error: float | None = _field(
        None, "GEOCOMM_MAX_RELATIVE_ERROR", float, "codec=auto: most error of an element, over the largest of its block"
    )
    links: str | None = _field(
        None, "GEOCOMM_LINKS", str, "file with the rates of the links, from `geocomm probe --out`; default: assumed"
    )
    transport: str = _field(
        "tcp", "GEOCOMM_TRANSPORT", str, "tcp, rdma, or rdma:SITE,SITE (between these sites, tcp elsewhere)"
    )
    rdma_trusted: bool = _field(
        False, "GEOCOMM_RDMA_TRUSTED", _boolean, "the RDMA fabric may carry plaintext under security=required"
    )
    security: str = _field("required", "GEOCOMM_SECURITY", str, "required (TLS; loopback without keys) or insecure")
    keys: str | None = _field(None, "GEOCOMM_KEYS", str, "folder of this site's keys, made by geocomm keygen")
    streams: int | None = _field(None, "GEOCOMM_STREAMS", int, "TCP streams per peer; default: what the link needs")
    address: str | None = _field(None, "GEOCOMM_ADDRESS", str, "address that other sites dial; default: the route's")
    port: int | None = _field(None, "GEOCOMM_PORT", int, "listen on port + LOCAL_RANK; default: the kernel chooses")
    outbound_only: bool = _field(
        False,
        "GEOCOMM_OUTBOUND_ONLY",
        _boolean,
        "other sites cannot dial this rank, so it dials them; one site at most",
    )
    threads: int | None = _field(None, "GEOCOMM_THREADS", int, "codec threads; default cores / local ranks")
    link_deadline: timedelta = _field(  # noqa: RUF009
        _MINUTE, "GEOCOMM_LINK_DEADLINE", _duration, "silence after which a peer counts as lost"
    )
    min_compress_bytes: int = _field(
        64 * 1024, "GEOCOMM_MIN_COMPRESS_BYTES", _size, "smaller reductions go uncompressed"
    )
    preserve_inputs: bool = _field(
        False, "GEOCOMM_PRESERVE_INPUTS", _boolean, "a failed in-place all-reduce leaves its tensor as it was"
    )
    max_pacing_bps: int | None = _field(
        None, "GEOCOMM_MAX_PACING_BPS", _rate, "most bits per second to each peer; default: no cap"
    )
    metrics_port: int | None = _field(
        None, "GEOCOMM_METRICS_PORT", int, "Prometheus scrapes port + LOCAL_RANK; default: no endpoint"
    )
    metrics_address: str = _field("127.0.0.1", "GEOCOMM_METRICS_ADDRESS", str, "address of that endpoint")
    stats_file: str | None = _field(
        None, "GEOCOMM_STATS_FILE", str, "append stats() to it as JSON lines; {rank} in it stands for the rank"
    )
    stats_interval: timedelta = _field(  # noqa: RUF009
        timedelta(seconds=10), "GEOCOMM_STATS_INTERVAL", _duration, "time between its lines"
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is _UNSET:
                setattr(self, field.name, _from_environment(field, os.environ))
        for name, wanted in (("link_deadline", _A_SECOND), ("stats_interval", _A_TENTH)):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                try:
                    setattr(self, name, timedelta(seconds=value))
                except (ValueError, OverflowError):  # nan, inf
                    raise _bad(self, name, wanted) from None

    def validate(self) -> None:
        """Raise InvalidArgumentError for the first field that cannot be."""
        if self.security not in SECURITIES:
            raise _bad(self, "security", f"one of {', '.join(SECURITIES)}{_nearest(self.security, SECURITIES)}")
        self._validate_transport()
        if self.keys is not None and (not isinstance(self.keys, str) or not self.keys):
            raise _bad(self, "keys", "a folder that geocomm keygen has made")
        if self.site is not None and (not isinstance(self.site, str) or not self.site.strip() or len(self.site) > 64):
            raise _bad(self, "site", "a name of 1 to 64 characters")
        whole = (("streams", 1, 64), ("port", 1, 65535), ("threads", 1, MAX_THREADS), ("metrics_port", 1, 65535))
        for name, low, high in whole:
            value = getattr(self, name)
            if value is not None and (not _is_int(value) or not low <= value <= high):
                raise _bad(self, name, f"a whole number from {low} to {high}")
        if not isinstance(self.link_deadline, timedelta) or self.link_deadline < timedelta(seconds=1):
            raise _bad(self, "link_deadline", _A_SECOND)
        interval = self.stats_interval
        if not isinstance(interval, timedelta) or not timedelta(milliseconds=100) <= interval <= timedelta(days=1):
            raise _bad(self, "stats_interval", _A_TENTH)
        if not isinstance(self.metrics_address, str) or not self.metrics_address:
            raise _bad(self, "metrics_address", "an address of this machine, such as 0.0.0.0")
        if self.stats_file is not None and (not isinstance(self.stats_file, str) or not self.stats_file):
            raise _bad(self, "stats_file", "a path")
        if not _is_int(self.min_compress_bytes) or self.min_compress_bytes < 0:
            raise _bad(self, "min_compress_bytes", "a number of bytes, 0 or more")
        if self.max_pacing_bps is not None and (not _is_int(self.max_pacing_bps) or self.max_pacing_bps < 8000):
            raise _bad(self, "max_pacing_bps", "at least 8000 bits per second")
        for name in ("one_site", "outbound_only", "preserve_inputs"):
            if not isinstance(getattr(self, name), bool):
                raise _bad(self, name, "True or False")
        if not isinstance(self.codec, str):
            raise _bad(self, "codec", "a codec string such as 'int8'")
        if not isinstance(self.codecs, (tuple, list)) or not all(isinstance(codec, str) for codec in self.codecs):
            raise _bad(self, "codecs", "a tuple of codec strings")
        for name in ("max_nmse", "max_relative_error"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
                raise _bad(self, name, "a number, 0 or more")
        if self.max_nmse is None:
            raise _bad(self, "max_nmse", "a number, 0 or more")
        if self.links is not None and not isinstance(self.links, str):
            raise _bad(self, "links", "the path of a file")

    def _validate_transport(self) -> None:
        try:
            choice = TransportChoice.parse(self.transport)
        except TransportTextError as error:
            raise _bad(self, "transport", f"{error}{_nearest(self.transport, TRANSPORTS)}") from None
        if not isinstance(self.rdma_trusted, bool):
            raise _bad(self, "rdma_trusted", "True or False")
        if not choice.any_rdma:
            return
        if self.security == "required" and not self.rdma_trusted:
            raise _refusal(
                f"transport={self.transport} sends plaintext over the RDMA fabric, which security=required forbids: "
                "declare that you trust the fabric (GEOCOMM_RDMA_TRUSTED=1), or use GEOCOMM_TRANSPORT=tcp"
            )
        if self.max_pacing_bps is not None:
            raise _refusal("max_pacing_bps (GEOCOMM_MAX_PACING_BPS) caps TCP only: leave it out with transport=rdma")

    def agreed(self) -> dict[str, str | int | float | bool]:
        """The fields that all ranks of a group must have alike."""
        return {
            "codec": self.codec,
            "transport": self.transport,
            "security": self.security,
            "keys": "set" if transport_keys(self) else "not set",
            "min_compress_bytes": self.min_compress_bytes,
        } | self._agreed_of_auto()

    def _agreed_of_auto(self) -> dict[str, str | float]:
        if self.codec != "auto":
            return {}
        return {
            "codecs": ", ".join(self.codecs),
            "max_nmse": self.max_nmse,
            "max_relative_error": "none" if self.max_relative_error is None else self.max_relative_error,
        }

    def given_for_sites(self) -> list[str]:
        """Variables of the options that count between sites only and are not as by default."""
        return [
            field.metadata["variable"]
            for field in dataclasses.fields(self)
            if field.name not in _OF_ANY_JOB and getattr(self, field.name) != field.metadata["default"]
        ]

    def replace(self, **changes: Any) -> Options:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def log_level() -> int:
    """Level of the native core's log lines, from GEOCOMM_LOG (debug, info, warning, error, off; default warning)."""
    text = os.environ.get("GEOCOMM_LOG", "warning").lower()
    if text not in LOG_LEVELS:
        raise _refusal(
            f"GEOCOMM_LOG is {text!r}; it must be one of {', '.join(LOG_LEVELS)}{_nearest(text, LOG_LEVELS)}"
        )
    return LOG_LEVELS[text]


def cpu_level() -> str | None:
    """The most that the codecs may use of the CPU, from GEOCOMM_CPU (scalar, avx2, avx512); None: all that it has."""
    text = os.environ.get("GEOCOMM_CPU", "").lower()
    if not text:
        return None
    if text not in CPU_LEVELS:
        raise _refusal(
            f"GEOCOMM_CPU is {text!r}; it must be one of {', '.join(CPU_LEVELS)}{_nearest(text, CPU_LEVELS)}"
        )
    return text


def rdma_allow_tcp() -> bool:
    """Whether transport=rdma may run over UCX's TCP and shared memory, from GEOCOMM_RDMA_ALLOW_TCP. For tests."""
    try:
        return _boolean(os.environ.get("GEOCOMM_RDMA_ALLOW_TCP", ""))
    except ValueError as error:
        raise _refusal(f"GEOCOMM_RDMA_ALLOW_TCP: {error}") from None


def keys_folder() -> str | None:
    """This site's folder of keys, from GEOCOMM_KEYS."""
    return os.environ.get("GEOCOMM_KEYS") or None


def keep_keys_from_ranks() -> None:
    """Under security=insecure, where ranks have no use for keys, take GEOCOMM_KEYS out of what processes started from
    here inherit: only the rendezvous is encrypted then."""
    if os.environ.get("GEOCOMM_SECURITY") == "insecure":
        os.environ.pop("GEOCOMM_KEYS", None)


def site_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """This site, from GEOCOMM_SITE, for programs that have no options."""
    return environment.get("GEOCOMM_SITE") or None


def one_site() -> bool:
    """Whether all ranks are declared to be at one site, from GEOCOMM_ONE_SITE, for programs that have no options."""
    return bool(_from_environment(_field_named("one_site"), os.environ))


def codec_name() -> str:
    """Codec of reductions across sites, from GEOCOMM_CODEC, for programs that have no options."""
    return os.environ.get("GEOCOMM_CODEC") or "none"


def hub_address() -> HubAddress | None:
    """Where the job meets, from GEOCOMM_HUB, which `geocomm run` sets for the ranks."""
    text = os.environ.get("GEOCOMM_HUB")
    try:
        return HubAddress.parse(text) if text else None
    except HubAddressError as error:
        raise _refusal(f"GEOCOMM_HUB: {error}") from None


def codec_threads(options: Options) -> int:
    """Codec threads of this process: as asked for, else its share of the cores."""
    return options.threads if options.threads is not None else _share_of_cores()


def tensor_threads() -> int:
    """Codec threads of `geocomm.compress`, which has no options: GEOCOMM_THREADS, else the share of the cores."""
    threads = _from_environment(_field_named("threads"), os.environ)
    if threads is None:
        return _share_of_cores()
    if not 1 <= threads <= MAX_THREADS:
        raise _refusal(f"GEOCOMM_THREADS is {threads}; it must be a whole number from 1 to {MAX_THREADS}")
    return threads


def _share_of_cores() -> int:
    local_ranks = max(int(os.environ.get("LOCAL_WORLD_SIZE", "1") or "1"), 1)
    return max(1, math.floor(len(os.sched_getaffinity(0)) / local_ranks))


def transport_keys(options: Options) -> str | None:
    """Folder of the keys for TLS between the sites; None: plaintext, as security=insecure asks for even with keys."""
    return options.keys if options.security == "required" else None


def listen_port(options: Options) -> int:
    """Port of this process: the pinned one plus LOCAL_RANK, or 0 (the kernel chooses)."""
    return 0 if options.port is None else options.port + _local_rank()


def metrics_listen_port(options: Options) -> int:
    """Port of this process's metrics endpoint; options.metrics_port must be there."""
    assert options.metrics_port is not None
    return options.metrics_port + _local_rank()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0") or "0")


def _field_named(name: str) -> dataclasses.Field[Any]:
    return next(field for field in dataclasses.fields(Options) if field.name == name)


def _from_environment(field: dataclasses.Field[Any], environment: Mapping[str, str]) -> Any:
    text = environment.get(field.metadata["variable"])
    if text is None or text == "":
        return field.metadata["default"]
    try:
        return field.metadata["parse"](text)
    except (ValueError, OverflowError) as error:
        raise _refusal(f"{field.metadata['variable']}={text}: {error}") from None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _nearest(value: object, allowed: object) -> str:
    match = difflib.get_close_matches(str(value), list(allowed), n=1)  # type: ignore[call-overload]
    return f"; did you mean {match[0]!r}?" if match else ""


def _bad(options: Options, name: str, wanted: str) -> Exception:
    variable = _field_named(name).metadata["variable"]
    return _refusal(f"option {name} ({variable}) is {getattr(options, name)!r}; it must be {wanted}")


def _refusal(message: str) -> Exception:
    from geocomm.errors import InvalidArgumentError  # imports torch; options themselves do not need it

    return InvalidArgumentError(message)
