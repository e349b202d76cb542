"""A codec string as a value: its family, settings and stage, what follows from them, and what the backend makes
of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from geocomm.core.errors import UnsupportedError
from geocomm.core.message_log import logger
from geocomm.core.native import native

if TYPE_CHECKING:
    from geocomm._C import CodecSpec


@functools.lru_cache(maxsize=256)
def codec_spec(codec: str) -> CodecSpec:
    """What a preset or codec string stands for. The native core has the grammar; nothing in Python parses it.

    Raises InvalidArgumentError, which names the nearest right spelling.
    """
    return native().CodecSpec.parse(codec)


AUTO = "auto"
"""In place of a codec's name: the backend chooses for each size (codec_choice.py)."""


@functools.lru_cache(maxsize=256)
def collective_codec(codec: str) -> CodecSpec:
    """The codec as the backend runs it; `codec` is any but "auto".

    The backend sees anonymous buffers, so there is no error feedback: what only works with it is refused. Four bits
    rounded to nearest would lose small values in every step: `int4` therefore rounds stochastically, which is unbiased,
    unless the string says `round=`. A dead zone cannot be unbiased, and one log line says so.

    Raises as `without_feedback`.
    """
    spec = without_feedback(codec)
    if spec.family in ("deadzone", "bitplanes"):
        logger().warning(
            f"codec {codec!r}: the backend has no error feedback, so gradients that stay small in every step never "
            "cross the sites. Compare a run with codec int8 before you trust it"
        )
    return spec


def without_feedback(codec: str) -> CodecSpec:
    """`collective_codec` without its log line.

    Raises InvalidArgumentError for a codec that there is not, UnsupportedError for one that needs error feedback.
    """
    spec = collective_form(codec)
    if spec.needs_feedback:
        raise UnsupportedError(
            f"codec {codec!r} drops most elements and needs error feedback, which the backend cannot give: it does not "
            "know which tensor a buffer belongs to. Take another codec here ('small' is the smallest that works), or "
            "pass a residual to geocomm.compress in code of your own"
        )
    return spec


def collective_form(codec: str) -> CodecSpec:
    """`collective_codec` without its verdict: only the backend's own default rounding."""
    spec = codec_spec(codec)
    if spec.family == "int4" and "round" not in spec.given:
        return spec.with_setting("round", "stochastic")
    return spec
