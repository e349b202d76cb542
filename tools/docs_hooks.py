"""Hooks of mkdocs.

The reports of benchmarks/results become pages, so that links between them and docs/ hold. Each page also lies in the
site as Markdown, and llms.txt lists them (https://llmstxt.org), for programs that read.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.nav import Navigation
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


_navigation: list[Navigation] = []
"""Of the build that runs; the hooks after it are not given it."""


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep it for llms.txt."""
    _navigation[:] = [nav]
    return nav


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Write the page's Markdown beside it."""
    place = Path(config.site_dir) / page.file.src_uri
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page.markdown or "", encoding="utf-8")
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt."""
    (nav,) = _navigation
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for page in nav.pages:
        section, title = _titles(page)
        if f"## {section}" not in lines:
            lines += ["", f"## {section}", ""]
        lines.append(f"- [{title}]({page.file.src_uri}): {_summary(page)}")
    (Path(config.site_dir) / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _titles(page: Any) -> tuple[str, str]:
    """Of the tab that the page is under, and of the page; mkdocs does not type them."""
    return (page.ancestors[-1] if page.ancestors else page).title, page.title


def _summary(page: Page) -> str:
    """The first sentence of the page that stands in no heading, list, table or code, without links."""
    paragraphs = (part for part in re.split(r"\n\s*\n", page.markdown or "") if re.match(r"(?!```)[A-Za-z`\[]", part))
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(next(paragraphs, "").split()))
    return re.split(r"(?<=[.:])\s", text)[0].rstrip(".:")
