"""What the terminal shows of the sites while they are worked with: a line for each, and what happens beside that."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from geocomm.cli.ssh_sites.sites_file import Node
from geocomm.core.message_log import printable
from geocomm.core.patience import Patience
from geocomm.core.units import duration_text

_STEPS_EVERY_S = 30.0
"""Without a terminal."""
_MOST_LETTERS = 200
_COLOURS = re.compile(r"\x1b\[[0-9;]*[mK]")


def shown(text: str) -> str:
    """What another machine has said, without colours and what a terminal would obey."""
    return printable(_COLOURS.sub("", text), keep="\n\t")


@dataclass
class _Line:
    state: str = ""
    since: float = field(default_factory=time.monotonic)
    waiting: Patience | None = None
    last: str = ""
    """What the node wrote last, or its steps."""


class Board:
    """A table that changes, in a terminal; elsewhere a line whenever something has changed, or is waited for. A context
    that shows it until its end."""

    def __init__(self, nodes: Sequence[Node], console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        self._lines = {node: _Line() for node in nodes}
        self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=2)
        self._reminding: asyncio.Task[None] | None = None
        self._steps_due = time.monotonic()

    def say(self, node: Node, state: str, *, waiting: bool = True) -> None:
        """A node's state from now on. waiting: it is to change soon, so that a word is due where it does not."""
        line = self._lines[node]
        if state != line.state:
            line.state, line.since = state, time.monotonic()
            line.waiting = Patience() if waiting else None
            if not self._console.is_terminal:
                self.tell(f"{node}: {state}")

    def last(self, node: Node, text: str) -> None:
        """What is shown beside the state, in a terminal."""
        self._lines[node].last = text

    def steps(self, steps: dict[str, str]) -> None:
        """What is known of the sites' steps, by site."""
        for node, line in self._lines.items():
            line.last = steps.get(node.site_name) or line.last
        if steps and not self._console.is_terminal and time.monotonic() >= self._steps_due:
            self._steps_due = time.monotonic() + _STEPS_EVERY_S
            for site, text in steps.items():
                self.tell(f"{site}: {text}")

    def tell(self, text: str) -> None:
        """A line that stays."""
        self._console.print(shown(text), markup=False)

    async def __aenter__(self) -> Board:
        if self._console.is_terminal:
            self._live.start()
        self._reminding = asyncio.create_task(self._remind())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reminding is not None:
            self._reminding.cancel()
        self._live.stop()

    async def _remind(self) -> None:
        while True:
            await asyncio.sleep(1)
            for node, line in self._lines.items():
                if line.waiting is not None and line.waiting.left_s <= 0 and not self._console.is_terminal:
                    self.tell(f"{node}: still {line.state}, for {duration_text(line.waiting.waited_s)}")
                    line.waiting.put_off()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(3):
            table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for node, line in self._lines.items():
            age = duration_text(time.monotonic() - line.since)
            last = shown(line.last[:_MOST_LETTERS])
            table.add_row(Text(str(node), "bold"), Text(line.state), age, Text(last))
        return table
