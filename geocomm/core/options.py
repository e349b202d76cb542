"""Options of the backend, each a field of a pydantic model and a `GEOCOMM_*` variable.

`geocomm.Options(codec="int8")` sets what it is given; every other field comes from its variable, else from the default.
An explicit argument beats the environment. Pass it as `pg_options` of `init_process_group` or `new_group`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from geocomm.core.bad_input import did_you_mean
from geocomm.core.environment import (
    MAX_THREADS,
    PREFIX,
    read,
    refusal,
    share_of_cores,
    under_geocomm_run,
    unknown_variables,
)
from geocomm.core.message_log import logger
from geocomm.core.once import Once
from geocomm.core.place import local_rank
from geocomm.core.settings import ShortHelp, signature_of
from geocomm.core.site import NAME_RULE, SiteNameError, check_site_name
from geocomm.core.transport_choice import TransportChoice, TransportTextError
from geocomm.core.units import parse_boolean, parse_rate, parse_size, parse_wait

Security = Literal["required", "insecure"]
SECURITIES: tuple[str, ...] = get_args(Security)
TRANSPORTS = ("tcp", "rdma")
_NEED_NO_GRAMMAR = ("none", "auto")
# Fields that mean something inside one site too, or that geocomm itself fills in (address).
_OF_ANY_JOB = frozenset(
    {"one_site", "address", "threads", "preserve_inputs", "metrics_port", "metrics_address", "metrics_otlp"}
)


@dataclass(frozen=True)
class Kind:
    """How the variable of a field is read, and in words what the field must be."""

    parse: Callable[[str], Any]
    wanted: str
    allowed: tuple[str, ...] = ()
    """The valid values; the error for a misspelt one offers the nearest."""


def _duration(text: str) -> timedelta:
    return timedelta(seconds=parse_wait(text))


def _size(text: str) -> int:
    return parse_size(text, "size")


def _rate(text: str) -> int:
    return round(parse_rate(text))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _number_is_seconds(value: object) -> object:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    try:
        return timedelta(seconds=value) if is_number else value  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError("beyond any duration") from None


def _list_is_tuple(value: object) -> object:
    return tuple(cast(list[object], value)) if isinstance(value, list) else value


def _checked_transport(text: str) -> str:
    TransportChoice.parse(text)
    return text


def _check_codec(codec: str) -> None:
    from geocomm.core.errors import InvalidArgumentError
    from geocomm.core.native import native

    try:
        native().CodecSpec.parse(codec)
    except InvalidArgumentError as error:
        told = str(error).removeprefix(f"{error.code}: ")
        raise ValueError(f"option codec ({variable_of('codec')}): {told}") from None


def _whole(low: int, high: int) -> tuple[Any, Kind]:
    return Field(ge=low, le=high), Kind(int, f"a whole number from {low} to {high}")


def _yes_or_no() -> Kind:
    return Kind(parse_boolean, "True or False")


SiteName = Annotated[str | None, AfterValidator(lambda name: None if name is None else check_site_name(name))]
Path = Annotated[str | None, Field(min_length=1)]
Duration = Annotated[timedelta, BeforeValidator(_number_is_seconds)]
Error = Annotated[float, Field(ge=0, allow_inf_nan=True)]


class Options(BaseModel, metaclass=ShortHelp):
    """How a process group crosses sites: the `pg_options` of `init_process_group` and `new_group`.

    A field that is not given comes from its environment variable (`GEOCOMM_CODEC` for `codec`), else from its default.
    Ranks may differ in `site`, `address`, `port`, `outbound_only` and `threads`, and in how they report
    (`metrics_port`, `metrics_address`, `metrics_otlp`). All other fields must agree. A process reports as its first
    group says.

    Raises:
        InvalidArgumentError: A value is invalid. The message names the field, its variable and the nearest valid value.
        TypeError: There is no field of that name; the message offers the nearest one.

    Example:
        int8 between the sites, the other fields from the environment:

            dist.init_process_group("geocomm", pg_options=geocomm.Options(codec="int8"))
    """

    model_config = ConfigDict(strict=True, extra="forbid", validate_default=True)

    site: Annotated[SiteName, Kind(str, NAME_RULE)] = Field(
        default=None, description="name of this rank's site; unset on all ranks: one site"
    )
    one_site: Annotated[bool, _yes_or_no()] = Field(
        default=False,
        description="all ranks are at one site of several machines, with a network that may carry plaintext",
    )
    codec: Annotated[str, Kind(str, "a codec string such as 'int8'")] = Field(
        default="none", description="codec of reductions across sites, such as int8 or int4:block=128; or auto"
    )
    codecs: Annotated[tuple[str, ...], BeforeValidator(_list_is_tuple), Kind(_names, "a tuple of codec strings")] = (
        Field(
            default=("lossless", "bf16", "int8", "int4", "balanced", "small"),
            description="what codec=auto may choose, by commas; none is always among it",
        )
    )
    max_nmse: Annotated[Error, Kind(float, "a number, 0 or more")] = Field(
        default=1e-3, description="codec=auto: most squared error over squared norm that a codec may have"
    )
    max_relative_error: Annotated[Error | None, Kind(float, "a number, 0 or more")] = Field(
        default=None, description="codec=auto: most error of an element, over the largest of its block"
    )
    links: Annotated[Path, Kind(str, "the path of a file")] = Field(
        default=None, description="file with the rates of the links, from `geocomm probe --out`; default: assumed"
    )
    transport: Annotated[str, AfterValidator(_checked_transport), Kind(str, "tcp, rdma, or rdma:SITE,SITE")] = Field(
        default="tcp", description="tcp, rdma, or rdma:SITE,SITE (between these sites, tcp elsewhere)"
    )
    rdma_trusted: Annotated[bool, _yes_or_no()] = Field(
        default=False, description="the RDMA fabric may carry plaintext under security=required"
    )
    security: Annotated[Security, Kind(str, f"one of {', '.join(SECURITIES)}", SECURITIES)] = Field(
        default="required", description="required (TLS; loopback without keys) or insecure"
    )
    keys: Annotated[Path, Kind(str, "a folder that geocomm keys has made")] = Field(
        default=None, description="folder of this site's keys, made by geocomm keys"
    )
    streams: Annotated[int | None, *_whole(1, 64)] = Field(
        default=None, description="TCP streams per peer; default: what the link needs"
    )
    address: Annotated[Path, Kind(str, "an address or a host name, or several with commas")] = Field(
        default=None, description="address that other sites dial, or several with commas; default: the routes'"
    )
    port: Annotated[int | None, *_whole(1, 65535)] = Field(
        default=None, description="listen on port + LOCAL_RANK; default: the kernel chooses"
    )
    outbound_only: Annotated[bool, _yes_or_no()] = Field(
        default=False, description="other sites cannot dial this rank, so it dials them; one site at most"
    )
    threads: Annotated[int | None, *_whole(1, MAX_THREADS)] = Field(
        default=None, description="threads that code; half as many, four at most, encrypt; default: cores / local ranks"
    )
    link_deadline: Annotated[Duration, Field(ge=timedelta(seconds=1)), Kind(_duration, "at least 1 s, such as 90s")] = (
        Field(default=timedelta(minutes=1), description="silence after which a peer counts as lost")
    )
    min_compress_bytes: Annotated[int, Field(ge=0), Kind(_size, "a number of bytes, 0 or more, such as 64kib")] = Field(
        default=64 * 1024, description="smaller reductions go uncompressed"
    )
    preserve_inputs: Annotated[bool, _yes_or_no()] = Field(
        default=False, description="a failed in-place all-reduce leaves its tensor as it was"
    )
    max_pacing_bps: Annotated[int | None, Field(ge=8000), Kind(_rate, "at least 8kbit, such as 500mbit")] = Field(
        default=None, description="most bits per second to each peer; default: no cap"
    )
    metrics_port: Annotated[int | None, *_whole(1, 65535)] = Field(
        default=None, description="Prometheus scrapes port + LOCAL_RANK; default: no endpoint"
    )
    metrics_address: Annotated[str, Field(min_length=1), Kind(str, "an address of this machine, such as 0.0.0.0")] = (
        Field(default="127.0.0.1", description="address of that endpoint")
    )
    metrics_otlp: Annotated[bool, _yes_or_no()] = Field(
        default=False, description="sends the metrics over OTLP, where OTEL_EXPORTER_OTLP_ENDPOINT says"
    )

    if not TYPE_CHECKING:  # to type checkers the fields say what it takes

        def __init__(self, **given: Any) -> None:
            """Fields by name; what is not given comes from the environment."""
            fields = type(self).model_fields
            for name in given.keys() - fields.keys():
                raise TypeError(f"geocomm.Options has no field {name!r}{did_you_mean(name, fields)}")
            warn_of_unknown_variables()
            values = {name: from_environment(name) for name in fields if name not in given} | given
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _refusal_of(error, values) from None

    @model_validator(mode="after")
    def _check_grammar(self) -> Self:
        """The native core has the grammar of codecs; it is loaded only where there is one to look at."""
        if self.codec not in _NEED_NO_GRAMMAR:
            _check_codec(self.codec)
        return self

    @model_validator(mode="after")
    def _check_transport(self) -> Self:
        if not TransportChoice.parse(self.transport).any_rdma:
            return self
        if self.security == "required" and not self.rdma_trusted:
            raise ValueError(
                f"transport={self.transport} sends plaintext over the RDMA fabric, which security=required forbids: "
                "declare that you trust the fabric (GEOCOMM_RDMA_TRUSTED=1), or use GEOCOMM_TRANSPORT=tcp"
            )
        if self.max_pacing_bps is not None:
            raise ValueError("max_pacing_bps (GEOCOMM_MAX_PACING_BPS) caps TCP only: leave it out with transport=rdma")
        return self

    def validate(self) -> None:  # type: ignore[override]
        """Check the fields again, after some were assigned.

        Raises:
            InvalidArgumentError: A value is invalid.
        """
        self.replace()

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
        return [variable_of(name) for name in self.not_as_by_default() if name not in _OF_ANY_JOB]

    def not_as_by_default(self) -> dict[str, str]:
        """The fields that are not as by default, as their variables would have them."""
        fields = type(self).model_fields.items()
        values = {name: getattr(self, name) for name, field in fields if getattr(self, name) != field.default}
        return {name: value_text(value) for name, value in values.items()}

    def replace(self, **changes: Any) -> Options:
        """Make a copy with other values.

        Args:
            changes: Fields by name.

        Returns:
            The copy.

        Raises:
            InvalidArgumentError: A value is invalid.
            TypeError: There is no field of that name.
        """
        return Options(**self.model_dump() | changes)


@Once
def warn_of_unknown_variables() -> None:
    """One warning in a process, of all variables of geocomm's prefix that it does not read."""
    if under_geocomm_run():  # which has said so
        return
    if unknown := unknown_variables(map(variable_of, Options.model_fields)):
        logger().warning("%s", "; ".join(unknown))


