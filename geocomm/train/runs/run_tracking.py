"""From the entries of a run to TensorBoard: scalars, links, and the verdict at the end."""

from __future__ import annotations

import os
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt, model_validator

from geocomm.core.bad_input import BadInput
from geocomm.core.installation import install_command
from geocomm.core.message_log import tell
from geocomm.core.settings import Section
from geocomm.core.units import count_text
from geocomm.metrics.counters import stats
from geocomm.train.runs.run_folder import RunFolder

_SUMS = ("bytes_sent", "bytes_received", "retransmitted_segments", "resumes", "outages")
_RATES = {"bytes_sent": "sent_bps", "bytes_received": "received_bps"}


class LoggingConfig(Section):
    """What is shown and written."""

    every_steps: PositiveInt = Field(10, description="Steps between two lines on a stdout that is no terminal.")
    progress: bool = Field(True, description="Progress bar where stdout is a terminal.")
    trackers: list[Literal["tensorboard"]] = Field(
        ["tensorboard"], description="Where the numbers go besides `metrics.jsonl`: tensorboard; [] for nowhere."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, values: Any) -> Any:
        """Files of earlier versions have an empty `project`, for other trackers."""
        if isinstance(values, Mapping) and values.get("project", ...) is None:
            return {name: value for name, value in values.items() if name != "project"}
        return values


def require_tensorboard() -> None:
    """BadInput where it is not installed."""
    if find_spec("tensorboard") is None:
        raise BadInput(
            f"logging.trackers: tensorboard needs its package: {install_command('train')}, or set logging.trackers=[]"
        )


class RunTracking:
    """Mirrors what RunLog writes in TensorBoard's event files. Once they cannot be written, they are left out."""

    def __init__(self, folder: RunFolder, fields: Mapping[str, Any], total_steps: int, every: int) -> None:
        """fields: the run's configuration by dotted names. every: steps between two readings of the links.

        Raises BadInput where the files cannot be begun.
        """
        from torch.utils.tensorboard.summary import hparams

        values = {name: value if isinstance(value, int | float) else str(value) for name, value in fields.items()}
        try:
            self._file: _EventFile | None = _EventFile(folder.tensorboard)
            self._file.add(*hparams(values, {"step/loss": 0.0, "eval/loss": 0.0}))
        except OSError as error:
            raise BadInput(f"logging.trackers: {folder.tensorboard} cannot be begun: {error}") from None
        self._links = LinkScalars(lambda: stats()["peers"])
        self._verdict = RunVerdict(total_steps)
        self._every = every

    def entry(self, kind: str, entry: Mapping[str, Any]) -> None:
        """An entry of metrics.jsonl."""
        self._verdict.add(kind, entry)
        if kind in ("step", "sites", "eval"):
            scalars = _scalars(kind, entry)
            if kind == "step" and entry["step"] % self._every == 0:
                scalars |= self._links.read()
            self._write(lambda file: file.add_scalars(scalars, entry["step"]))
        elif kind == "end":
            text = self._verdict.text(entry["step"], entry["complete"])
            self._write(lambda file: file.add_text("verdict", text, entry["step"]))

    def close(self) -> None:
        """The run is over, or failed."""
        self._write(_EventFile.close)

    def _write(self, write: Callable[[_EventFile], None]) -> None:
        if self._file is None:
            return
        try:
            write(self._file)
        except OSError as error:
            with suppress(OSError):  # what it holds back cannot be written either, as Python 3.13 says in a traceback
                self._file.close()
            self._file = None
            tell("train", f"TensorBoard's files cannot be written, and are left out from here on: {error}")


class _EventFile:
    """TensorBoard's event file. torch's SummaryWriter writes in a thread, which ends in a traceback where a disk is
    full. Methods raise OSError."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # Later files sort behind those of earlier starts, or TensorBoard leaves them out.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        untyped: Any = event_pb2
        self._event = untyped.Event
        self._records: Any = RecordWriter((folder / name).open("xb"))
        self._put(file_version="brain.Event:2")

    def add(self, *summaries: Any, step: int = 0) -> None:
        for summary in summaries:
            self._put(summary=summary, step=step)
        self._records.flush()

    def add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        from torch.utils.tensorboard.summary import scalar

        self.add(*(scalar(name, value) for name, value in scalars.items()), step=step)

    def add_text(self, name: str, value: str, step: int) -> None:
        from torch.utils.tensorboard.summary import text

        self.add(text(name, value), step=step)

    def close(self) -> None:
        self._records.close()

    def _put(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())


class LinkScalars:
    """The links of `geocomm.stats()` for TensorBoard: numbers for each other site. Rates are between two readings."""

    def __init__(
        self, peers: Callable[[], Sequence[Mapping[str, Any]]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """peers: rows as stats()["peers"] has them; clock: seconds."""
        self._peers = peers
        self._clock = clock
        self._before: dict[str, dict[str, float]] = {}
        self._when = clock()

    def read(self) -> dict[str, float]:
        """`link/SITE/…`: totals over the peers at that site, bits per second, the longest round trip in seconds."""
        now, sites = self._clock(), self._by_site()
        elapsed = now - self._when
        scalars: dict[str, float] = {}
        for site, values in sites.items():
            scalars |= {f"link/{site}/{name}": value for name, value in values.items()}
            before = self._before.get(site)
            if before is not None and elapsed > 0:
                for total, rate in _RATES.items():
                    # Links begin anew with each process group: totals may fall.
                    scalars[f"link/{site}/{rate}"] = max(0.0, values[total] - before[total]) * 8 / elapsed
        self._before, self._when = sites, now
        return scalars

    def _by_site(self) -> dict[str, dict[str, float]]:
        sites: dict[str, dict[str, float]] = {}
        for peer in self._peers():
            if peer["site"] is None:
                continue
            values = sites.setdefault(peer["site"], dict.fromkeys((*_SUMS, "rtt_seconds"), 0.0))
            for name in _SUMS:
                values[name] += peer[name]
            values["rtt_seconds"] = max(values["rtt_seconds"], peer["rtt_us"] * 1e-6)
        return sites


def _scalars(kind: str, entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an entry, by names such as step/loss, sync/nmse, site-paris/tokens_per_second."""
    values = {f"{kind}/{name}": value for name, value in entry.items() if name != "step"}
    values |= {f"sync/{name}": value for name, value in entry.get("sync", {}).items()}
    for site, row in entry.get("sites", {}).items():
        values |= {f"site-{site}/{name}": value for name, value in row.items()}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


