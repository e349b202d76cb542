"""Tables of commands."""

from __future__ import annotations

from rich.console import Console

from geocomm.core.console import table_of


def shown(*rows: tuple[object, ...], width: int = 40) -> list[str]:
    console = Console(width=width, record=True)
    with console.capture() as capture:
        console.print(table_of(("site", "step", "loss", "why"), rows, folds=("why",)))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    assert shown(("paris", 7, None, ""), ("rome", 12, "-", "")) == ["site  step", "paris    7", "rome    12"]


def test_column_names_of_an_empty_table_stay() -> None:
    assert shown() == ["site step loss why"]


def test_words_fold_and_numbers_do_not() -> None:
    lines = shown(("paris", 123456789, 0.25, "one two three four five"), width=30)
    assert [line.split()[:3] for line in lines[1:2]] == [["paris", "123456789", "0.25"]]
    assert len(lines) > 2
