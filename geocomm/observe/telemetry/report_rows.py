"""The rows of a report, by their fields: what stands there, or the report is refused. Who reads rows looks no more.

A site may say what it likes of itself, so that nothing here is believed; but it is of the kind, and in the bounds, that
readers can compute with. Of each field stands here that it has to be there (`Must`), that it may be missing (`May`), or
what stands for it where it is missing (`Usually`). Fields that are not known here are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema
from pydantic_core.core_schema import CoreSchema

from geocomm.core.message_log import printable
from geocomm.metrics import schema
from geocomm.metrics.cpu_time import LOST_CPU_TIME
from geocomm.metrics.schema import Metric, MetricKind

Row = dict[str, Any]
MOST_ROWS = 4096
_MOST_CHARACTERS = 1 << 16
_MOST = (1 << 63) - 1
_MOST_MEASURED = 1e100
"""Larger than what anything measures, and so small that sums and products of some stay finite."""


@dataclass(frozen=True)
class Shape:
    """Says of a pydantic field that it has this schema."""

    schema: CoreSchema

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return self.schema


def _checked(check: Any, inner: CoreSchema) -> CoreSchema:
    return core_schema.no_info_after_validator_function(check, inner)


def _measured(value: float) -> float:
    """A number that is too large to compute with is infinite."""
    if abs(value) > _MOST_MEASURED:
        return math.inf if value > 0 else -math.inf
    return value


def _finite(value: float) -> float:
    if not abs(value) <= _MOST_MEASURED:
        raise ValueError("a number that is not finite, or too large")
    return value


def _known(value: float | None) -> float | None:
    """A program may tell what is no number, as of a division by 0: that is not known."""
    return value if value is not None and abs(value) <= _MOST_MEASURED else None


def _said(value: Any) -> Any:
    """What is shown, and not computed with."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):  # bool is one
        return _measured(value)
    if isinstance(value, list):
        return [_said(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {_text(name): _said(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return value


def _text(text: str) -> str:
    """It is shown in terminals, which obey some characters."""
    return text if text.isprintable() else printable(text, keep="\n\t")


def _without_none(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


_NUMBER = core_schema.union_schema([core_schema.int_schema(strict=True), core_schema.float_schema(strict=True)])
YES_OR_NO = core_schema.bool_schema(strict=True)
TEXT = _checked(_text, core_schema.str_schema(strict=True, max_length=_MOST_CHARACTERS))
WHOLE = core_schema.int_schema(strict=True, ge=-_MOST, le=_MOST)
COUNT = core_schema.int_schema(strict=True, ge=0, le=_MOST)
TIME_NS = COUNT
"""Of a monotonic clock."""
IDENTITY = core_schema.int_schema(strict=True, ge=0, lt=1 << 64)
"""A number that has no order."""
TOTAL = core_schema.union_schema(
    [COUNT, core_schema.float_schema(strict=True, ge=0, le=float(_MOST), allow_inf_nan=False)]
)
"""What a counter has come to."""
FINITE = _checked(_finite, _NUMBER)
MEASURED = _checked(_measured, _NUMBER)
"""Such as a loss: it may be NaN or infinite."""
ANYTHING = _checked(_said, core_schema.any_schema())
"""What is shown."""


def or_none(one: CoreSchema) -> CoreSchema:
    """None: not known, or not yet."""
    return core_schema.nullable_schema(one)


TOLD = _checked(_known, or_none(_NUMBER))
"""A number that the program tells."""
RANK = or_none(core_schema.int_schema(strict=True, ge=0, lt=1 << 20))
_EVENT_KIND = _checked(_text, core_schema.str_schema(strict=True, max_length=64))


@dataclass(frozen=True)
class Must:
    """A field that has to be there."""

    one: CoreSchema


@dataclass(frozen=True)
class May:
    """A field that may be missing."""

    one: CoreSchema


@dataclass(frozen=True)
class Usually:
    """A field that may be missing, and what stands for it then."""

    one: CoreSchema
    missing: Any = None


_Field = Must | May | Usually


def row(**fields: _Field) -> CoreSchema:
    """A dict with these fields. Others are dropped."""
    return core_schema.typed_dict_schema({name: _typed(one) for name, one in fields.items()}, extra_behavior="ignore")


def _open_row(**fields: _Field) -> CoreSchema:
    """A dict with these fields, and others, which are shown and not computed with."""
    typed = {name: _typed(one) for name, one in fields.items()}
    return _checked(_said, core_schema.typed_dict_schema(typed, extra_behavior="allow"))


def _typed(field: _Field) -> core_schema.TypedDictField:
    if isinstance(field, Usually):
        missing = field.missing
        if isinstance(missing, type):
            return core_schema.typed_dict_field(core_schema.with_default_schema(field.one, default_factory=missing))
        return core_schema.typed_dict_field(core_schema.with_default_schema(field.one, default=missing))
    return core_schema.typed_dict_field(field.one, required=isinstance(field, Must))


def rows(one: CoreSchema) -> CoreSchema:
    """A list of these."""
    return core_schema.list_schema(one, strict=True, max_length=MOST_ROWS)


def _fields(metrics: Iterable[Metric], **others: _Field) -> dict[str, _Field]:
    """The fields of a table of `metrics.schema`. others: those whose kind the table does not say."""
    return {metric.name: others.get(metric.name) or _field(metric) for metric in metrics}


def _field(metric: Metric) -> _Field:
    if metric.kind is MetricKind.COUNTER:
        return Usually(TOTAL, 0)
    if metric.kind is MetricKind.TEXT:
        return Usually(TEXT, "")
    number = FINITE if metric.scope is schema.LINK else MEASURED
    return Usually(or_none(number)) if "None" in metric.help else Usually(number, 0)


_LINKS = _open_row(source=Usually(TEXT, "assumed"), sites=Must(rows(TEXT)), rate_bps=Must(rows(rows(FINITE))))
_POLICY = _open_row(links=Usually(or_none(_LINKS)))
_PEER = row(**_fields(schema.PEERS, rank=Usually(RANK), site=Usually(or_none(TEXT))))
_BUCKET = row(
    **{name: May(one) for name, one in {"index": COUNT, "parameters": rows(TEXT), "elements": COUNT}.items()},
    **{name: May(one) for name, one in {"ef_norm": MEASURED, "nmse": MEASURED, "wire_bytes": TOTAL}.items()},
)
_HOOK = row(**_fields(schema.GRADIENTS, fallbacks=Usually(rows(ANYTHING), list), buckets=Usually(rows(_BUCKET), list)))

STATS = row(
    **_fields(
        schema.TOTALS,
        groups=Usually(rows(row(**_fields(schema.GROUPS, policy=Usually(or_none(_POLICY))))), list),
        peers=Usually(rows(_PEER), list),
        memory=Usually(row(**{one.name: May(TOTAL) for one in schema.MEMORY}), dict),
        data=Usually(row(**{one.name: May(TOTAL) for one in schema.DATA}), dict),
        gradients=Usually(rows(_HOOK), list),
        local_steps=Usually(rows(row(**_fields(schema.LOCAL_STEPS, every=Usually(COUNT, 0)))), list),
    ),
    **dict.fromkeys(LOST_CPU_TIME, May(TOTAL)),
)
"""`geocomm.stats()`, and the CPU time that the process did not get."""

_OF_LAST_STEP = dict.fromkeys(("loss", "learning_rate", "grad_norm", "held_out_loss"), May(or_none(MEASURED)))
_PARTS = dict.fromkeys(("seconds", "tokens", "input_seconds", "exposed_seconds", "checkpoint_seconds"), May(TOLD))
_TOTALS = _checked(_without_none, row(steps=Usually(COUNT, 0), **_PARTS))
_LOSSES = row(least=Must(FINITE), median=Must(FINITE), spread=Must(FINITE))

TRAINING = _checked(
    _without_none,
    row(
        step=May(WHOLE),
        of_steps=May(or_none(WHOLE)),
        ended_ns=May(TIME_NS),
        totals=May(_TOTALS),
        losses=May(or_none(_LOSSES)),
        **_OF_LAST_STEP,
    ),
)
"""What the last step of `metrics.training` was."""
STEP = _checked(
    _without_none,
    row(step=Must(WHOLE), ended_ns=Must(TIME_NS), of_steps=May(or_none(WHOLE)), **_PARTS, **_OF_LAST_STEP),
)
"""A step of `metrics.training`."""


def _times(*names: str) -> dict[str, Usually]:
    return {f"{name}_ns": Usually(or_none(TIME_NS)) for name in names}


OPERATION = row(
    number=Must(COUNT),
    group=Must(IDENTITY),
    sequence=Must(COUNT),
    kind=Must(TEXT),
    dtype=Must(TEXT),
    codec=Usually(TEXT, ""),
    elements=Must(COUNT),
    failed=Must(YES_OR_NO),
    issued_ns=Must(TIME_NS),
    **_times("began", "encoded", "exchanged", "ended", "wait_began", "wait_ended"),
    coding_ns=Usually(TIME_NS, 0),
    raw_bytes_sent=Usually(COUNT, 0),
    wire_bytes_sent=Usually(COUNT, 0),
    raw_bytes_received=Usually(COUNT, 0),
    wire_bytes_received=Usually(COUNT, 0),
    peers=Usually(
        rows(
            row(
                rank=Usually(RANK),
                site=Usually(or_none(TEXT)),
                peer=Usually(TEXT, ""),
                **_times("first_in", "last_in"),
                sums=Usually(YES_OR_NO, False),
            )
        ),
        list,
    ),
)
"""A row of `geocomm.op_log()`."""

ROUND = row(
    number=Must(COUNT),
    elastic=Must(YES_OR_NO),
    fragment=Must(COUNT),
    round=Must(COUNT),
    last=Usually(YES_OR_NO, False),
    attempts=Usually(COUNT, 0),
    step=Usually(or_none(WHOLE)),
    weight=Usually(or_none(FINITE)),
    bytes=Usually(or_none(COUNT)),
    **_times("due", "begun", "stored", "offered", "listed", "averaged", "applied"),
    coding_ns=Usually(TIME_NS, 0),
    counted=Usually(or_none(rows(TEXT))),
    last_arrived=Usually(or_none(TEXT)),
    failed=Must(YES_OR_NO),
    peers=Usually(
        rows(
            row(
                site=Must(TEXT),
                **_times("announced", "arrived"),
                bytes=Usually(or_none(COUNT)),
                step=Usually(or_none(WHOLE)),
                weight=Usually(or_none(FINITE)),
            )
        ),
        list,
    ),
)
"""A row of `geocomm.round_log()`."""

EVENT = _open_row(kind=Must(_EVENT_KIND))
"""An event of `metrics.events`."""
