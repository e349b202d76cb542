"""Inputs for the codecs, and what docs/spec/codecs.md says comes out, computed with torch alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.environment import CPU_LEVELS
from geocomm.core.errors import UnsupportedError
from geocomm.core.native import native

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""What lossy codecs take."""
ALL_DTYPES = (
    *FLOATS,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.bool,
)
FRAME_BYTES = 1 << 20
HEADER_BYTES = 32
BLOCKS = tuple(64 << i for i in range(7))
LARGEST_CODE = {"int8": 127, "int4": 7}
LARGEST_SCALE_BITS = {"int8": 0x7C01, "int4": 0x7E12}
# Relative error of rounding to the dtype, and half of its smallest step.
ROUNDING = {torch.float32: (0.0, 0.0), torch.float16: (2.0**-11, 2.0**-25), torch.bfloat16: (2.0**-8, 2.0**-134)}


@dataclass(frozen=True)
class BlockCodec:
    name: str
    block: int
    rounding: str

    def __str__(self) -> str:
        return f"{self.name}:block={self.block},round={self.rounding}"


@dataclass(frozen=True)
class Data:
    """A tensor in few words. kind: "normal" (times 10^exponent), "special" (the same with some NaN, Inf and extreme
    values), "bits" (any bits at all), "constant" (10^exponent)."""

    dtype: torch.dtype
    elements: int
    kind: str = "normal"
    exponent: int = 0
    seed: int = 0

    def tensor(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, (self.elements,), generator=generator).bool()
        if self.kind == "bits" or not self.dtype.is_floating_point:
            size = self.elements * self.dtype.itemsize
            return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(self.dtype)
        if self.kind == "constant":
            return torch.full((self.elements,), 10.0**self.exponent, dtype=torch.float64).to(self.dtype)
        values = torch.randn(self.elements, generator=generator, dtype=torch.float64) * 10.0**self.exponent
        limit = torch.finfo(self.dtype).max
        result = values.clamp(-limit, limit).to(self.dtype)
        if self.kind == "special" and self.elements:
            extremes = [torch.nan, torch.inf, -torch.inf, limit, -limit, torch.finfo(self.dtype).smallest_normal, -0.0]
            places = torch.randint(0, self.elements, (len(extremes),), generator=generator)
            result[places] = torch.tensor(extremes, dtype=torch.float64).to(self.dtype)
        return result


