"""When error feedback has to fall back, and to what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

import geocomm
from geocomm.sync.gradients.quality_guard import QualityGuard, finer_codec


def simulate(codec: str, steps: int, gradient_of_step: object, window: int = 20) -> list[str]:
    """The guard's verdicts on a real codec with error feedback."""
    guard, residual = QualityGuard(window), torch.zeros(20_000)
    found = []
    sums = [0.0, 0.0, 0.0]
    for step in range(steps):
        gradient = gradient_of_step(step)
        given = gradient + residual
        sent = geocomm.decompress(geocomm.compress(gradient, codec, residual))
        sums = [a + float(b.double().square().sum()) for a, b in zip(sums, (residual, given, sent), strict=True)]
        if (step + 1) % window == 0:
            if reason := guard.judge(*sums, 0):
                found.append(reason)
            sums = [0.0, 0.0, 0.0]
    return found


@pytest.mark.parametrize("codec", ["tiny", "small", "balanced", "int4", "int8", "bit1", "topk:k=41", "loco"])
@pytest.mark.parametrize("kind", ["noise", "constant", "shrinking"])
def test_feedback_that_works_raises_no_alarm(codec: str, kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    constant = torch.randn(20_000, generator=generator)

    def gradient(step: int) -> torch.Tensor:
        if kind == "noise":
            return torch.randn(20_000, generator=generator)
        return constant if kind == "constant" else constant * 0.99**step

    assert simulate(codec, 200, gradient, window=50) == []


def test_residual_that_outgrows_the_gradients_is_found() -> None:
    guard = QualityGuard(10)
    verdicts = [guard.judge(4.0**window, 4.0**window * 2, 1.0, 0) for window in range(6)]
    assert verdicts[:3] == [None] * 3
    assert any("grow" in (verdict or "") for verdict in verdicts[3:5])


def test_residual_that_grows_with_the_gradients_is_not_found() -> None:
    guard = QualityGuard(10)
    assert [guard.judge(4.0 * 4.0**window, 8.0 * 4.0**window, 4.0**window, 0) for window in range(6)] == [None] * 6


def test_codec_that_loses_all_and_residuals_that_are_not_finite_are_found() -> None:
    assert "loses" in QualityGuard(10).judge(5.0, 5.0, 1.0, 0)
    assert "finite" in QualityGuard(10).judge(1.0, 5.0, 1.0, 1)
    assert "finite" in QualityGuard(10).judge(float("nan"), 5.0, 1.0, 0)
    assert QualityGuard(10).judge(0.0, 0.0, 0.0, 0) is None


def test_verdict_forgets_with_the_codec() -> None:
    guard = QualityGuard(10)
    for window in range(3):
        assert guard.judge(4.0**window, 4.0**window * 2, 1.0, 0) is None
    guard.forget()
    assert guard.judge(4.0**3, 4.0**4, 1.0, 0) is None


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class _Judge(QualityGuard):
    """Notes the sums that it judges."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.judged: list[tuple[float, ...]] = []

    def judge(self, *sums: float) -> str | None:
        self.judged.append(sums)
        return super().judge(*sums)


def test_each_window_is_judged_once_by_its_own_sums(alone: dist.ProcessGroup) -> None:
    guard = _Judge(2)

    def step(*sums: float, not_finite: int = 0) -> str | None:
        guard.add(*sums, not_finite)
        guard.exchange_if_due(alone)
        return guard.verdict(ranks=2)

    assert step(1.0, 2.0, 4.0) is None
    assert guard.judged == []  # in the middle of a window
    assert step(2.0, 3.0, 4.0) is None
    assert guard.judged == [(3.0, 5.0, 4.0, 0)]  # the squares of the mean gradient are counted by both ranks
    assert step(8.0, 9.0, 2.0) is None
    assert "finite" in step(float("inf"), float("inf"), 2.0, not_finite=1)
    assert guard.judged[1:] == [(8.0, 9.0, 2.0, 1)]
    assert guard.verdict(ranks=2) is None
    assert len(guard.judged) == 2


def test_window_begins_anew_with_the_codec(alone: dist.ProcessGroup) -> None:
    guard = _Judge(2)
    guard.add(100.0, 100.0, 1.0, 0)
    guard.forget()
    for _ in range(2):
        assert guard.judged == []
        guard.add(1.0, 2.0, 4.0, 0)
        guard.exchange_if_due(alone)
        guard.verdict(ranks=1)
    assert guard.judged == [(2.0, 4.0, 8.0, 0)]


def test_ladder_ends_in_an_exact_codec() -> None:
    assert [finer_codec(c) for c in ("tiny", "small", "balanced", "int4", "int8", "lossless", "none")] == [
        "small",
        "balanced",
        "int4",
        "int8",
        "lossless",
        None,
        None,
    ]


@pytest.mark.parametrize(
    "codec", ["topk:k=9", "loco", "bit1", "bit2+zstd", "deadzone:step=2", "bitplanes:step=2", "int4:block=64", "fp16"]
)
def test_codec_without_a_place_on_the_ladder_leads_to_it(codec: str) -> None:
    seen = []
    current: str | None = codec
    while current is not None:
        seen.append(current)
        current = finer_codec(current)
    assert seen[-1] == "lossless"
    assert len(seen) <= 6
