"""What the demo shows while it runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from geocomm.lab.demo.demo_run import DemoProgress, Variant

_PLAIN_EVERY_S = 10.0
_STYLES = {"waiting": "dim", "starting": "yellow", "training": "cyan", "done": "green"}


class DemoView:
    """Shows the progress of all variants. A context manager; one thread."""

    def __init__(self, variants: Sequence[Variant], steps: int, conditions: str, console: Console) -> None:
        """`conditions`: one line over everything."""
        self._progress = {variant.name: DemoProgress() for variant in variants}
        self._steps = steps
        self._conditions = conditions
        self._console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._said: dict[str, tuple[str, int, float]] = {}

    def __enter__(self) -> Self:
        if self._live is None:
            self._console.print(self._conditions, soft_wrap=True)
        else:
            self._live.__enter__()
            self._live.update(self._table())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self, variant: Variant, progress: DemoProgress) -> None:
        """Show the newest numbers of a variant."""
        self._progress[variant.name] = progress
        if self._live is not None:
            self._live.update(self._table())
        else:
            self._say(variant.name, progress)

    def _say(self, name: str, progress: DemoProgress) -> None:
        """A line at each change of state, and now and then while it trains."""
        state, step, when = self._said.get(name, ("", -1, 0.0))
        moved = progress.step != step and time.monotonic() - when >= _PLAIN_EVERY_S
        if progress.state == state and not moved:
            return
        self._said[name] = (progress.state, progress.step, time.monotonic())
        numbers = ""
        if progress.loss is not None and progress.step_s is not None:
            numbers = f", loss {progress.loss:.4f}, {progress.step_s:.2f} s/step"
        line = f"{name}: {progress.state}, step {progress.step}/{self._steps}{numbers}"
        line += f", {progress.wan_bytes / 1e6:.0f} MB sent, {progress.elapsed_s:.0f} s"
        self._console.print(line, soft_wrap=True)

    def _table(self) -> Group:
        table = Table(expand=False, box=None, padding=(0, 1, 0, 0))
        for heading in ("run", "", "", "step", "loss", "s/step", "tokens/s", "MB sent", "elapsed"):
            table.add_column(heading, justify="left" if heading in ("run", "") else "right", no_wrap=True)
        for name, progress in self._progress.items():
            table.add_row(
                Text(name, style="bold"),
                Text(progress.state, style=_STYLES[progress.state]),
                ProgressBar(total=self._steps, completed=progress.step, width=10),
                f"{progress.step}/{self._steps}",
                "" if progress.loss is None else f"{progress.loss:.3f}",
                "" if progress.step_s is None else f"{progress.step_s:.2f}",
                "" if progress.tokens_per_s is None else f"{progress.tokens_per_s:,.0f}",
                f"{progress.wan_bytes / 1e6:,.0f}" if progress.wan_bytes else "",
                f"{progress.elapsed_s:.0f} s" if progress.elapsed_s else "",
            )
        return Group(Text(self._conditions, style="bold"), Text(""), table)
