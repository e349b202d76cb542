"""codec="auto": what is allowed, what is chosen, and that no choice is much slower than none."""

from __future__ import annotations

import itertools

import pytest

from geocomm import Options
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.group.planning.codec_choice import ReduceTime, Speed, candidates, choose, measure, slowest

FAST = Speed(1e-11, 1e-11)


def speeds(codecs: list[str], speed: Speed = FAST) -> dict[str, Speed]:
    return {"none": FAST} | dict.fromkeys(codecs, speed)


def chosen_at(classes: tuple[tuple[int, str], ...], raw_bytes: int) -> str:
    return next((codec for size, codec in reversed(classes) if raw_bytes >= size), "none")


def model(rate_bps: float = 1e9, rtt_s: float = 0.1, sites: int = 2) -> ReduceTime:
    return ReduceTime(Links.uniform([f"s{i}" for i in range(sites)], rate_bps, rtt_s), 1)


def test_candidates_are_what_the_caps_allow() -> None:
    assert candidates(Options(codec="auto")) == ("none", "lossless", "bf16", "int8")
    assert candidates(Options(codec="auto", max_nmse=0.0)) == ("none", "lossless")
    assert candidates(Options(codec="auto", max_nmse=0.05, max_relative_error=0.2)) == (
        "none",
        "lossless",
        "bf16",
        "int8",
        "int4",
    )
    assert candidates(Options(codec="auto", codecs=("balanced",), max_nmse=1.0)) == ("none", "balanced")


@pytest.mark.parametrize("codec", ["int9", "tiny", "int8:block=64", "auto"])
def test_candidates_of_unknown_error_are_refused(codec: str) -> None:
    with pytest.raises(InvalidArgumentError, match=codec) as error:
        candidates(Options(codec="auto", codecs=(codec,)))
    assert "int8" in str(error.value)  # what it may be
    assert "topk" not in str(error.value)  # nor can that be chosen


def test_slow_links_take_the_smallest_codec_and_fast_ones_none() -> None:
    allowed = speeds(["lossless", "int8"], Speed(1e-9, 1e-9))
    slow = choose(model(1e8), allowed, 65536)
    assert chosen_at(slow, 64 << 20) == "int8"
    assert choose(model(1e12, 1e-5), allowed, 65536) == ()


def test_small_reductions_wait_for_latency_and_stay_exact() -> None:
    classes = choose(model(1e9, 0.3), speeds(["int8"], Speed(1e-9, 1e-9)), 65536)
    assert chosen_at(classes, 65536) == "none"
    assert chosen_at(classes, 256 << 20) == "int8"


def test_a_slow_coder_is_not_chosen() -> None:
    allowed = speeds(["int8"]) | {"small": Speed(1e-6, 1e-6)}
    assert {codec for _, codec in choose(model(1e8), allowed, 65536)} == {"int8"}


def test_of_equally_fast_codecs_the_one_that_loses_least_is_chosen() -> None:
    # Coding is what takes time, alike for both, so the smaller result gains nothing.
    allowed = {"none": Speed(1e-7, 1e-7), "int8": Speed(1e-8, 1e-8), "int4": Speed(1e-8, 1e-8)}
    assert {codec for _, codec in choose(model(1e9, 0.001), allowed, 65536)} == {"int8"}


@pytest.mark.parametrize(("sites", "encoded", "decoded"), [(2, 1.0, 2.0), (4, 1.25, 2.0)])
@pytest.mark.parametrize(("part_mib", "exposed_mib"), [(32, 1.0), (2, 0.5)])
def test_time_on_links_that_cost_nothing_is_that_of_coding(
    sites: int, encoded: float, decoded: float, part_mib: int, exposed_mib: float
) -> None:
    """Two sites code all for each other; of more, each sums a share for all."""
    ranks = 2
    time = ReduceTime(Links.uniform([f"s{i}" for i in range(sites)], 1e15, 0.0), ranks)
    for speed, passes in ((Speed(1e-9, 0.0), encoded), (Speed(0.0, 1e-9), decoded)):
        expected = 1e-9 * (passes * part_mib + exposed_mib) * (1 << 20)
        assert time.seconds(ranks * part_mib << 20, "int8", speed) == pytest.approx(expected, rel=1e-3)


class _GainsUntil(ReduceTime):
    """In which int8 takes half of the time up to a size, and twice the time above it."""

    def __init__(self, most_bytes: float) -> None:
        super().__init__(Links.uniform(["a", "b"], 1e9, 0.1), 1)
        self._most_bytes = most_bytes

    def seconds(self, raw_bytes: float, codec: str, speed: Speed) -> float:
        if codec == "none":
            return raw_bytes
        return raw_bytes / 2 if raw_bytes <= self._most_bytes else raw_bytes * 2


@pytest.mark.parametrize(
    ("most_bytes", "classes"),
    [
        (1 << 17, ((1 << 16, "int8"), (1 << 17, "none"))),
        ((1 << 17) - 1, ()),
        (1 << 18, ((1 << 16, "int8"), (1 << 18, "none"))),
    ],
)
def test_class_of_sizes_is_compressed_where_that_gains_up_to_its_end(
    most_bytes: int, classes: tuple[tuple[int, str], ...]
) -> None:
    assert choose(_GainsUntil(most_bytes), speeds(["int8"]), 1 << 16) == classes


@pytest.mark.parametrize("sites", [2, 3, 5])
def test_no_choice_is_over_3_percent_slower_than_none_at_any_size_of_its_class(sites: int) -> None:
    for rate, rtt, coding in itertools.product((1e7, 1e8, 1e9, 1e10), (0.001, 0.1), (1e-11, 1e-9, 1e-8)):
        time = model(rate, rtt, sites)
        allowed = speeds(["lossless", "int8", "small"], Speed(coding, coding))
        for size in (1 << power for power in range(16, 31)):
            codec = chosen_at(choose(time, allowed, 65536), size)
            for raw in (size, 1.2 * size, 1.41 * size, 1.7 * size):
                exact = time.seconds(raw, "none", FAST)
                assert time.seconds(raw, codec, allowed[codec]) <= 1.04 * exact, (rate, rtt, coding, size, raw)


def test_measured_speeds_are_times_of_this_machine() -> None:
    measured = measure(("none", "int8"), 2)
    for encode, decode in measured.values():
        assert 1e-12 < encode < 1e-6
        assert 1e-12 < decode < 1e-6
    assert measure(("none", "int8"), 2) is measured


def test_the_slowest_rank_counts() -> None:
    ranks = [{"int8": (1.0, 5.0)}, {"int8": (2.0, 4.0)}]
    assert slowest(ranks) == {"int8": Speed(2.0, 5.0)}