def sizes(element_bytes: int, largest_bytes: int = 3 * FRAME_BYTES) -> st.SearchStrategy[int]:
    """Elements: few, around the ends of blocks and of frames, and anything up to `largest_bytes`."""
    limit = largest_bytes // element_bytes
    near = st.integers(-1, 1)
    around_blocks = st.builds(lambda block, n, d: block * n + d, st.sampled_from(BLOCKS), st.integers(1, 5), near)
    per_frame = FRAME_BYTES // element_bytes
    around_frames = st.builds(lambda n, d: per_frame * n + d, st.integers(1, max(limit // per_frame, 1)), near)
    choices = [st.integers(0, 300), around_blocks, st.integers(0, limit)]
    if limit > per_frame:
        choices.append(around_frames)
    return st.one_of(choices).map(lambda n: min(n, limit))


def inputs(
    dtypes: tuple[torch.dtype, ...],
    *,
    kinds: tuple[str, ...] = ("normal", "special", "bits", "constant"),
    exponents: tuple[int, int] = (-46, 39),
    largest_bytes: int = 3 * FRAME_BYTES,
) -> st.SearchStrategy[Data]:
    def of(dtype: torch.dtype) -> st.SearchStrategy[Data]:
        return st.builds(
            Data,
            dtype=st.just(dtype),
            elements=sizes(dtype.itemsize, largest_bytes),
            kind=st.sampled_from(kinds),
            exponent=st.integers(*exponents),
            seed=st.integers(0, 999),
        )

    return st.sampled_from(dtypes).flatmap(of)


block_codecs = st.builds(
    BlockCodec, st.sampled_from(("int8", "int4")), st.sampled_from(BLOCKS), st.sampled_from(("nearest", "stochastic"))
)
cast_codecs = st.sampled_from(("fp16", "bf16"))


def _has_zstd() -> bool:
    try:
        geocomm.compress(torch.zeros(1), "int8+zstd", threads=1)  # starts no thread
    except UnsupportedError:
        return False
    return True


STAGES = ("huffman", "zstd") if _has_zstd() else ("huffman",)
stages = st.sampled_from(("none", *STAGES))
level_codecs = st.builds("{}:block={}".format, st.sampled_from(("bit2", "bit1")), st.sampled_from(BLOCKS))
dead_zone_codecs = st.builds(
    "{}:block={},step={}".format,
    st.sampled_from(("deadzone", "bitplanes")),
    st.sampled_from(BLOCKS),
    st.sampled_from((0.05, 0.3, 0.7, 1.0, 1.4, 8.0)),
)
top_k_codecs = st.builds(
    "topk:k={},values={}".format,
    st.sampled_from((1, 16, 64, 700, 2048)),
    st.sampled_from(("fp32", "bf16", "int8", "bit2")),
)
_plain_codecs = st.one_of(cast_codecs, block_codecs.map(str), level_codecs, dead_zone_codecs)
lossy_codecs = st.one_of(_plain_codecs, st.builds("{}+{}".format, _plain_codecs, stages))
"""Without those that need error feedback."""
exact_codecs = st.one_of(st.just("none"), st.builds("lossless+{}".format, stages))
loco_codecs = st.builds("loco:k={}".format, st.sampled_from((1, 16, 64, 700, 2048)))
feedback_codecs = st.one_of(st.builds("{}+{}".format, top_k_codecs, st.sampled_from(STAGES)), loco_codecs)
codecs = st.one_of(exact_codecs, lossy_codecs)
all_codecs = st.one_of(codecs, feedback_codecs, st.sampled_from(("balanced", "small", "tiny")))


def pack(tensor: torch.Tensor, codec: str, *, seed: int = 0, **more: Any) -> torch.Tensor:
    """geocomm.compress; with zeros for a residual where the codec needs one."""
    if "residual" not in more and codec_spec(codec).needs_feedback:
        more["residual"] = torch.zeros(tensor.numel())
    return geocomm.compress(tensor, codec, more.pop("residual", None), seed=seed, **more)


def is_plain(payload: torch.Tensor) -> bool:
    """Whether the first frame is one of none, which any codec may resort to."""
    return payload[5] == 0


def cpu_levels() -> list[str]:
    """Those that this machine can run, the reference first."""
    best = native().detected_cpu_level()
    return ["scalar", "neon"] if best == "neon" else list(CPU_LEVELS[: CPU_LEVELS.index(best) + 1])


@contextlib.contextmanager
def at_cpu_level(level: str) -> Iterator[None]:
    """The codecs use no more of the CPU inside of the block."""
    before = native().cpu_level()
    native().set_cpu_level(level)
    try:
        yield
    finally:
        native().set_cpu_level(before)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # clone: a view of no or one element may be contiguous with a stride that torch does not view as bytes.
    return tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8)


def same_bits_but_nan(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, except that one NaN is as good as another."""
    return torch.equal(a.isnan(), b.isnan()) and same_bits(a[~a.isnan()], b[~b.isnan()])


def frames_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The runs of elements that go into one frame each; no elements are one empty frame."""
    return tensor.split(FRAME_BYTES // tensor.element_size())


def cast_frame(name: str, frame: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What fp16 or bf16 makes of one frame, and the size of its content in bytes."""
    cast = frame.float().to(torch.float16 if name == "fp16" else torch.bfloat16)
    if (frame.isfinite() & ~cast.isfinite()).any():
        return frame, frame.nbytes
    limit = torch.finfo(frame.dtype).max
    decoded = cast.float()
    return torch.where(decoded.isfinite(), decoded.clamp(-limit, limit), decoded).to(frame.dtype), cast.nbytes


def blocks_of(frame: torch.Tensor, block: int) -> torch.Tensor:
    """Rows of `block` elements; the last is filled up with zeros."""
    return torch.nn.functional.pad(frame, (0, -frame.numel() % block)).view(-1, block)


def scale_of_blocks(codec: BlockCodec, frame: torch.Tensor) -> torch.Tensor:
    """float32 scale of each block of one frame; NaN for a raw block."""
    peaks = blocks_of(frame.float(), codec.block).abs().amax(1)  # NaN wins
    bits = ((peaks / LARGEST_CODE[codec.name]).view(torch.int32) + 0xFFFF) >> 16
    bits = bits.clamp(0x0080, LARGEST_SCALE_BITS[codec.name])
    return torch.where(peaks.isfinite(), (bits << 16).view(torch.float32), torch.nan)
