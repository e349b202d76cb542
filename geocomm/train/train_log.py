"""What a run shows and writes: metrics.jsonl, TensorBoard, progress. Rank 0 writes; other ranks stay silent."""

from __future__ import annotations

import json
import logging
import math
import sys
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from geocomm.train.train_config import LoggingConfig
from geocomm.train.train_errors import BadInput

METRICS = "metrics.jsonl"


def quiet_libraries(rank: int) -> None:
    """Keep the libraries' chatter off stdout: warnings and errors go to stderr, from ranks other than 0 errors only."""
    level = logging.WARNING if rank == 0 else logging.ERROR
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(torch|deepspeed|transformers)\b")
    if rank != 0:
        warnings.simplefilter("ignore")
    from deepspeed.utils import logger
    from transformers.utils import logging as transformers_logging

    for handler in logger.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
            handler.setLevel(level)
    logger.setLevel(level)
    transformers_logging.set_verbosity(level)
    transformers_logging.disable_progress_bar()


class RunLog:
    """Appends entries to `metrics.jsonl`, one flushed line each, and mirrors numbers to TensorBoard and the screen.

    On ranks other than 0 all methods do nothing. A failed write raises OSError.
    """

    def __init__(self, output_dir: Path, config: LoggingConfig, total_steps: int, first_step: int, rank: int) -> None:
        """`first_step`: optimizer steps done before this start."""
        self._active = rank == 0
        self._every = config.every_steps
        self._total = total_steps
        if not self._active:
            return
        output_dir.mkdir(parents=True, exist_ok=True)
        self._file = (output_dir / METRICS).open("a", encoding="utf-8")
        self._board = _open_tensorboard(output_dir) if config.tensorboard else None
        self._bar = _ProgressBar(total_steps, first_step) if config.progress and sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._active:
            return
        if self._bar is not None:
            self._bar.close()
        if self._board is not None:
            self._board.close()
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
        """Append an entry of `kind`; numbers that JSON lacks (NaN, infinity) become null."""
        if not self._active:
            return
        line = {"kind": kind, "time": time.time()} | entry
        self._file.write(json.dumps(_json_numbers(line), allow_nan=False) + "\n")
        self._file.flush()
        if self._board is not None and kind in ("step", "eval"):
            scalars = {f"{kind}/{name}": value for name, value in entry.items() if name != "step"}
            for site, values in entry.get("sites", {}).items():
                scalars |= {f"site-{site}/{name}": value for name, value in values.items()}
            for name, value in scalars.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, entry["step"])
            self._board.flush()

    def step(self, entry: dict[str, Any]) -> None:
        """Write a step's entry and show it."""
        if not self._active:
            return
        self.write("step", entry)
        if self._bar is not None:
            self._bar.advance(entry)
        elif entry["step"] % self._every == 0 or entry["step"] in (1, self._total):
            print(f"step {entry['step']}/{self._total}  {step_summary(entry)}", flush=True)


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


def _json_numbers(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _json_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_numbers(item) for item in value]
    return value


def _open_tensorboard(output_dir: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("logging.tensorboard needs the package 'tensorboard'; install it or set it to false") from None
    return SummaryWriter(log_dir=str(output_dir / "tensorboard"))


class _ProgressBar:
    """A rich progress bar with the latest figures."""

    def __init__(self, total: int, done: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
        )
        self._task = self._progress.add_task("training", total=total, completed=done, figures="")
        self._progress.start()

    def advance(self, entry: dict[str, Any]) -> None:
        self._progress.update(self._task, completed=entry["step"], figures=step_summary(entry))

    def say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()
