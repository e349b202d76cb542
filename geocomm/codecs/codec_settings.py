"""What the settings of gradient hooks and of local steps have in common."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator

from geocomm.core.settings import Settings, number_or


def _known(codec: str) -> str:
    from geocomm.codecs.codec_spec import codec_spec  # loads torch

    codec_spec(codec)
    return codec


def _patterns(patterns: Sequence[str]) -> tuple[str, ...]:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
    return tuple(patterns)


Codec = Annotated[str, AfterValidator(_known)]
"""A preset or codec string that there is."""


_SMALL = 4096
_SMALL_SHARE = 0.01
"""Small parameters go exactly while they are no larger part of the model together: more bytes they are not worth."""


class CodecSettings(Settings):
    """Which parameters a codec leaves alone."""

    exact: Annotated[Sequence[str], AfterValidator(_patterns)] = ("norm",)
    """Regular expressions. A parameter always goes exactly if one of them is found in its name."""
    exact_below: Annotated[
        int | Literal["auto"], number_or("auto", wanted="a whole number, 0 or more", fits=lambda n: n >= 0, whole=True)
    ] = "auto"
    """Parameters of fewer elements, or of one dimension, go exactly too. auto: 4096; or less, so that those of two
    dimensions are at most 1 % of the model, as with LoRA's adapters."""

    def exact_names(self, shapes: Mapping[str, Sequence[int]]) -> frozenset[str]:
        """The parameters that always go exactly.

        Args:
            shapes: Of all parameters that are trained, by name; of the whole parameter where ranks hold parts.

        Returns:
            Those that no codec may touch.
        """
        below = self.resolved_exact_below(shapes.values())
        return frozenset(
            name
            for name, shape in shapes.items()
            if len(shape) <= 1 or math.prod(shape) < below or any(re.search(pattern, name) for pattern in self.exact)
        )

    def resolved_exact_below(self, shapes: Collection[Sequence[int]]) -> int:
        """What `exact_below` stands for with parameters of these shapes."""
        if self.exact_below != "auto":
            return self.exact_below
        left = _SMALL_SHARE * sum(math.prod(shape) for shape in shapes)
        for size in sorted(math.prod(shape) for shape in shapes if len(shape) > 1):
            left -= size
            if left < 0:
                return min(size, _SMALL)
        return _SMALL
