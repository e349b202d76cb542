"""The arithmetic of the probe: how much to send, and which sites share an access line."""

from __future__ import annotations

import pytest

from geocomm.lab.bench.link_probe import access_limits, next_bytes, rank_pairs, rate_of


def test_next_bytes_grows_until_the_link_was_filled_long_enough() -> None:
    assert next_bytes(1 << 20, 0.6, 1.0) == 0
    assert next_bytes(1 << 20, 0.4, 1.0) == int((1 << 20) * 2.5)
    assert next_bytes(1 << 20, 0.0, 1.0) == 8 << 20
    assert next_bytes(1 << 30, 0.1, 1.0) == 0


def test_rate_is_that_of_the_middle_of_a_transfer() -> None:
    # Nothing for a second, a slow start, 1 MB/s for ten seconds, a straggler.
    samples = [(float(second), 0.0) for second in range(2)]
    samples += [(2.0, 1e5), (3.0, 2e5)]
    samples += [(3.0 + second, 2e5 + 1e6 * second) for second in range(1, 11)]
    samples += [(16.0, 10.3e6)]
    seconds, rate = rate_of(samples)
    assert seconds == 14.0
    assert rate == pytest.approx(8e6)


def test_rate_of_too_few_samples_is_that_of_all_or_nothing() -> None:
    assert rate_of([(0.0, 5.0), (1.0, 5.0), (2.0, 1e6)]) == (0.0, 0.0)
    assert rate_of([(0.0, 0.0), (1.0, 1e6), (2.0, 2e6)]) == (1.0, 8e6)


def test_rank_pairs_go_as_far_as_both_sites_have_them() -> None:
    found = rank_pairs([[0, 2, 4], [1, 3]], 1, 0, most=4)
    assert [(ranks.sender, ranks.receiver) for ranks in found] == [(1, 0), (3, 2)]
    assert len(rank_pairs([[0, 2, 4], [1, 3]], 1, 0, most=1)) == 1


def test_access_limit_is_of_the_site_that_cannot_send_all_at_once() -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    alone = dict.fromkeys(pairs, 100.0)
    together = alone | {(0, 1): 50.0, (0, 2): 50.0}
    up, down = access_limits(alone, together, 3)
    assert up == [100.0, float("inf"), float("inf")]
    assert down == [float("inf")] * 3


def test_access_limit_is_of_the_site_that_cannot_receive_all_at_once() -> None:
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    alone = dict.fromkeys(pairs, 100.0)
    together = alone | {(other, 3): 60.0 for other in range(3)}
    up, down = access_limits(alone, together, 4)
    assert up == [float("inf")] * 4
    assert down == [float("inf")] * 3 + [180.0]


def test_links_that_carry_the_same_together_have_no_limit() -> None:
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    alone = dict.fromkeys(pairs, 100.0)
    assert access_limits(alone, dict.fromkeys(pairs, 95.0), 3) == ([float("inf")] * 3, [float("inf")] * 3)
