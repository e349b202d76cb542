"""A folder is made as a whole, or nothing is changed."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import new_folder


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("there", ["nothing", "empty folder", "leftover"])
def test_folder_appears_at_the_end_of_the_block(tmp_path: Path, there: str) -> None:
    out = tmp_path / "a" / "b"
    if there == "empty folder":
        out.mkdir(parents=True)
    if there == "leftover":
        (tmp_path / "a" / ".partial-b").mkdir(parents=True)
        (tmp_path / "a" / ".partial-b" / "old").write_text("")
    with new_folder(out) as folder:
        (folder / "new").write_text("1")
        assert not contents(out)
    assert contents(tmp_path) == {"a/b/new": "1"}


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with contextlib.suppress(KeyError), new_folder(tmp_path / "out") as folder:
        (folder / "new").write_text("1")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_failed_write_is_bad_input_that_tells_the_free_space(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="MB free"), new_folder(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_folder_that_holds_something_is_refused_or_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("1")
    with pytest.raises(BadInput, match="not empty"), new_folder(out):
        pass
    with pytest.raises(KeyError), new_folder(out, replace=True):
        raise KeyError
    assert contents(tmp_path) == {"out/old": "1"}
    with new_folder(out, replace=True) as folder:
        (folder / "new").write_text("2")
    assert contents(tmp_path) == {"out/new": "2"}


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("1")
    with pytest.raises(BadInput), new_folder(tmp_path / "out"):
        pass
