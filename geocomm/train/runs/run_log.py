"""What a run shows and writes: metrics.jsonl, events.jsonl, TensorBoard, progress."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any, Self

from pydantic_core import to_jsonable_python

from geocomm.core.units import duration_text
from geocomm.metrics.events import EventReader
from geocomm.train.runs.run_folder import RunFolder
from geocomm.train.runs.run_tracking import LoggingConfig, RunTracking

_STEPS_LOOKED_AT = 20


def quiet_libraries(rank: int) -> None:
    """Keep the libraries' chatter off stdout: warnings and errors go to stderr, from ranks other than 0 errors only."""
    level = logging.WARNING if rank == 0 else logging.ERROR
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|deepspeed|transformers)\b")
    if rank != 0:
        warnings.simplefilter("ignore")
    from deepspeed.utils import logger

    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
            handler.setLevel(level)
    logger.setLevel(level)
    quiet_transformers(level)


def quiet_transformers(level: int = logging.WARNING) -> None:
    """No progress bars of transformers, and no messages below `level`."""
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity(level)
    transformers_logging.disable_progress_bar()


class RunLog:
    """Appends entries to `metrics.jsonl`, one flushed line each, and mirrors numbers to TensorBoard and the screen.

    Every rank appends its events to `events.jsonl`; rank 0's are in `metrics.jsonl` too, which so tells the whole run.
    All else is rank 0's: on other ranks it is not written or shown. A failed write raises OSError.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: LoggingConfig,
        total_steps: int,
        first_step: int,
        rank: int,
        events: EventReader,
        tracking: RunTracking | None = None,
    ) -> None:
        """`first_step`: optimizer steps done before this start; `tracking`: of rank 0; closed with this."""
        self._active = rank == 0
        self._folder = folder
        self._events = events
        self._every = config.every_steps
        self._total = total_steps
        self._rest = RestTime()
        if not self._active:
            return
        folder.path.mkdir(parents=True, exist_ok=True)
        self._file = folder.metrics.open("a", encoding="utf-8")
        self._tracking = tracking
        self._bar = _ProgressBar(total_steps, first_step) if config.progress and sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # the run is over, and may have failed for a better reason
            self.note_events()
        if not self._active:
            return
        if self._bar is not None:
            self._bar.close()
        if self._tracking is not None:
            self._tracking.close()
        self._file.close()

    def say(self, text: str) -> None:
        """One line for the user."""
        if not self._active:
            return
        if self._bar is not None:
            self._bar.say(text)
        else:
            print(text, flush=True)

    def write(self, kind: str, entry: dict[str, Any]) -> None:
        """Append an entry of `kind`, then the events since the last; numbers that JSON lacks (NaN) become null."""
        if self._active:
            self._write_entry(kind, entry)
        self.note_events()

    def note_events(self) -> None:
        """Append what happened since the last call or entry."""
        lines = [_json_line(event.line()) for event in self._events.take()]
        if not lines:
            return
        if self._active:
            self._file.writelines(lines)
            self._file.flush()
        self._folder.path.mkdir(parents=True, exist_ok=True)
        # Ranks of a machine share the file: each line is one write.
        file = os.open(self._folder.events, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            for line in lines:
                os.write(file, line.encode())
        finally:
            os.close(file)

    def _write_entry(self, kind: str, entry: dict[str, Any]) -> None:
        self._file.write(_json_line({"kind": kind, "time": time.time()} | entry))
        self._file.flush()
        if self._tracking is not None:
            self._tracking.entry(kind, entry)

    def step(self, entry: dict[str, Any]) -> None:
        """Write a step's entry and show it."""
        self.write("step", entry)
        if not self._active:
            return
        self._rest.count(entry["step"])
        if self._bar is not None:
            self._bar.advance(entry)
        elif entry["step"] % self._every == 0 or entry["step"] in (1, self._total):
            left = self._rest.text(self._total - entry["step"])
            print(f"step {entry['step']}/{self._total}  {step_summary(entry)}{left}", flush=True)


class RestTime:
    """How long a run has still to go, by what its last steps took, with all that was between them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._steps: deque[tuple[float, int]] = deque(maxlen=_STEPS_LOOKED_AT + 1)

    def count(self, step: int) -> None:
        """A step has ended."""
        self._steps.append((self._now(), step))

    def text(self, steps_left: int) -> str:
        """`  12 min left`; empty before two steps have ended, and after the last."""
        begin, end = self._steps[0], self._steps[-1]
        if steps_left <= 0 or end[1] <= begin[1]:
            return ""
        seconds = (end[0] - begin[0]) / (end[1] - begin[1]) * steps_left
        return f"  {duration_text(seconds)} left"


def step_summary(entry: dict[str, Any]) -> str:
    """`loss 2.861  lr 1.0e-03  0.31 s/step  6.6k tokens/s  12.3 MB sent`, for people."""
    parts = [
        "loss -" if entry["loss"] is None else f"loss {entry['loss']:.4f}",
        f"lr {entry['lr']:.2e}",
        f"{entry['step_seconds']:.2f} s/step",
        f"{entry['tokens_per_second'] / 1e3:.2f}k tokens/s",
    ]
    if entry["wire_bytes_sent"] is not None:
        parts.append(
            f"{entry['wire_bytes_sent'] / 1e6:.1f} MB sent, {entry['exposed_seconds']:.2f} s exposed to the WAN"
        )
    return "  ".join(parts)


def _json_line(values: dict[str, Any]) -> str:
    return json.dumps(to_jsonable_python(values, inf_nan_mode="null"), allow_nan=False) + "\n"


class _ProgressBar:
    """A rich progress bar with the latest figures."""

    def __init__(self, total: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from geocomm.core.console import plain_console

        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=plain_console(),
        )
        self._task = self._progress.add_task("training", total=total, completed=done, figures="")
        self._progress.start()

    def advance(self, entry: dict[str, Any]) -> None:
        self._progress.update(self._task, completed=entry["step"], figures=step_summary(entry))

    def say(self, text: str) -> None:
        self._progress.console.print(text)

    def close(self) -> None:
        self._progress.stop()
