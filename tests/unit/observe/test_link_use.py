"""Counters of a rank's reports become what its links did in a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geocomm.observe.diagnosis.link_use import link_uses
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_store import Received

S = 10**9


def told(second: int, rate: int, **peer: Any) -> Received:
    """A report: 10 MB a second to the peer, a tenth of it again, a third of it others'."""
    sent = second * 10**7
    row = {"site": "b", "rank": 1, "tcp_bytes_sent": sent, "retransmitted_bytes": sent // 10, "delivery_rate": rate}
    own = {"site": "a", "rank": 0, "process": "0" * 16, "sequence": second, "time": second, "now_ns": second * S}
    stats = {"wire_bytes_sent": sent, "relayed_bytes": sent // 3, "peers": [row | peer]}
    return Received(second, Report.model_validate({**own, "stats": stats}))


def test_counters_count_from_before_the_window_and_rates_of_long_ago_stand_beside_those_of_now() -> None:
    earlier = [told(second, 40_000_000) for second in range(0, 600, 120)]
    reports = [told(second, 10_000_000) for second in range(1000, 1020)]
    ((link,), relayed) = link_uses(("a", 0), reports, earlier, 1005 * S, 1010 * S)
    assert (link.bytes_sent, link.retransmitted) == (5 * 10**7, 5 * 10**6)
    assert (link.best_rate, link.good_rate, link.earlier_rate) == (1e7, 1e7, 4e7)
    assert round(relayed, 2) == 0.33


def test_the_first_rates_of_a_window_are_those_of_before_it() -> None:
    """TCP tells the last rate that it saw, so that a line which has become slower looks fast at first."""
    reports = [told(second, 40_000_000 if second < 1006 else 2_000_000) for second in range(1000, 1020)]
    ((link,), _) = link_uses(("a", 0), reports, [], 1005 * S, 1015 * S)
    assert link.best_rate == 2e6
    ((short,), _) = link_uses(("a", 0), reports[:2], [], 1000 * S, 1001 * S + 1)
    assert short.best_rate == 4e7


def lossy(bad: Callable[[int], bool]) -> float:
    """`spread` of 20 seconds in which a tenth is lost where `bad` says so."""
    lost = [sum(10**6 for second in range(end) if bad(second)) for end in range(21)]
    reports = [told(second, 0, retransmitted_bytes=lost[second]) for second in range(21)]
    ((link,), _) = link_uses(("a", 0), reports, [], 1, 19 * S)
    return link.spread


def test_losses_of_all_the_time_are_told_from_those_at_once() -> None:
    assert lossy(lambda second: True) == 1
    assert lossy(lambda second: 5 <= second < 8) == pytest.approx(3 / 19, abs=0.02)
    assert lossy(lambda second: False) == 1  # nothing is known of them


def test_without_a_report_of_before_counters_began_in_the_window() -> None:
    reports = [told(second, 0) for second in (3, 4)]
    ((link,), relayed) = link_uses(("a", 0), reports, [], 2 * S, 5 * S)
    assert (link.bytes_sent, link.good_rate, link.earlier_rate) == (4 * 10**7, 0, 0)
    assert round(relayed, 2) == 0.33


def test_peers_whose_rank_is_not_known_have_no_link() -> None:
    assert link_uses(("a", 0), [told(3, 0, rank=None), told(4, 0, site=None)], [], 2 * S, 5 * S)[0] == []
