"""What a job says when its ranks have met."""

from __future__ import annotations

import time

import torch.distributed as dist

from support.harness import Ranks
from support.log_lines import lines_but_waits


def _make_subgroups() -> None:
    for members in ([0, 2], [1, 2], [0, 1]):
        dist.new_group(members)


def test_job_says_once_at_each_site_that_its_group_is_ready() -> None:
    with Ranks(["rome", "rome", "oslo"]) as ranks:
        ranks.init()
        ranks.run(_make_subgroups)
        for first in (0, 2):
            while "group ready" not in ranks.output(first):  # a thread of the native log writes it
                time.sleep(0.01)
            (line,) = lines_but_waits(ranks.output(first))
            assert "geocomm info: group ready: 2 sites (rome 2 ranks, oslo 1 rank), " in line
        assert lines_but_waits(ranks.output(1)) == []


def test_job_inside_one_site_says_nothing() -> None:
    with Ranks(["rome", "rome"]) as ranks:
        ranks.init()
        assert lines_but_waits(ranks.output(0)) == []
