"""The generated pages of docs/reference are those that tools/make_reference.py makes of the code now."""

from __future__ import annotations

import re
from pathlib import Path

import make_reference
import pytest

import geocomm
from geocomm.core.options import Options
from geocomm.metrics import schema

REPOSITORY = Path(__file__).parents[2]
PAGES = ("cli.md", "options.md", "run-config.md", "metrics.md", "alerts.md")


def test_all_generated_pages_are_compared() -> None:
    assert set(make_reference.pages()) == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_committed_page_is_what_the_code_makes(name: str) -> None:
    committed = (REPOSITORY / "docs/reference" / name).read_text(encoding="utf-8")
    assert committed == make_reference.pages()[name], (
        f"docs/reference/{name} is out of date: run make docs, and commit it"
    )


def test_page_of_options_has_every_field_with_its_variable() -> None:
    text = make_reference.pages()["options.md"]
    missing = [name for name in Options.model_fields if f"- `{name}`, `GEOCOMM_{name.upper()}`" not in text]
    assert missing == []


def test_page_of_commands_has_the_options_of_those_that_train_or_bring_a_model_to_its_users() -> None:
    text = make_reference.pages()["cli.md"]
    nested = text.split("### geocomm members lead\n")[1].split("\n#")[0]
    assert "`--run-dir=" in nested
    assert "`--hub`" in nested  # told at the top, as an option of several
    assert "`--hub=" in text.split("Several commands take:")[1].split("\n#")[0]
    assert "`--api-key-file=" in text.split("## geocomm serve\n")[1].split("\n#")[0]
    assert "- `create`: " in (keys := text.split("## geocomm keys\n")[1].split("\n#")[0])
    assert "`--" not in keys


def test_every_public_name_but_the_errors_stands_on_the_page_of_the_api() -> None:
    text = (REPOSITORY / "docs/reference/python-api.md").read_text(encoding="utf-8")
    on_page = set(re.findall(r"^::: geocomm\.(?:\w+\.)*(\w+)$", text, re.MULTILINE))
    public = {name for name in geocomm.__all__ if name != "__version__" and not name.endswith("Error")}
    assert public <= on_page, public - on_page


def test_page_of_metrics_has_every_metric_under_both_names() -> None:
    lines = make_reference.pages()["metrics.md"].splitlines()
    for metrics in schema.TABLES.values():
        for metric in metrics:
            rows = metric.kind is schema.MetricKind.ROWS and metric.name != "policy"  # which have sections of their own
            start = "" if rows else f"- `{metric.name}`"
            names = (metric.name, "" if rows else metric.prometheus or "")
            assert any(line.startswith(start) and all(name in line for name in names) for line in lines), metric.name
