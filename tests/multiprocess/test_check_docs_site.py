"""tools/check_docs_site.py sees each fault that it is there for; the browser is this machine's."""

from __future__ import annotations

from pathlib import Path

import check_docs_site
import pytest
from chromium import chromium_path

pytestmark = pytest.mark.skipif(chromium_path() is None, reason="needs Chromium (Debian: chromium)")

HEAD = '<!doctype html><meta name="viewport" content="width=device-width">'
DRAWN = """<script>
  const drawn = document.createElement("div");
  drawn.className = "mermaid";
  drawn.attachShadow({mode: "closed"}).innerHTML = "<svg></svg>";
  document.querySelector("pre").replaceWith(drawn);
</script>"""


def problems(site: Path, body: str) -> list[str]:
    (site / "index.html").write_text(HEAD + body, encoding="utf-8")
    return list(check_docs_site.problems_of(site))


def test_page_with_a_drawn_diagram_is_fine(tmp_path: Path) -> None:
    assert problems(tmp_path, f'<pre class="mermaid">graph LR</pre>{DRAWN}') == []


def test_diagram_that_is_not_drawn_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs_site, "DRAWING_S", 0.1)
    found = problems(tmp_path, '<pre class="mermaid">graph LR</pre>')
    assert found == [f"index.html at {width} pixels: 0 of 1 mermaid diagrams are drawn" for width in (1280, 390)]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<script src="http://other.invalid/x.js"></script>', "request to another host: http://other.invalid/x.js"),
        ('<script>console.error("of this kind")</script>', "console: of this kind"),
        ('<script>throw new Error("so")</script>', "exception: Error: so"),
        ('<img src="missing.png">', "net::ERR_FILE_NOT_FOUND"),
    ],
)
def test_error_of_a_page_is_seen(tmp_path: Path, body: str, fault: str) -> None:
    found = problems(tmp_path, body)
    assert [width for width in (1280, 390) if any(f"{width} pixels: " in each and fault in each for each in found)] == [
        1280,
        390,
    ]


def test_page_that_is_wider_than_a_phone_is_seen(tmp_path: Path) -> None:
    found = problems(tmp_path, '<div style="width: 700px">wide</div>')
    assert found == ["index.html at 390 pixels: the page is wider than the window"]


def test_search_that_finds_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_docs_site, "SEARCH_S", 0.1)
    (tmp_path / "search").mkdir()
    assert problems(tmp_path, "<p>no search</p>") == [
        "search: 'local steps' does not find explanation/local-steps.html"
    ]
