"""Rate, error and speed of codecs on given data, each verified before it is timed.

Speed is stated as time over that of a copy of the same bytes in the same round: absolute times drift with whatever else
the machine does.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from geocomm.codecs.codec_spec import codec_spec
from geocomm.codecs.tensor_codec import codec_presets, compress, compress_bound, decompress
from geocomm.core.bad_input import UserError
from geocomm.core.console import table_of
from geocomm.lab.bench.codec_data import CodecInput

OTHERS = (
    "none",
    "bf16",
    "int8+huffman",
    "int4+huffman",
    "bit2",
    "bit1",
    "topk:k=41",
    "loco",
)
"""What is shown beside the presets."""
_MIB = 1 << 20


class CodecBenchError(UserError, RuntimeError):
    """A codec gave back something else than it should."""


@dataclass(frozen=True)
class CodecRow:
    """One codec on one data set, on one thread unless `threads` says more."""

    codec: str
    stands_for: str
    """What a preset stands for; else empty."""
    raw_bytes: int
    payload_bytes: int
    nmse: float
    """Squared error over squared norm, of the finite elements; with `feedback`, in the first call."""
    feedback: bool
    """The codec needs error feedback, which its times include."""
    threads: int
    encode_s: float
    decode_s: float
    copy_s: float
    """The time of a copy of raw_bytes by one thread."""

    @property
    def ratio(self) -> float:
        """Raw bytes over payload bytes."""
        return self.raw_bytes / self.payload_bytes

    def to_dict(self) -> dict[str, Any]:
        """All fields, and the numbers that follow from them."""
        return asdict(self) | {
            "ratio": self.ratio,
            "encode_bytes_per_s": self.raw_bytes / self.encode_s,
            "decode_bytes_per_s": self.raw_bytes / self.decode_s,
            "encode_over_copy": self.encode_s / self.copy_s,
            "decode_over_copy": self.decode_s / self.copy_s,
        }


def default_codecs() -> list[str]:
    """The presets, from the largest result to the smallest, then some codecs that no preset stands for."""
    return [*codec_presets(), *OTHERS]


def measure(codecs: Sequence[str], data: CodecInput, *, rounds: int = 5, threads: int = 1) -> list[CodecRow]:
    """A row per codec. Rounds are interleaved: a copy, then every codec, again and again; times are medians.

    Raises geocomm's errors for a codec string that cannot be, CodecBenchError where a result is wrong.
    """
    cases = [_Case(codec, data.values, threads) for codec in codecs]
    copied = torch.empty_like(data.values)
    copies = []
    for _ in range(max(rounds, 1)):
        copies.append(copy_seconds(data.values, copied))
        for case in cases:
            case.time_once()
    copy_s = statistics.median(copies)
    return [case.row(copy_s) for case in cases]


class _Case:
    """A codec with its memory, verified."""

    def __init__(self, codec: str, values: torch.Tensor, threads: int) -> None:
        self._codec, self._values, self._threads = codec, values, threads
        self._feedback = codec_spec(codec).needs_feedback
        self._residual = torch.zeros(values.shape) if self._feedback else None
        self._room = torch.empty(compress_bound(values, codec), dtype=torch.uint8)
        self._decoded = torch.empty_like(values)
        self._encode_s: list[float] = []
        self._decode_s: list[float] = []
        self._payload_bytes, self._nmse = self._verify()

    def _encode(self) -> torch.Tensor:
        return compress(
            self._values,
            self._codec,
            self._residual,
            out=self._room,
            threads=self._threads,
        )

    def _verify(self) -> tuple[int, float]:
        """Size and error of the first call. What is exact must be so; else what was lost is what the residual says."""
        values, codec = self._values, self._codec
        payload = self._encode()
        decoded = decompress(payload, out=self._decoded, threads=self._threads)
        if codec_spec(codec).exact:
            if not torch.equal(decoded.view(torch.uint8), values.view(torch.uint8)):
                raise CodecBenchError(f"codec {codec}: the decoded bits are not those of the input")
            return payload.numel(), 0.0
        size = payload.numel()
        wanted, got = values.float(), decoded.float()
        lost = torch.where(wanted.isfinite(), wanted - got, 0)
        residual = self._residual
        if residual is None:
            residual = torch.zeros(values.shape)
            compress(values, codec, residual, out=self._room, threads=self._threads)
        # The residual does not know that a 16-bit dtype rounds the decoded element once more.
        slack = 0.0 if values.dtype == torch.float32 else torch.finfo(values.dtype).eps
        if not ((lost - residual).abs() <= slack * (got.abs() + 1e-6).nan_to_num()).all():
            raise CodecBenchError(f"codec {codec}: decoded elements and residual do not add up to the input")
        squared_norm = torch.where(wanted.isfinite(), wanted, 0).double().square().sum().item()
        return size, lost.double().square().sum().item() / squared_norm if squared_norm > 0 else 0.0

    def time_once(self) -> None:
        """One encoding, one decoding."""
        begin = time.perf_counter()
        payload = self._encode()
        middle = time.perf_counter()
        decompress(payload, out=self._decoded, threads=self._threads)
        self._decode_s.append(time.perf_counter() - middle)
        self._encode_s.append(middle - begin)

    def row(self, copy_s: float) -> CodecRow:
        return CodecRow(
            codec=self._codec,
            stands_for=_stands_for(self._codec),
            raw_bytes=self._values.nbytes,
            payload_bytes=self._payload_bytes,
            nmse=self._nmse,
            feedback=self._feedback,
            threads=self._threads,
            encode_s=statistics.median(self._encode_s),
            decode_s=statistics.median(self._decode_s),
            copy_s=copy_s,
        )


def _stands_for(codec: str) -> str:
    stands_for = codec_presets().get(codec, "")
    return "" if stands_for == codec else stands_for


def copy_seconds(source: torch.Tensor, target: torch.Tensor, timer: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that a memcpy takes, on one thread (torch's own copy_ uses several). Both are contiguous."""
    begin = timer()
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    return timer() - begin


