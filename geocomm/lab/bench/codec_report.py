"""What `geocomm bench codec` shows and draws: a table, and a plot of error over ratio."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from geocomm.core.table import table_of
from geocomm.lab.bench.codec_bench import CodecRow
from geocomm.lab.bench.codec_data import CodecInput

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


def plot(rows: Sequence[CodecRow], data: CodecInput, path: Path) -> None:
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