_WAN_BOUND_SHARE = 0.5
"""The share of the step time exposed to the WAN from which on the WAN bounds a run."""


class RunVerdict:
    """Takes the entries of this start of a run, in order, and tells of them at its end."""

    def __init__(self, total_steps: int) -> None:
        """total_steps: of the whole run."""
        self._total_steps = total_steps
        self._losses: list[tuple[int, float]] = []
        self._held_out: float | None = None
        self._seconds: list[float] = []
        self._exposed: list[float | None] = []
        self._wire_bytes = 0
        self._sites: list[str] = []
        self._computing: dict[str, list[float]] = {}

    def add(self, kind: str, entry: Mapping[str, Any]) -> None:
        """An entry of metrics.jsonl; those of other kinds than step, sites and eval say nothing here."""
        if kind == "eval":
            self._held_out = entry["loss"]
        elif kind == "step":
            if entry["loss"] is not None:
                self._losses.append((entry["step"], entry["loss"]))
            self._seconds.append(entry["step_seconds"])
            self._exposed.append(entry["exposed_seconds"])
            self._wire_bytes += entry["wire_bytes_sent"] or 0
            self._sites = list(entry["sites"])
        if kind in ("step", "sites"):
            for site, values in entry["sites"].items():
                if values["exposed_seconds"] is not None:
                    steps = values.get("steps", 1)
                    own = values["step_seconds"] - values["exposed_seconds"] / steps
                    self._computing.setdefault(site, []).append(own)

    def text(self, step: int, complete: bool) -> str:
        """The verdict in Markdown. step: steps done."""
        lines = [
            f"complete after {count_text(step, 'step')}"
            if complete
            else f"stopped after step {step} of {self._total_steps}"
        ]
        if self._losses:
            (first, loss_then), (last, loss_now) = self._losses[0], self._losses[-1]
            held_out = "" if self._held_out is None else f"; held-out {self._held_out:.4f}"
            lines.append(f"loss: {loss_then:.4f} at step {first}, {loss_now:.4f} at step {last}{held_out}")
            lines.append(f"step: {statistics.median(self._seconds):.3g} s, the median of {len(self._seconds)}")
            lines += self._wan_lines()
        return "\n".join(f"- {line}" for line in lines)

    def _wan_lines(self) -> list[str]:
        # The first step also connects and compiles.
        steps = list(zip(self._seconds, self._exposed, strict=True))
        steps = steps[1:] or steps
        exposed = [wait for _, wait in steps if wait is not None]
        if len(exposed) < len(steps):
            return ["the WAN's part is not known: the backend does not count it"]
        seconds = sum(second for second, _ in steps)
        share = sum(exposed) / seconds
        who = f"site {self._sites[0]}" if len(self._sites) == 1 else "all sites together"
        lines = [f"WAN: {self._wire_bytes / 1e6:.1f} MB sent by {who}; {share:.0%} of the step time was exposed to it"]
        if len(self._computing) > 1:
            own = {site: statistics.median(values) for site, values in self._computing.items()}
            slowest, fastest = max(own, key=own.__getitem__), min(own, key=own.__getitem__)
            lines.append(
                f"slowest site: {slowest}, {own[slowest]:.3g} s a step without its waiting; fastest: {fastest}, "
                f"{own[fastest]:.3g} s"
            )
        mean, wait = seconds / len(steps), sum(exposed) / len(steps)
        if share >= _WAN_BOUND_SHARE:
            lines.append(f"WAN-bound: of {mean:.3g} s a step, {wait:.3g} s went by in waiting for other sites")
        else:
            lines.append(f"compute-bound: of {mean:.3g} s a step, a WAN without any delay would save {wait:.3g} s")
        return lines
