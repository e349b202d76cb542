"""Every test below is marked `multiprocess`. What ranks are forked from is there before the time of a test counts."""

from __future__ import annotations

import sys

import pytest

from support.warm_ranks import warm_ranks


def pytest_itemcollected(item: pytest.Item) -> None:
    """Called for what is collected below this folder."""
    item.add_marker(pytest.mark.multiprocess)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """After the tests are collected, in each process that runs them."""
    if "support.harness" in sys.modules and not session.config.option.collectonly:  # some of the tests need it
        warm_ranks().wait()
