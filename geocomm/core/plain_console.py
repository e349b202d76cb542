"""The one console that geocomm prints to: what is text stays as it is.

rich's own takes `[sites.a]` for a style, `:on:` for a picture, and colours numbers. What has a style is a `Text`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from rich.console import Console
from rich.text import Text


def plain_console(*, err: bool = False, soft_wrap: bool = False) -> Console:
    """err: to stderr. soft_wrap: leave it to the terminal to break long lines."""
    return Console(stderr=err, soft_wrap=soft_wrap, markup=False, emoji=False, highlight=False)


@contextlib.contextmanager
def working(text: str) -> Generator[Callable[[str], None]]:
    """A line on stderr that moves while this context lasts; yields what changes its text."""
    with plain_console(err=True).status(Text(text)) as status:
        yield lambda text: status.update(Text(text))
