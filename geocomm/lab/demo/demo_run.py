"""The demo's runs: a small DeepSeek model trained over two sites, on Gloo and on geocomm, one after another.

The sites have an emulated WAN between them or, where the machine forbids that, loopback. Each run has a folder:
run.yaml (what `geocomm train` was given), log.txt (what it printed), train/metrics.jsonl (its own log) and wan.jsonl
(the bytes between the sites, by time). Every figure of the demo is computed from those files.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from geocomm.core.bad_input import UserError
from geocomm.lab.emulator.emulated_keys import hub_command, site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan, WanError
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from geocomm.lab.emulator.local_job import bare_environment
from geocomm.lab.emulator.loopback_run import LoopbackRun
from geocomm.train.runs.run_folder import RunFolder

SITE_NAMES = ("site0", "site1")
DEFAULT_STEPS = 10
_POLL_S = 0.25
_TAIL_LINES = 12


def demo_sites(
    sites: Sequence[str],
    command: Sequence[str],
    environment: Mapping[str, str],
    keys: Path | None,
    log: TextIO,
    link: EmulatedLink | None,
) -> LoopbackRun | WanRun:
    """The sites of a demo, which write to `log`. link: between each two of them; None: they talk over loopback."""
    if link is None:
        return LoopbackRun(sites, command, environment=environment, keys=keys, log=log)
    wan = EmulatedWan.uniform(sites, link)
    return WanRun(wan, command, environment=environment, keys=keys, stdout=log, stderr=log)


class DemoError(UserError, RuntimeError):
    """A run failed; the message has the end of its log."""


@dataclass(frozen=True)
class Variant:
    """What is compared."""

    name: str
    folder: str
    backend: str
    codec: str | None
    feedback: str | None = None
    """Codec of the gradients between sites, with error feedback."""
    local_every: int | None = None
    """Local steps, with this many optimizer steps between two rounds."""

    @property
    def exchanges_per_step(self) -> float:
        """How often the sites wait for each other's weights or gradients, at least."""
        return 1 / (self.local_every or 1)


VARIANTS = (
    Variant("Gloo", "gloo", "gloo", None),
    Variant("geocomm, exact", "exact", "geocomm", "none"),
    Variant("geocomm, int8", "int8", "geocomm", "int8"),
    Variant("geocomm, balanced + feedback", "balanced", "geocomm", "none", "balanced"),
    Variant("geocomm, local steps", "local", "geocomm", "none", local_every=4),
)


