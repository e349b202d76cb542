"""The table of codec facts: true of the codecs, and the one that the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import geocomm
from geocomm.codecs.codec_facts import FACTS, error_text, facts_of
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.lab.bench.wan_bench import max_nmse

ROOT = Path(__file__).resolve().parents[3]
MEASURED = [ROOT / "benchmarks" / "results" / name for name in ("codec-ratios.md", "loco.md")]
_ROW = re.compile(r"^\| `([^`]+)` \|.*×.*\|$", re.MULTILINE)
_CELL = re.compile(r"×[\d.]+, [\d.e-]+")


@pytest.mark.parametrize("codec", FACTS)
def test_facts_of_normal_numbers_are_those_of_the_codec(codec: str) -> None:
    facts = FACTS[codec]
    values = torch.randn(1 << 20, generator=torch.Generator().manual_seed(7))
    residual = torch.zeros_like(values) if facts.needs_feedback else None
    payload = geocomm.compress(values, codec, residual)
    lost = (geocomm.decompress(payload) - values).double().square().sum() / values.double().square().sum()
    assert values.nbytes / payload.numel() == pytest.approx(facts.normal.ratio, rel=0.02)
    assert float(lost) == pytest.approx(facts.normal.nmse, rel=0.05)


def test_sums_are_verified_by_no_less_than_what_the_backend_loses_of_normal_numbers() -> None:
    for facts in FACTS.values():
        if facts.sum_nmse is not None:
            assert facts.sum_nmse >= facts.normal.nmse * facts.backend_nmse / (facts.worst_nmse or 1)


def test_facts_of_another_spelling_are_found() -> None:
    assert facts_of("bitplanes:step=1") is FACTS["small"]
    assert facts_of("int8:block=128") is FACTS["int8"]
    assert facts_of("int4:round=stochastic+zstd") is FACTS["int4"]
    assert facts_of("deadzone:step=2") is None
    with pytest.raises(InvalidArgumentError, match="int9"):
        facts_of("int9")


def test_stochastic_rounding_of_the_backend_counts() -> None:
    assert FACTS["int4"].backend_nmse == 2 * FACTS["int4"].worst_nmse
    assert FACTS["int8"].backend_nmse == FACTS["int8"].worst_nmse


def test_bench_takes_codecs_whose_sums_have_a_bound() -> None:
    assert max_nmse("none") == 0
    assert max_nmse("int8:block=128") == FACTS["int8"].sum_nmse
    for codec in ("tiny", "int9"):
        with pytest.raises(BadInput, match=codec):
            max_nmse(codec)


def test_facts_are_what_was_measured() -> None:
    rows = _ROW.finditer("\n".join(report.read_text(encoding="utf-8") for report in MEASURED))
    measured = {row[1]: cells for row in rows if (cells := _CELL.findall(row[0]))}
    assert measured == {name: [*map(str, facts.measured)] for name, facts in FACTS.items() if name in measured}
    assert FACTS.keys() - measured.keys() == {"none", "fp16"}


def preset_rows() -> dict[str, str]:
    """How the documentation's table of presets begins its rows: name, codec, ratios and errors of normal / gradient."""
    rows: dict[str, str] = {}
    for preset, codec in geocomm.codec_presets().items():
        measured = FACTS[preset].measured[:2]
        ratios = " / ".join(f"×{one.ratio:.2f}" for one in measured)
        errors = " / ".join(error_text(one.nmse) for one in measured)
        rows[preset] = f"| `{preset}` | `{codec}` | {ratios} | {errors} |"
    return rows


def test_documentation_shows_the_facts_of_the_presets() -> None:
    shown = (ROOT / "docs" / "how-to" / "choose-a-codec.md").read_text(encoding="utf-8")
    assert [row for row in preset_rows().values() if f"\n{row}" not in shown] == []
