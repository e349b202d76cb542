"""The run of the demo of weights: one site trains and publishes, two follow, the second one behind the first. Then a
table, a few sentences and summary.json.

    site0: WeightPublisher -> folder -> geocomm subscribe --listen
    site1: geocomm subscribe tls://site0 --listen, geocomm serve --follow
    site2: geocomm subscribe tls://site1 --listen, geocomm serve --follow

Its folder has SITE.jsonl (what each site has seen, by time), log.txt (what all printed) and the stream itself.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from geocomm.core.addresses import free_port
from geocomm.core.console import table_of
from geocomm.lab.demo.demo_run import DemoError, demo_environment, demo_sites, log_tail, read_entries
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, WanError
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun

SITE_NAMES = ("site0", "site1", "site2")
FOLLOWERS = SITE_NAMES[1:]
DEFAULT_STEPS = 8
STEP_S = 6.0
_POLL_S = 0.1


@dataclass
class SeenVersion:
    """A version of the stream, and when the sites that follow had it: seconds since it was published."""

    number: int
    bytes: int
    """Its frames and its file."""
    whole_bytes: int
    """Of all weights in bfloat16: a full copy."""
    changed: float
    """Share of the weights that are others than in the version before."""
    folder_s: dict[str, float] = field(default_factory=dict[str, float])
    """Until a site's folder was it. A version that a newer one has overtaken is in no folder."""
    answer_s: dict[str, float] = field(default_factory=dict[str, float])
    """Until the first answer by it."""

    def whole_s(self, link: EmulatedLink) -> float:
        """What a full copy takes over a line, at least: its bytes at the line's rate, and its delay."""
        return self.whole_bytes * 8 / link.rate_bps + link.delay_s


@dataclass(frozen=True)
class WeightsRun:
    """What happened, once all was compared."""

    versions: list[SeenVersion]
    parameters: int
    compared: int
    """Folders whose tensors all had the bits that the trainer had at that version."""
    answers: int
    """Versions by which both sites answered, with one text."""
    sent_bytes: int
    """Between the sites, with headers."""
    wan: WanReport | None
    """None: over loopback."""

    def to_dict(self, link: EmulatedLink) -> dict[str, Any]:
        """As plain values, for summary.json."""
        own = {name: value for name, value in vars(self).items() if name not in ("wan", "versions")}
        lines = {} if self.wan is None else {f"{one.src} to {one.dst}": one.bytes for one in self.wan.links}
        versions = [asdict(one) | {"whole_s_at_least": one.whole_s(link)} for one in self.versions]
        late = {} if self.wan is None else {"late_packets": self.wan.late_packets}
        return own | late | {"line_bytes": lines, "versions": versions}


def run_weights_demo(
    folder: Path, link: EmulatedLink, steps: int, keys: Path, on_event: Callable[[str], None], *, over_loopback: bool
) -> WeightsRun:
    """Train `steps` steps in `folder`, which is there, and publish each. `on_event` hears what happens.

    Raises DemoError where a site failed, or has other bits than the trainer had; WanError.
    """
    ports = [str(free_port()) for _ in range(2 * len(SITE_NAMES))]
    command = [sys.executable, "-m", "geocomm.lab.demo.weights_site", str(folder), str(steps), *ports]
    environment = site_environment(demo_environment(), keys) | {"OMP_NUM_THREADS": "1"}
    log_path, told, sent = folder / "log.txt", 0, 0
    with (
        log_path.open("w", encoding="utf-8") as log,
        demo_sites(SITE_NAMES, command, environment, keys, log, None if over_loopback else link) as run,
    ):
        while run.running():
            with suppress(WanError):  # it ends just now
                sent = run.bytes_sent()
            told = _tell(folder, told, on_event)
            time.sleep(_POLL_S)
        status = run.wait()
        report = run.report() if isinstance(run, WanRun) else None
    if status != 0 or (report is None and not over_loopback):
        raise DemoError(f"the run ended with status {status}; the end of {log_path}:\n{log_tail(log_path)}")
    if report is not None:
        sent = sum(one.bytes for one in report.links)
    return read_run(folder, sent, report)


def _tell(folder: Path, told: int, on_event: Callable[[str], None]) -> int:
    """Say by which version the sites answer, if that is a newer one than `told`; returns it."""
    newest = [
        max((line.get("answers", 0) for line in read_entries(folder / f"{site}.jsonl")), default=0)
        for site in FOLLOWERS
    ]
    if min(newest) > told:
        on_event(f"{' and '.join(FOLLOWERS)} answer by version {min(newest)} of the weights")
    return max(told, min(newest))


def read_run(folder: Path, sent_bytes: int, wan: WanReport | None) -> WeightsRun:
    """What the files of a run say. DemoError: bits differ, or nothing was compared."""
    trained = {line["version"]: line for line in read_entries(folder / f"{SITE_NAMES[0]}.jsonl") if "version" in line}
    versions = {
        number: SeenVersion(number, line["bytes"], 2 * line["elements"], line["changed"] / line["elements"])
        for number, line in trained.items()
    }
    compared, answers, texts = 0, 0, dict[int, str]()
    for site in FOLLOWERS:
        last = 0
        for line in read_entries(folder / f"{site}.jsonl"):
            number = line.get("folder", line.get("answers", 0))
            if number not in trained:
                continue  # where it is, and what it answered before it had a version
            seconds = line["at"] - trained[number]["at"]
            if "answers" in line:
                versions[number].answer_s[site] = seconds
                if texts.setdefault(number, line["text"]) != line["text"]:
                    raise DemoError(f"{' and '.join(FOLLOWERS)} answer differently by version {number}")
                answers += site != FOLLOWERS[0] and FOLLOWERS[0] in versions[number].answer_s
                continue
            if line["digests"] != trained[number]["digests"]:
                raise DemoError(f"the folder of {site} has other bits than version {number} had where it was trained")
            compared, last = compared + 1, number
            versions[number].folder_s[site] = seconds
        if last != max(trained, default=-1):
            raise DemoError(f"{site} ended with version {last}, and version {max(trained, default=0)} is the newest")
    parameters = next(iter(trained.values()))["elements"]
    return WeightsRun([*versions.values()], parameters, compared, answers, sent_bytes, wan)


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
