"""What geocomm prints to, and its tables: what is text stays as it is.

rich's own console takes `[sites.a]` for a style, `:on:` for a picture, and colours numbers. What has a style is a
`Text`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def plain_console(*, err: bool = False, soft_wrap: bool = False) -> Console:
    """err: to stderr. soft_wrap: leave it to the terminal to break long lines."""
    return Console(stderr=err, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def working(text: str) -> Generator[Callable[[str], None]]:
    """A line on stderr that moves while this context lasts; yields what changes its text."""
    with plain_console(err=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    text: Sequence[str] = (),
    folds: Sequence[str] = (),
) -> Table:
    """A table of `rows`, each with a cell for every name in `columns`: a Text, or what is shown as it is.

    A cell of None, "" or "-" tells nothing. The first column and those in `text` hold words, the others numbers, which
    are never cut. folds: words that may take several lines.
    """
    lines = [
        [cell if isinstance(cell, Text) else Text("" if cell is None else str(cell)) for cell in row] for row in rows
    ]
    shown = [
        number
        for number in range(len(columns))
        if not lines or any(line[number].plain not in ("", "-") for line in lines)
    ]
    made = Table(
        title=title and Text(title, "table.title"), title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for name in (columns[number] for number in shown):
        is_text = name == columns[0] or name in (*text, *folds)
        made.add_column(name, justify="left" if is_text else "right", no_wrap=name not in folds, overflow="fold")
    for line in lines:
        made.add_row(*(line[number] for number in shown))
    return made
