"""What becomes of a rank that cannot be forked."""

from __future__ import annotations

import os
import sys

import pytest

from geocomm.elastic.rank_forks import RankForks


def test_rank_that_cannot_be_forked_is_started_otherwise_also_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no memory for it: the process that ranks are forked from lives on."""
    own, fork = os.getpid(), os.fork

    def fork_once() -> int:
        if os.getpid() != own:
            raise BlockingIOError("Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", fork_once)
    forks = RankForks()
    for _ in range(3):
        assert forks.start([sys.executable, "-u", "-m", "this"], {}, None, None) is None