@dataclass
class DemoProgress:
    """The progress of a run that is under way, for the view."""

    state: str = "waiting"
    """waiting, starting, training, done."""
    step: int = 0
    loss: float | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    wan_bytes: int = 0
    """Sent by both sites since the run began."""
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class DemoResult:
    """What the files of a finished run say."""

    variant: Variant
    losses: tuple[float, ...]
    """Training loss by step."""
    step_s: tuple[float, ...]
    tokens_per_step: int
    wan_bytes_per_step: float
    """Both directions, headers included; mean over the steps after the second."""
    held_out_loss: float
    link: EmulatedLink
    """Each direction between the sites, or what it would be."""
    wan: WanReport | None
    """The emulator's last counters; None: the sites had loopback between them."""
    sizes: dict[str, Any] = field(default_factory=dict[str, Any])
    """`parameters` and the ZeRO stage, as the run logged them."""

    @property
    def median_step_s(self) -> float:
        """The median time of a step, without the first ones (`median_step_s`)."""
        return median_step_s(self.step_s)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second at the median step time."""
        return self.tokens_per_step / self.median_step_s

    @property
    def line_s_per_step(self) -> float:
        """What the line takes for a step at least: half of the bytes at the rate of a direction, and once its delay for
        each exchange. A step may compute meanwhile."""
        return (
            self.wan_bytes_per_step / 2 * 8 / self.link.rate_bps + self.variant.exchanges_per_step * self.link.delay_s
        )

    def to_dict(self) -> dict[str, Any]:
        """The outcome as plain values, for summary.json."""
        return {
            "name": self.variant.name,
            "backend": self.variant.backend,
            "codec": self.variant.codec,
            "feedback": self.variant.feedback,
            "local_every": self.variant.local_every,
            "losses": self.losses,
            "step_seconds": self.step_s,
            "median_step_seconds": self.median_step_s,
            "tokens_per_second": self.tokens_per_s,
            "wan_bytes_per_step": self.wan_bytes_per_step,
            "held_out_loss": self.held_out_loss,
            "line_seconds_per_step_at_least": self.line_s_per_step,
            "over": "loopback" if self.wan is None else "emulated WAN",
            "late_packets": None if self.wan is None else self.wan.late_packets,
            "max_lateness_seconds": None if self.wan is None else self.wan.max_lateness_s,
            **self.sizes,
        }


def median_step_s(step_s: Sequence[float]) -> float:
    """The median without the first step, which also sets things up; one step alone counts."""
    return statistics.median(step_s[1:] or step_s)


def train_config(variant: Variant, folder: Path, steps: int) -> dict[str, Any]:
    """The fields of `geocomm train` that the demo sets; the same for all variants, but for the backend."""
    return {
        "output_dir": str(_run_folder(folder).path),
        "model": {"preset": "tiny"},
        "data": {"source": "builtin", "sequence_length": 256, "cache_dir": str(folder.parent / "tokens")},
        "training": {"steps": steps, "micro_batch_size": 4, "zero_stage": 0},
        "schedule": {"warmup_steps": min(3, steps - 1)},
        "evaluation": {"max_sequences": 16},
        "logging": {"every_steps": 1, "progress": False, "trackers": []},
        "sync": _sync(variant),
        "export": {"format": "none"},
        "distributed": {"backend": variant.backend, "codec": variant.codec, "device": "cpu"},
    }


def _sync(variant: Variant) -> dict[str, Any]:
    """The section of that name: with the defaults, a run as short as this one would be made of its beginning."""
    if variant.feedback is not None:
        return {"codec": variant.feedback, "warmup_steps": 1}
    if variant.local_every is not None:
        return {"mode": "local", "every": variant.local_every, "overlap": 1, "joint_steps": 1}
    return {}


def _run_folder(folder: Path) -> RunFolder:
    """The run folder of the training in the folder of a variant."""
    return RunFolder(folder / "train")


def telemetry(folder: Path) -> Path:
    """The run store in the folder of a variant."""
    return folder / "telemetry"


def run_variant(
    variant: Variant,
    folder: Path,
    link: EmulatedLink,
    steps: int,
    on_progress: Callable[[DemoProgress], None],
    keys: Path | None = None,
    *,
    over_loopback: bool = False,
) -> DemoResult:
    """Train in `folder`, which is made. Calls `on_progress` several times a second. With `keys`, a folder for each of
    SITE_NAMES, the rendezvous and geocomm's traffic are TLS; Gloo's is plaintext always. over_loopback: `link` is not
    emulated, only reckoned with.

    Raises DemoError where the run failed or its log is not that of a whole run; WanError where no WAN can be emulated,
    or the bytes over loopback cannot be counted.
    """
    folder.mkdir(parents=True)
    config = folder / "run.yaml"
    config.write_text(yaml.safe_dump(train_config(variant, folder, steps), sort_keys=False), encoding="utf-8")
    metrics, log_path = _run_folder(folder).metrics, folder / "log.txt"
    progress, begin = DemoProgress("starting"), time.monotonic()
    program = ["-m", "geocomm.train", "--config", str(config)]
    command = [sys.executable, *program] if keys is None else hub_command(program)
    environment = site_environment(demo_environment(), keys) | {"GEOCOMM_TELEMETRY": str(telemetry(folder))}
    if variant.backend != "geocomm":
        environment["GEOCOMM_SECURITY"] = "insecure"
    with (
        log_path.open("w", encoding="utf-8") as log,
        (folder / "wan.jsonl").open("w", encoding="utf-8") as samples,
        demo_sites(SITE_NAMES, command, environment, keys, log, None if over_loopback else link) as run,
    ):
        while run.running():
            try:
                progress.wan_bytes = run.bytes_sent()
                samples.write(json.dumps({"time": time.time(), "bytes": progress.wan_bytes}) + "\n")
            except WanError:
                pass  # it ends just now
            _update(progress, read_entries(metrics))
            progress.elapsed_s = time.monotonic() - begin
            on_progress(progress)
            time.sleep(_POLL_S)
        status = run.wait()
        report = run.report() if isinstance(run, WanRun) else None
    if status != 0 or (report is None and not over_loopback):
        raise DemoError(
            f"{variant.name}: the run ended with status {status}; the end of {log_path}:\n{log_tail(log_path)}"
        )
    try:
        samples_read = read_entries(folder / "wan.jsonl")
        outcome = read_outcome(variant, read_entries(metrics), samples_read, steps, link, report)
    except DemoError as error:
        raise DemoError(f"{variant.name}: {error}; the end of {log_path}:\n{log_tail(log_path)}") from error
    _update(progress, read_entries(metrics))
    progress.state = "done"
    on_progress(progress)
    return outcome


def read_entries(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file that may still grow; none where it does not exist yet."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_outcome(
    variant: Variant,
    metrics: Sequence[dict[str, Any]],
    wan_bytes: Sequence[dict[str, Any]],
    steps: int,
    link: EmulatedLink,
    report: WanReport | None,
) -> DemoResult:
    """The figures; report: None over loopback.

    DemoError: the log is not that of `steps` steps with finite losses, an evaluation and an end."""
    of_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("start", "step", "eval", "end")}
    for entry in metrics:
        of_kind.get(entry["kind"], []).append(entry)
    logged = of_kind["step"]
    if [entry["step"] for entry in logged] != list(range(1, steps + 1)):
        raise DemoError(f"the log has {len(logged)} of {steps} steps")
    if not of_kind["start"] or not of_kind["eval"] or not of_kind["end"] or not of_kind["end"][-1]["complete"]:
        raise DemoError("the log has no start, no evaluation or no end")
    losses = [entry["loss"] for entry in logged] + [of_kind["eval"][-1]["loss"]]
    if not all(loss is not None and math.isfinite(loss) for loss in losses):
        raise DemoError("a loss is not a finite number")
    # A step's entry is written when the next step is done, so these two are the ends of step 2 and of the last one.
    first, last = logged[0]["time"], logged[-2]["time"]
    start = of_kind["start"][0]
    return DemoResult(
        variant=variant,
        losses=tuple(losses[:-1]),
        step_s=tuple(entry["step_seconds"] for entry in logged),
        tokens_per_step=_tokens_of_all(logged[0], start["sites"]),
        wan_bytes_per_step=(bytes_at(wan_bytes, last) - bytes_at(wan_bytes, first)) / (steps - 2),
        held_out_loss=losses[-1],
        link=link,
        wan=report,
        sizes={"parameters": start["parameters"], "zero_stage": start["config"]["training"]["zero_stage"]},
    )


def _tokens_of_all(step: dict[str, Any], ranks: dict[str, int]) -> int:
    """The tokens of all ranks in a step; with local steps the entry has those of one site."""
    return step["tokens"] * sum(ranks.values()) // sum(site["ranks"] for site in step["sites"].values())


def bytes_at(samples: Sequence[dict[str, Any]], when: float) -> float:
    """The byte counter at a time, between samples by interpolation. DemoError: no samples."""
    if not samples:
        raise DemoError("the bytes between the sites were never counted")
    index = bisect_left([sample["time"] for sample in samples], when)
    if index in (0, len(samples)):
        return float(samples[min(index, len(samples) - 1)]["bytes"])
    before, after = samples[index - 1], samples[index]
    share = (when - before["time"]) / (after["time"] - before["time"])
    return float(before["bytes"] + share * (after["bytes"] - before["bytes"]))


def _update(progress: DemoProgress, entries: Iterable[dict[str, Any]]) -> None:
    seconds: list[float] = []
    ranks: dict[str, int] = {}
    for entry in entries:
        if entry["kind"] == "start":
            progress.state, ranks = "training", entry["sites"]
        elif entry["kind"] == "step":
            progress.step, progress.loss = entry["step"], entry["loss"]
            seconds.append(entry["step_seconds"])
            # As in the table at the end: see Outcome.median_step_s.
            progress.step_s = median_step_s(seconds)
            progress.tokens_per_s = _tokens_of_all(entry, ranks) / progress.step_s


def demo_environment() -> dict[str, str]:
    """The sites': this process's, without what would change the comparison; the machine's cores are shared."""
    threads = max(1, len(os.sched_getaffinity(0)) // len(SITE_NAMES))
    return bare_environment() | {"OMP_NUM_THREADS": str(threads), "TORCH_CPP_LOG_LEVEL": "ERROR"}


def log_tail(path: Path) -> str:
    """The last lines of each site and of the emulator: the site that failed first may not have had the last word."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    by_site: dict[str, list[str]] = {}
    for line in lines:
        by_site.setdefault(line.partition("] ")[0] if line.startswith("[site") else "", []).append(line)
    return "\n".join(line for site in sorted(by_site, reverse=True) for line in by_site[site][-_TAIL_LINES:])