_HEADINGS = ("codec", "ratio", "error", "pack", "unpack", "× copy", "")
NOTES = """\
ratio: bytes of the tensor / bytes of the payload. error: squared error /
squared norm (NMSE). pack, unpack: GB/s of the tensor's bytes. × copy: time to
pack / unpack over that of copying the tensor. EF: only with error feedback;
the error is that of the first call, what is lost is sent in later ones."""


def cells(row: CodecRow) -> list[str]:
    """The cells of a row, in the order of the headings."""
    return [
        row.codec + (f" = {row.stands_for}" if row.stands_for else ""),
        f"×{row.ratio:.1f}" if row.ratio >= 10 else f"×{row.ratio:.2f}",
        error_text(row.nmse),
        f"{row.raw_bytes / row.encode_s / 1e9:.1f}",
        f"{row.raw_bytes / row.decode_s / 1e9:.1f}",
        f"{row.encode_s / row.copy_s:.1f} / {row.decode_s / row.copy_s:.1f}",
        "EF" if row.feedback else "",
    ]


def error_text(nmse: float) -> str:
    """`exact`, `7.0e-05`, `.021`."""
    if nmse == 0:
        return "exact"
    return f"{nmse:.1e}" if nmse < 1e-3 else f"{nmse:.3f}".lstrip("0")


def rich_table(rows: Sequence[CodecRow], data: CodecInput) -> Table:
    """The rows as a table for a terminal."""
    return table_of(_HEADINGS, map(cells, rows), title=data.description, text=("",))


def plot_errors(rows: Sequence[CodecRow], data: CodecInput, path: Path) -> None:
    """Error over ratio, both logarithmic; exact codecs are ticks on the lower edge. The format follows the suffix.

    Raises ImportError without matplotlib, OSError or ValueError where the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    lossy = [row for row in rows if row.nmse > 0]
    exact = [row for row in rows if row.nmse == 0]
    lowest = min((row.nmse for row in lossy), default=1e-3) / 10
    axes.set(xscale="log", yscale="log", xlabel="ratio (tensor bytes / payload bytes)", ylabel="NMSE")
    axes.set_title(data.description, fontsize=10)
    axes.grid(visible=True, which="both", linewidth=0.3, alpha=0.6)
    for feedback, marker, label in ((False, "o", "alone"), (True, "^", "only with error feedback (first call)")):
        of_kind = [row for row in lossy if row.feedback == feedback]
        if of_kind:
            axes.plot([row.ratio for row in of_kind], [row.nmse for row in of_kind], marker, label=label)
    if exact:
        axes.plot([row.ratio for row in exact], [lowest] * len(exact), "s", clip_on=False, label="exact")
    if data.is_gaussian:
        limits = [1.0, max([row.ratio for row in rows] + [2.0])]
        bits = data.values.element_size() * 8
        ratios = [limits[0] * (limits[1] / limits[0]) ** (step / 100) for step in range(101)]
        errors = [2.0 ** (-2 * bits / ratio) for ratio in ratios]
        axes.plot(ratios, errors, "-", linewidth=1, color="0.5", label="no code can be below (Gaussian)")
    axes.set_ylim(lowest, 1.5)
    axes.set_xlim(0.8, 2.5 * max(row.ratio for row in rows))
    # Neighbours' names above and below in turn.
    for index, row in enumerate(sorted(rows, key=lambda row: (row.nmse, row.ratio))):
        place = (row.ratio, row.nmse or lowest)
        offset = (4, -10 if index % 2 and row.nmse > 0 else 4)
        axes.annotate(row.codec, place, xytext=offset, textcoords="offset points", fontsize=7.5)
    axes.legend(fontsize=8, loc="upper left")
    figure.savefig(path, dpi=150)