def variable_of(name: str) -> str:
    """The variable of a field."""
    return f"{PREFIX}{name.upper()}"


def option_rows() -> list[tuple[str, str, str, str, str]]:
    """Variable, field, type, default and meaning of every option, in the order of the fields, for the docs."""
    rows: list[tuple[str, str, str, str, str]] = []
    for name, field in Options.model_fields.items():
        kind = _kind_of(name)
        rows.append((variable_of(name), name, kind.wanted, _default_text(field.default), field.description or ""))
    return rows


def _described() -> str:
    """Every field in a line or two, for the help of `Options`."""
    rows = (
        f"        {name} ({variable}): {meaning}; must be {wanted}{f'; default {default}' if default else ''}."
        for variable, name, wanted, default, meaning in option_rows()
    )
    return "\n    Attributes:\n" + "\n".join(rows) + "\n    "


def codec_threads(options: Options) -> int:
    """Codec threads of this process: as asked for, else its share of the cores."""
    return options.threads if options.threads is not None else share_of_cores()


def transport_keys(options: Options) -> str | None:
    """Folder of the keys for TLS between the sites; None: plaintext, as security=insecure asks for even with keys."""
    return options.keys if options.security == "required" else None


def listen_port(options: Options) -> int:
    """Port of this process: the pinned one plus LOCAL_RANK, or 0 (the kernel chooses)."""
    return 0 if options.port is None else options.port + local_rank()


