"""A browser for all tests of the page, since it takes seconds to start; each test has a tab of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import Chromium, Page, chromium_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    path = chromium_path()
    if path is None:
        pytest.skip("needs Chromium (Debian: chromium)")
    with Chromium(path, served="http://127.0.0.1:") as started:
        yield started


@pytest.fixture
def page(browser: Chromium) -> Iterator[Page]:
    """A tab, 1440 pixels wide."""
    tab = browser.page()
    tab.resize(1440, 900)
    yield tab
    tab.command("Page.close")
