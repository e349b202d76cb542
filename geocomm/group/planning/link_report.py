"""Tables and heat maps of links between sites."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.style import Style
from rich.table import Table
from rich.text import Text

from geocomm.core.link_table import MOST_BPS, Links
from geocomm.core.units import rate_text
from geocomm.group.planning.regions import regions_text


def heat(value: float, low: float, high: float) -> float:
    """0 (slowest) to 1 (fastest), by the logarithm."""
    if high <= low:
        return 1.0
    return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))


def rates_table(links: Links) -> Table:
    """Rates from row to column, as a heat map: red is slow, green fast."""
    table = Table(title="Rate, from row to column")
    table.add_column("")
    rates = [rate for row in links.rate_bps for rate in row if rate > 0]
    for name in links.sites:
        table.add_column(name, justify="right")
    for src, name in enumerate(links.sites):
        cells = [Text(name)]
        for dst, rate in enumerate(links.rate_bps[src]):
            if src == dst:
                cells.append(Text("-"))
                continue
            warmth = heat(rate, min(rates), max(rates))
            color = f"rgb({int(200 * (1 - warmth)) + 20},{int(150 * warmth) + 20},40)"
            cells.append(Text(rate_text(rate), Style(color="white", bgcolor=color)))
        table.add_row(*cells)
    return table


def delays_table(links: Links) -> Table:
    """Round trips and losses."""
    table = Table(title="Round trip (and segments sent again)")
    table.add_column("")
    for name in links.sites:
        table.add_column(name, justify="right")
    for src, name in enumerate(links.sites):
        cells = [name]
        for dst, rtt_s in enumerate(links.rtt_s[src]):
            lost = "" if links.loss is None else f" ({links.loss[src][dst] * 100:.2g} %)"
            cells.append("-" if src == dst else f"{rtt_s * 1e3:.3g} ms{lost}")
        table.add_row(*cells)
    return table


def access_lines(links: Links) -> list[str]:
    """One line for each site whose links together are limited."""
    lines: list[str] = []
    for what, rates in (("sends", links.up_bps), ("receives", links.down_bps)):
        for name, rate in zip(links.sites, rates or (), strict=False):
            if rate < MOST_BPS:
                lines.append(f"{name} {what} at most {rate_text(rate)} over all its links together")
    return lines


def relay_lines(links: Links) -> list[str]:
    """One line for each pair of sites that meet over a third one."""
    lines: list[str] = []
    pairs = links.relays()
    for src, over, dst in pairs:
        back = (dst, over, src) in pairs
        if back and links.sites.index(src) > links.sites.index(dst):
            continue
        lines.append(f"{src} {'and' if back else 'to'} {dst}: over {over}, where that is faster")
    return lines


def region_lines(links: Links) -> list[str]:
    """One line that names the regions, or says why they change nothing, where there are some."""
    if groups := links.by_region():
        return [
            f"regions: {regions_text(groups)}; a delta of local steps crosses between two of them once, as does an "
            "all-reduce where that saves time or dollars"
        ]
    if any(links.regions or ()):
        why = "all sites are in one" if len({*(links.regions or ())}) == 1 else "no two sites share one"
        return [f"regions: they change nothing, since {why}"]
    return []


def draw(links: Links, path: Path) -> None:
    """The heat map as a picture. ImportError: no matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(links.sites)
    figure: Any = Figure(figsize=(2.5 + 1.1 * count, 1.5 + 0.9 * count), layout="constrained")
    axes: Any = FigureCanvasAgg(figure).figure.add_subplot()
    values = [[math.log10(rate) if rate > 0 else math.nan for rate in row] for row in links.rate_bps]
    image = axes.imshow(values, cmap="RdYlGn")
    figure.colorbar(image, label="log10 of bit/s")
    axes.set_xticks(range(count), links.sites)
    axes.set_yticks(range(count), links.sites)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    for src in range(count):
        for dst in range(count):
            if src != dst:
                text = f"{rate_text(links.rate_bps[src][dst])}\n{links.rtt_s[src][dst] * 1e3:.3g} ms"
                axes.text(dst, src, text, ha="center", va="center", fontsize=8)
    figure.savefig(path, dpi=120)
