"""A codec string as a value: its family, settings and stage, and what follows from them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from geocomm.core.native import native

if TYPE_CHECKING:
    from geocomm._C import CodecSpec


@functools.lru_cache(maxsize=256)
def codec_spec(codec: str) -> CodecSpec:
    """What a preset or codec string stands for. The native core has the grammar; nothing in Python parses it.

    Raises InvalidArgumentError, which names the nearest right spelling.
    """
    return native().CodecSpec.parse(codec)
