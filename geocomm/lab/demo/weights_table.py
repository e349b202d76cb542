"""What the demo of weights ends in: a table, a few sentences and summary.json."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from geocomm.core.table import table_of
from geocomm.lab.demo.weights_run import FOLLOWERS, SITE_NAMES, WeightsRun
from geocomm.lab.emulator.emulated_links import EmulatedLink


def weights_table(run: WeightsRun, link: EmulatedLink) -> Table:
    """A row for each version: its bytes, beside those of a full copy and the least seconds that the line takes for it;
    then the seconds from its publication on."""
    headings = ["version", "changed", "MB", "copy\nMB", "copy\n≥ s"]
    headings += [f"{site}\n{what}" for site in FOLLOWERS for what in ("has it", "answers")]
    rows: list[tuple[str, ...]] = []
    for one in run.versions:
        seen = [
            f"{times[site]:.1f}" if site in times else "overtaken"
            for site in FOLLOWERS
            for times in (one.folder_s, one.answer_s)
        ]
        changed = f"{one.changed:.1%}" if one.number > 1 else "all"
        sizes = (f"{one.bytes / 1e6:.2f}", f"{one.whole_bytes / 1e6:.1f}", f"{one.whole_s(link):.1f}")
        rows.append((str(one.number), changed, *sizes, *seen))
    over = "the same line" if run.wan is not None else "loopback: seconds are not a WAN's"
    return table_of(headings, rows, title=f"Each version, and a full copy, over {over}")


def told(run: WeightsRun) -> list[str]:
    """What the table does not say, in sentences."""
    later = run.versions[1:]
    delta, whole = sum(one.bytes for one in later), sum(one.whole_bytes for one in later)
    last = run.versions[-1].number
    lines = [
        f"Versions 2 to {last}: {delta / 1e6:.1f} MB, and {whole / 1e6:.0f} MB as full copies, {whole / delta:.0f} "
        "times as many.",
        f"{run.compared} folders of {' and '.join(FOLLOWERS)} compared: all tensors equal to the trainer's of that "
        f"version, bit for bit. By {run.answers} versions both answered, with the same text.",
    ]
    if run.wan is None:
        return [*lines, f"Between the sites, with headers: {run.sent_bytes / 1e6:.1f} MB."]
    pairs = [(src, dst) for src in SITE_NAMES for dst in SITE_NAMES if src < dst]
    over = ", ".join(f"{src} to {dst} {run.wan.link(src, dst).bytes / 1e6:.1f} MB" for src, dst in pairs)
    return [*lines, f"Over the lines, with headers: {over}."]


def write_weights_summary(run: WeightsRun, link: EmulatedLink, conditions: str, path: Path) -> None:
    """The figures of table and sentences, as JSON."""
    path.write_text(json.dumps({"conditions": conditions, **run.to_dict(link)}, indent=1) + "\n", encoding="utf-8")
