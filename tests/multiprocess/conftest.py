"""Every test below is marked `multiprocess`. What ranks are forked from is there before the time of a test counts."""

from __future__ import annotations

import sys

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what is collected below this folder."""
    item.add_marker(pytest.mark.multiprocess)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """After the tests are collected, in each process that runs them."""
    harness = sys.modules.get("support.harness")  # which the modules of tests import that need it
    if harness is not None and not session.config.option.collectonly:
        harness.start_server()
