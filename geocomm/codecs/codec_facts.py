"""What is known of the codecs: their ratio and error, measured. The one table of it.

`codec="auto"` chooses by it, `geocomm bench wan` verifies sums by it, and the documentation's table of presets shows
it. What follows from a codec's string alone, such as whether it needs error feedback, is `CodecSpec`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from geocomm.codecs.codec_spec import codec_spec, collective_form


@dataclass(frozen=True)
class Measured:
    """The result of `geocomm bench codec` on one kind of data. nmse: squared error over squared norm."""

    ratio: float
    """Bytes of the float32 elements over bytes of the payload."""
    nmse: float

    def __str__(self) -> str:
        return f"×{self.ratio:.2f}, {error_text(self.nmse)}"


@dataclass(frozen=True)
class CodecFacts:
    """What is known of one codec. Its errors are those to nearest; a backend's may be larger (`backend_nmse`)."""

    codec: str
    normal: Measured
    """Measured on 4 Mi normal numbers."""
    gradient: Measured | None = None
    """Measured on a gradient of the driver's `tiny` model (4.1 M parameters) after 60 steps."""
    autocast: Measured | None = None
    """Measured on the same, with forward and backward in bfloat16."""
    weight_change: Measured | None = None
    """Measured on the change of that model's weights in 30 local steps."""
    largest: float | None = None
    """The error of one element over the largest magnitude of its block; None: codec="auto" does not choose it."""
    sum_nmse: float | None = None
    """The most that a sum of normal numbers over the sites may be wrong, verified by `geocomm bench wan`; 0: bit-exact;
    None: it is not run there."""

    @property
    def needs_feedback(self) -> bool:
        """Whether only error feedback keeps what the codec drops."""
        return codec_spec(self.codec).needs_feedback

    @property
    def worst_nmse(self) -> float:
        """The largest error on any kind of data that was measured."""
        return max(one.nmse for one in self.measured)

    @property
    def measured(self) -> list[Measured]:
        """What was measured, in the order of the fields."""
        return [one for one in (self.normal, self.gradient, self.autocast, self.weight_change) if one is not None]

    @property
    def backend_nmse(self) -> float:
        """`worst_nmse` as the backend runs the codec: stochastic rounding has twice the squared error of nearest."""
        rounds_up_or_down = collective_form(self.codec).settings.get("round") == "stochastic"
        return self.worst_nmse * (2 if rounds_up_or_down else 1)


def _facts(
    codec: str, *measured: tuple[float, float], largest: float | None = None, sum_nmse: float | None = None
) -> tuple[str, CodecFacts]:
    """measured: (ratio, nmse), in the order of the fields."""
    return codec, CodecFacts(codec, *(Measured(*one) for one in measured), largest=largest, sum_nmse=sum_nmse)


# benchmarks/results/codec-ratios.md and loco.md; `geocomm bench codec` measures them again.
FACTS: Mapping[str, CodecFacts] = dict(
    [
        _facts("none", *[(1.0, 0.0)] * 4, largest=0.0, sum_nmse=0.0),
        _facts("lossless", (1.20, 0), (1.19, 0), (1.56, 0), (1.28, 0), largest=0.0, sum_nmse=0.0),
        _facts("fp16", (2.0, 4.3e-8), sum_nmse=1e-6),
        _facts("bf16", (2.0, 2.8e-6), (2.0, 2.8e-6), (2.0, 4.3e-7), (2.0, 2.8e-6), largest=2**-9, sum_nmse=1e-5),
        _facts("int8", (3.97, 4.9e-5), (3.97, 6.6e-5), (3.97, 6.7e-5), (3.97, 4.8e-5), largest=0.004, sum_nmse=1.5e-4),
        _facts(
            "int8+huffman",
            (4.24, 4.9e-5),
            (4.60, 6.6e-5),
            (4.60, 6.7e-5),
            (4.23, 4.8e-5),
            largest=0.004,
            sum_nmse=1.5e-4,
        ),
        _facts("int4", (7.88, 0.016), (7.87, 0.020), (7.87, 0.020), (7.87, 0.016), largest=0.144, sum_nmse=5e-2),
        _facts(
            "int4+huffman", (9.50, 0.016), (11.11, 0.020), (11.11, 0.020), (9.49, 0.016), largest=0.144, sum_nmse=5e-2
        ),
        _facts("balanced", (12.41, 0.046), (15.34, 0.030), (15.34, 0.030), (12.51, 0.045), largest=0.42, sum_nmse=0.12),
        _facts("small", (15.81, 0.093), (20.15, 0.059), (20.15, 0.059), (15.97, 0.093), largest=0.60, sum_nmse=0.45),
        _facts("deadzone:step=1.4", (19.20, 0.181), (26.83, 0.105), (26.85, 0.105), (19.55, 0.181)),
        _facts("tiny", (197.77, 0.881), (233.22, 0.609), (233.32, 0.609), (210.57, 0.868)),
        _facts("bit2", (15.51, 0.117), (15.51, 0.174), (15.51, 0.175), (15.51, 0.116), largest=1.0),
        _facts("bit1", (30.09, 0.362), (30.09, 0.491), (30.09, 0.491), (30.09, 0.354), largest=1.0),
        _facts("topk:k=41", (205.65, 0.916), (204.91, 0.659), (205.03, 0.659), (203.02, 0.905)),
        _facts("loco", (193.75, 0.881), (193.71, 0.584), (193.71, 0.584), (193.71, 0.868)),
    ]
)
"""The facts by codec, as people write it."""


def facts_of(codec: str) -> CodecFacts | None:
    """The facts of a codec by this or another name ("deadzone:step=1" is "small"), else of its family; None: unknown.

    Raises InvalidArgumentError for a codec that there is not.
    """
    if codec in FACTS:
        return FACTS[codec]
    spec = codec_spec(codec)
    same = next((facts for facts in FACTS.values() if codec_spec(facts.codec) == spec), None)
    return same or FACTS.get(spec.family)


def error_text(nmse: float) -> str:
    """`0`, `4.9e-05`, `0.016`."""
    if nmse == 0:
        return "0"
    return f"{nmse:.1e}" if nmse < 1e-3 else f"{nmse:.3f}"
