"""The reports of benchmarks/results."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def test_reports_are_named_without_a_date_and_listed() -> None:
    reports = {path.name for path in (REPOSITORY / "benchmarks/results").glob("*.md")}
    assert [name for name in reports if re.match(r"\d{4}-", name)] == []
    page = (REPOSITORY / "docs/project/benchmarks.md").read_text(encoding="utf-8")
    assert [name for name in reports if f"benchmarks/results/{name})" not in page] == []
