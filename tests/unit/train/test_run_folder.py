"""The files of a run have their names in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from geocomm.train.runs.run_folder import RunFolder

PACKAGE = Path(__file__).parents[3] / "geocomm"
OWN = PACKAGE / "train/runs/run_folder.py"
NAMES = {"metrics.jsonl", "events.jsonl", "config.yaml", "checkpoints", "tensorboard"}


def paths_made(tree: ast.AST) -> set[str]:
    """Names of files of a run that are put behind a path: folder / "checkpoints", or the argument of a Path."""
    ends = [node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("Path", "join", "joinpath"):
            ends += node.args
    return {end.value for end in ends if isinstance(end, ast.Constant) and isinstance(end.value, str)} & NAMES


def test_run_folder_says_where_everything_is() -> None:
    folder = RunFolder(Path("run"))
    found = {folder.config, folder.metrics, folder.events, folder.checkpoints, folder.tensorboard}
    assert found == {Path("run") / name for name in NAMES}


def test_folder_has_a_run_once_something_was_written(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.has_run()
    folder.checkpoints.mkdir()
    assert folder.has_run()


def test_nobody_else_puts_a_path_of_a_run_together() -> None:
    assert paths_made(ast.parse(OWN.read_text())) == NAMES
    bad = {file: names for file in PACKAGE.rglob("*.py") if (names := paths_made(ast.parse(file.read_text())))}
    bad.pop(OWN)
    assert not bad


@pytest.mark.parametrize(
    "line", ['folder / "checkpoints"', 'Path(folder, "metrics.jsonl")', 'root.joinpath("events.jsonl")']
)
def test_path_of_a_run_is_found(line: str) -> None:
    assert paths_made(ast.parse(line))
