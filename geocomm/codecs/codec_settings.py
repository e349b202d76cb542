"""What the settings of gradient hooks and of local steps have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from geocomm.core.settings import Settings


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


class CodecSettings(Settings):
    """Which parameters a codec leaves alone."""

    exact: Annotated[Sequence[str], AfterValidator(_patterns)] = ("norm",)
    """Regular expressions. A parameter always goes exactly if one of them is found in its name."""
    exact_below: Annotated[int, Field(ge=0)] = 4096
    """Parameters of fewer elements, or of one dimension, go exactly too."""

    def keeps_exact(self, name: str, shape: Sequence[int], numel: int) -> bool:
        """Whether a parameter always goes exactly.

        Args:
            name: Of the parameter.
            shape: Of the whole parameter.
            numel: Its elements.

        Returns:
            True if no codec may touch it.
        """
        small = len(shape) <= 1 or numel < self.exact_below
        return small or any(re.search(pattern, name) for pattern in self.exact)
