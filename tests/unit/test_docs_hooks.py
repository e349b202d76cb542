"""llms.txt and the Markdown beside each page, as a build of the site writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]


def test_site_has_every_page_as_markdown_and_lists_those_of_the_navigation(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    (docs / "how-to").mkdir(parents=True)
    (docs / "index.md").write_text("# Home\n\n```\nnot this\n```\n\ngeocomm [trains](how-to/a.md) models: `it` does.\n")
    (docs / "how-to/a.md").write_text("# A\n\n- a list\n\nDo this. Then that.\n")
    (docs / "how-to/unlisted.md").write_text("# Unlisted\n\nText.\n")
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: S\nsite_description: D\nuse_directory_urls: false\nhooks: [%s]\n"
        "nav:\n  - Home: index.md\n  - How-to:\n      - First: how-to/a.md\n" % (ROOT / "tools/docs_hooks.py")
    )
    build(load_config(str(tmp_path / "mkdocs.yml")))
    site = tmp_path / "site"
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs)).read_text() == page.read_text()
    assert (site / "llms.txt").read_text() == (
        "# S\n\n> D\n\n## Home\n\n- [Home](index.md): geocomm trains models\n\n"
        "## How-to\n\n- [First](how-to/a.md): Do this\n"
    )
    links = re.findall(r"\]\((.+?)\)", (site / "llms.txt").read_text())
    assert all((site / link).is_file() for link in links)
