"""The workflows use others' actions by the hash of a commit: a tag can be moved."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).resolve().parents[2] / ".github/workflows").glob("*.yml"))
USED = re.compile(r"uses: (\S+)(.*)")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_hash_and_named_by_version(workflow: Path) -> None:
    for action, comment in USED.findall(workflow.read_text()):
        if not action.startswith("./"):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
            assert re.match(r" # v\d+\.\d+", comment), action


def test_wheels_are_used_with_every_tested_torch() -> None:
    root = WORKFLOWS[0].parents[2]
    matrix = re.search(r"torch: (\[.*\])", (root / ".github/workflows/wheels.yml").read_text())
    assert matrix
    assert re.findall(r"[\d.]+", matrix[1]) == (root / "tools/tested_torch.txt").read_text().split()
