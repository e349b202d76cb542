"""How often a job is told that it sends plaintext."""

from __future__ import annotations

import pytest

from geocomm.core.options import Options
from geocomm.group.backend import group_admission
from geocomm.group.membership.rank_record import RankInfo


@pytest.mark.parametrize(("rank", "times"), [(0, 1), (1, 0)])
def test_plaintext_is_warned_of_once_in_a_job(caplog: pytest.LogCaptureFixture, rank: int, times: int) -> None:
    group_admission._warn_of_plaintext.forget()
    for _ in range(3):  # as for three groups
        group_admission.check_security([RankInfo(0, 0, hosts=["192.0.2.1"])], Options(security="insecure"), rank)
    assert caplog.text.count("PLAINTEXT") == times
