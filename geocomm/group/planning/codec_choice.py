"""codec="auto": for each size of reduction the fastest codec that the user's error cap allows.

The time of a reduction comes from the cost model of the native core (links, latencies, the way it is carried out) and
from how fast each rank codes, measured once for a few milliseconds. All of it is shared, and rank 0's choice counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geocomm.codecs.codec_facts import FACTS
from geocomm.codecs.codec_spec import AUTO, codec_spec, collective_form
from geocomm.codecs.tensor_codec import compress, compress_bound, decompress
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from geocomm.core.once import Once

if TYPE_CHECKING:
    from geocomm.core.link_table import Links
    from geocomm.core.options import Options

UNCOMPRESSED = "none"
WORTHWHILE = 1.03
"""A choice may be slower than the fastest by this factor if its error is smaller; "none" has no error at all, so no
choice is slower than it by more, in the model. Chosen: the model is off by more (docs/explanation/planning.md)."""
CHUNK_BYTES = 1 << 20
_LARGEST_CLASS_BYTES = 1 << 30
_SAMPLE_ELEMENTS = 1 << 16
_ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """Seconds per byte of the elements, of one rank with its threads."""

    encode: float
    decode: float


def candidates(options: Options) -> tuple[str, ...]:
    """The codecs that `options` allow, "none" first. Raises InvalidArgumentError for one that cannot be chosen."""
    allowed = [UNCOMPRESSED]
    for codec in options.codecs:
        facts = FACTS.get(codec)
        if facts is None or facts.largest is None:
            known = ", ".join(name for name, one in FACTS.items() if one.largest is not None)
            raise InvalidArgumentError(
                f"option codecs (GEOCOMM_CODECS) has {codec!r}; codec=auto chooses among {known}, whose errors are "
                "known"
            )
        largest = options.max_relative_error
        fits = facts.backend_nmse <= options.max_nmse and (largest is None or facts.largest <= largest)
        if fits and codec not in allowed:
            allowed.append(codec)
    return tuple(allowed)


def worth_measuring(options: Options, links: Links | None, *, codes_on_gpu: bool) -> tuple[str, ...]:
    """The codecs whose speed on the host decides something: which one is taken, or whether regions are worth it."""
    if options.codec == AUTO:
        return candidates(options)
    return tuple(FACTS) if codes_on_gpu and links is not None and links.by_region() else ()


@Once
def measure(codecs: tuple[str, ...], threads: int) -> Mapping[str, tuple[float, float]]:
    """(encode, decode) seconds per byte on this rank, once per process: the least of some rounds, so that a busy moment
    does not count."""
    import torch

    values = torch.randn(_SAMPLE_ELEMENTS, generator=torch.Generator().manual_seed(1))
    speeds: dict[str, tuple[float, float]] = {}
    for codec in codecs:
        form = collective_form(codec)
        runs = str(form)
        residual = torch.zeros_like(values) if form.needs_feedback else None
        room = torch.empty(compress_bound(values, runs), dtype=torch.uint8)
        total = torch.zeros_like(values)
        encode = decode = float("inf")
        for _ in range(_ROUNDS):
            begin = time.perf_counter()
            payload = compress(values, runs, residual, out=room, threads=1)
            middle = time.perf_counter()
            decompress(payload, out=total, add=True, threads=1)
            end = time.perf_counter()
            encode, decode = min(encode, middle - begin), min(decode, end - middle)
        speeds[codec] = (encode / values.nbytes / threads, decode / values.nbytes / threads)
    return speeds


def slowest(speeds: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Speed]:
    """The speeds of the slowest rank, by codec; none where none were measured."""
    return {
        codec: Speed(max(rank[codec][0] for rank in speeds), max(rank[codec][1] for rank in speeds))
        for codec in speeds[0]
    }


class ReduceTime:
    """Seconds of an all-reduce over the WAN, in the model."""

    def __init__(self, links: Links, ranks_per_site: int, element_bytes: int = 4) -> None:
        """`ranks_per_site`: of the smallest site, whose ranks have the largest parts. Elements: float32 or bfloat16."""
        self._element_bytes = element_bytes
        self._dtype = "float32" if element_bytes == 4 else "bfloat16"
        self._sites = len(links.sites)
        self._ranks = ranks_per_site
        self._model = native().CostModel(self._sites, links.for_native())
        self._latency_s = float(self._model.choice(0.0)["seconds"])

    def seconds(self, raw_bytes: float, codec: str, speed: Speed) -> float:
        """While the links carry chunks, ranks code others: the slower of the two, and one chunk that nothing hides."""
        per_element = codec_spec(codec).expected_bytes_per_element(self._dtype)
        wire_bytes = raw_bytes / self._element_bytes * per_element
        choice = self._model.choice(wire_bytes)
        own = max(choice["shares"], default=0.0)
        part = raw_bytes / self._ranks
        # Everyone codes for everyone, or an owner for all, and then its results.
        encoded = part * (1 + own)
        decoded = part * (1 + self._sites * own) if own else part * self._sites
        coding_s = speed.encode * encoded + speed.decode * decoded
        exposed_s = (speed.encode + speed.decode) * min(part / 4, CHUNK_BYTES)
        return max(choice["seconds"], self._latency_s + coding_s) + exposed_s


def choose(model: ReduceTime, allowed: Mapping[str, Speed], min_compress_bytes: int) -> tuple[tuple[int, str], ...]:
    """(from this many raw bytes on, codec as the user calls it), ascending. What is smaller than the first goes
    uncompressed."""
    chosen: list[tuple[int, str]] = []
    size = max(min_compress_bytes, 4096)
    while size <= _LARGEST_CLASS_BYTES:
        codec = _best(model, allowed, size)
        if codec != (chosen[-1][1] if chosen else UNCOMPRESSED):
            chosen.append((size, codec))
        size *= 2
    return tuple(chosen)


def _best(model: ReduceTime, allowed: Mapping[str, Speed], size: int) -> str:
    """The best codec for sizes from `size` to twice that."""
    middle = size * 2**0.5

    def time_of(codec: str, raw_bytes: float) -> float:
        return model.seconds(raw_bytes, codec, allowed[codec])

    safe = [
        codec
        for codec in allowed
        if all(time_of(codec, at) <= WORTHWHILE * time_of(UNCOMPRESSED, at) for at in (size, middle, 2 * size))
    ]
    fastest = min(time_of(codec, middle) for codec in safe)
    near = [codec for codec in safe if time_of(codec, middle) <= WORTHWHILE * fastest]
    return min(near, key=lambda codec: (FACTS[codec].backend_nmse, time_of(codec, middle)))
