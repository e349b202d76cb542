"""Hooks of mkdocs: the reports of benchmarks/results become pages, so that links between them and docs/ hold."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

RESULTS = "benchmarks/results"
PLACE = "project/results"
TO_RESULTS = re.compile(rf"\]\((?:\.\./)+{RESULTS}/")
FROM_RESULTS = re.compile(r"\]\(\.\./\.\./docs/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reports and their pictures; they need no place in the navigation."""
    folder = Path(config.config_file_path).parent / RESULTS
    for path in sorted(folder.iterdir()):
        if path.suffix in (".md", ".png", ".svg"):
            source = f"{PLACE}/{path.name}"
            files.append(File.generated(config, source, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links from docs/ to a report, and back, at the pages."""
    up = "../" * page.file.src_uri.count("/")
    return FROM_RESULTS.sub(f"]({up}", TO_RESULTS.sub(f"]({up}{PLACE}/", markdown))