def metrics_listen_port(options: Options) -> int:
    """Port of this process's metrics endpoint; options.metrics_port must be there."""
    if options.metrics_port is None:
        raise ValueError("the options have no metrics_port")
    return options.metrics_port + local_rank()


def _kind_of(name: str) -> Kind:
    return next(each for each in Options.model_fields[name].metadata if isinstance(each, Kind))


def from_environment(name: str) -> Any:
    """The value of one field where nobody has options: what its variable says, or the default.

    Limits of the field are not looked at. Raises InvalidArgumentError, which names the variable.
    """
    kind = _kind_of(name)

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except (ValueError, OverflowError):
            wanted = "1 or 0" if kind.parse is parse_boolean else kind.wanted
            raise ValueError(f"it must be {wanted}{did_you_mean(text, kind.allowed)}") from None

    return read(variable_of(name), parse, Options.model_fields[name].default)


def _refusal_of(error: ValidationError, values: dict[str, Any]) -> Exception:
    """The error for the first field with an invalid value."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if not first["loc"]:
        return refusal(str(cause))
    name = str(first["loc"][0])
    kind = _kind_of(name)
    option = f"option {name} ({variable_of(name)})"
    if isinstance(cause, SiteNameError):
        return refusal(f"{option}: {cause}")
    value = values[name]
    wanted, allowed = kind.wanted, kind.allowed
    if isinstance(cause, TransportTextError):
        wanted, allowed = str(cause), TRANSPORTS
    shown = value_text(value) if isinstance(value, timedelta) else repr(value)
    return refusal(f"{option} is {shown}; it must be {wanted}{did_you_mean(str(value), allowed)}")


def value_text(value: Any) -> str:
    """The value of a field as its variable would have it; None is empty."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return ",".join(cast(tuple[str, ...], value))
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}s"
    return str(value)


def _default_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and value and value % 1024 == 0:
        return f"`{value // 1024}KiB`"
    return f"`{value_text(value)}`"


Options.__signature__ = signature_of(Options)
if Options.__doc__:  # not under -OO
    Options.__doc__ += _described()
