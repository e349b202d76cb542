"""The lint for requirements of docs/spec that no code or no test quotes, on small trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

LINT = Path(__file__).resolve().parents[2] / "tools" / "spec_quotes.py"
PAGE = "# Line\n\nA line has two ends. **1.1** Each end MUST greet the\n[other](x.md) with `hello`. It may wait.\n"
QUOTE = 'spec line 1.1: "MUST greet the other with hello."\n'


def faults(root: Path, page: str, code: str, test: str) -> list[str]:
    for name, text in (("docs/spec/line.md", page), ("csrc/line.cc", code), ("tests/test_line.py", test)):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    run = subprocess.run([sys.executable, LINT, root], capture_output=True, text=True, check=False)
    assert run.returncode == bool(run.stdout), run.stderr
    return run.stdout.splitlines()


def test_requirement_that_code_and_a_test_quote_is_no_fault(tmp_path: Path) -> None:
    assert faults(tmp_path, PAGE, f"  // {QUOTE}", f"# {QUOTE}") == []


def test_requirement_that_nothing_quotes_is_named_for_both(tmp_path: Path) -> None:
    code, test = faults(tmp_path, PAGE, "", "")
    assert code == "docs/spec/line.md:3: no code quotes 1.1: Each end MUST greet the other with hello."
    assert "no test quotes 1.1" in test


@pytest.mark.parametrize(
    "quote", [QUOTE.replace("1.1", "1.2"), QUOTE.replace("MUST", "may"), QUOTE.replace("line 1", "lane 1")]
)
def test_quote_that_the_page_does_not_have_is_named_with_its_place(tmp_path: Path, quote: str) -> None:
    *_, last = faults(tmp_path, PAGE, f"// {QUOTE}// {quote}", f"# {QUOTE}")
    assert last.startswith("csrc/line.cc:2: docs/spec does not say so")


def test_must_without_a_number_is_named(tmp_path: Path) -> None:
    assert faults(tmp_path, "Ends MUST agree.\n", "", "") == [
        "docs/spec/line.md:1: a MUST whose sentence has no number: begin it with **SECTION.NUMBER**"
    ]
