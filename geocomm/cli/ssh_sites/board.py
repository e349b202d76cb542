"""What the terminal shows of the sites while they are worked with: a line for each, and what happens beside that."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.text import Text

from geocomm.cli.ssh_sites.sites_file import Node
from geocomm.core.console import plain_console
from geocomm.core.message_log import printable
from geocomm.core.patience import Patience
from geocomm.core.units import duration_text

_STEPS_SOONEST_S = 2.0
_STEPS_LATEST_S = 30.0
_STEPS_SHARE = 0.1
"""Without a terminal steps are told after such a share of the time since the first ones, within these limits."""
_STATE_CELLS = 20
"""The width of the column of states; a longer one moves what follows it in its own line."""
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
    """A line for each node that changes, in a terminal; elsewhere one whenever something has changed, or is waited for.
    A context that shows them until its end."""

    def __init__(self, nodes: Sequence[Node], console: Console | None = None) -> None:
        self._console = console or plain_console(err=True, soft_wrap=True)
        self._lines = {node: _Line() for node in nodes}
        self._live = Live(get_renderable=self._picture, console=self._console, refresh_per_second=2)
        self._reminding: asyncio.Task[None] | None = None
        self._steps_told: dict[str, str] = {}
        self._steps_since: float | None = None
        self._steps_due = 0.0

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
        now = time.monotonic()
        # The step stands first; what follows also changes while it stands.
        reached = {site: text.partition(",")[0] for site, text in steps.items()}
        news = {site: text for site, text in steps.items() if reached[site] != self._steps_told.get(site)}
        if news and not self._console.is_terminal and now >= self._steps_due:
            self._steps_since = self._steps_since or now
            pause_s = min(max(_STEPS_SHARE * (now - self._steps_since), _STEPS_SOONEST_S), _STEPS_LATEST_S)
            self._steps_due, self._steps_told = now + pause_s, reached
            for site, text in news.items():
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

    def _picture(self) -> Text:
        """The end of a line that is too long is cut, whatever it is: the name stands first."""
        now = time.monotonic()
        names = max(cell_len(str(node)) for node in self._lines)
        states = min(max(cell_len(line.state) for line in self._lines.values()), _STATE_CELLS)
        shown_lines: list[Text] = []
        for node, line in self._lines.items():
            last = " ".join(shown(line.last[:_MOST_LETTERS]).split())
            state, age = _filled(line.state, states), duration_text(now - line.since)
            shown_lines.append(Text.assemble((_filled(str(node), names), "bold"), f"  {state}  {age:>7}  {last}"))
        return Text("\n", no_wrap=True, overflow="ellipsis").join(shown_lines)


def _filled(text: str, cells: int) -> str:
    return text + " " * (cells - cell_len(text))
