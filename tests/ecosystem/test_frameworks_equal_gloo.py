"""Accelerate, Hugging Face's Trainer and Lightning over two sites learn what they learn over Gloo."""

from __future__ import annotations

from pathlib import Path

import framework_cases as cases
import pytest
from worlds import Worlds, assert_equal

pytestmark = pytest.mark.slow


def test_accelerate_over_sites_equals_gloo_bit_for_bit(two: Worlds) -> None:
    pytest.importorskip("accelerate")
    assert_equal(*two.both(cases.accelerate))


def test_trainer_over_sites_equals_gloo_bit_for_bit(two: Worlds, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    assert_equal(*two.both(cases.trainer, str(tmp_path)))


def test_lightning_over_sites_equals_gloo_bit_for_bit(two: Worlds) -> None:
    pytest.importorskip("lightning")
    assert_equal(*two.both(cases.lightning))


def test_lightning_metrics_synchronized_over_sites_equal_gloo(two: Worlds) -> None:
    pytest.importorskip("lightning")
    assert_equal(*two.both(cases.lightning_metrics))
