"""Opens every page of the built documentation in a headless Chromium, without a network, and says what is wrong.

    python tools/check_docs_site.py [FOLDER] [--screenshots FOLDER]

Each page must load without errors and without requests to other hosts, draw every mermaid diagram, and fit the window,
on a desktop and on a phone. The search must find a page. `make docs-check` builds the site and runs this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from chromium import NAMES, Chromium, Page, chromium_path

WINDOWS = ((1280, 900), (390, 844))
QUERY = "local steps"
DRAWING_S = 20.0
SEARCH_S = 20.0
_FOUND = "explanation/local-steps.html"
_RESULT = f'document.querySelector(".md-search-result a[href*=\\"{_FOUND}\\"]") !== null'
_TOO_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def problems_of(site: Path, screenshots: Path | None = None) -> Iterator[str]:
    """What is wrong with the pages of a built site, one line for each fault."""
    path = chromium_path()
    assert path is not None
    with Chromium(path) as browser:
        page = browser.page()
        for file in sorted(site.rglob("*.html")):
            name = file.relative_to(site).as_posix()
            if name == "404.html":  # web servers show it, in place of pages of any folder
                continue
            for width, height in WINDOWS:
                page.resize(width, height)
                page.open(file.as_uri())
                yield from (f"{name} at {width} pixels: {each}" for each in _faults(page, file))
                if screenshots is not None:
                    page.screenshot(screenshots / f"{name.removesuffix('.html').replace('/', '-')}-{width}.png")
        if not (site / "search").exists():
            return
        page.open(f"{(site / 'index.html').as_uri()}?q={QUERY.replace(' ', '%20')}")
        if not page.wait_for(_RESULT, SEARCH_S):
            yield f"search: {QUERY!r} does not find {_FOUND}"
        yield from (f"search: {each}" for each in page.problems)
        if screenshots is not None:
            page.screenshot(screenshots / "search.png")


def _faults(page: Page, file: Path) -> list[str]:
    diagrams = file.read_text(encoding="utf-8").count('<pre class="mermaid">')
    page.wait_for(f'document.querySelectorAll("div.mermaid").length === {diagrams}', DRAWING_S)
    drawn = page.count_in_shadows("mermaid", "svg")
    faults = list(page.problems)
    if drawn != diagrams:
        faults.append(f"{drawn} of {diagrams} mermaid diagrams are drawn")
    if page.evaluate(_TOO_WIDE):
        faults.append("the page is wider than the window")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the site. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", nargs="?", type=Path, default=Path("build/docs"), metavar="FOLDER")
    parser.add_argument("--screenshots", type=Path, metavar="FOLDER", help="write pictures of the pages into it")
    given = parser.parse_args(arguments)
    if chromium_path() is None:
        print(f"docs-check: SKIPPED, since this machine has none of {', '.join(NAMES)} (Debian: apt install chromium)")
        return 0
    site = given.site.resolve()
    if not (site / "index.html").exists():
        print(f"docs-check: {site} has no index.html; run make docs first", file=sys.stderr)
        return 2
    if given.screenshots is not None:
        given.screenshots.mkdir(parents=True, exist_ok=True)
    problems = list(problems_of(site, given.screenshots))
    for problem in problems:
        print(f"docs-check: {problem}", file=sys.stderr)
    if not problems:
        print(f"docs-check: all pages of {given.site} are fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
