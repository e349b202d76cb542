"""The benchmark over a real emulated link, small."""

from __future__ import annotations

import pytest
from bench_wan import Scenario, WithTls

from geocomm.lab.bench.wan_bench import EXACT, GLOO, GLOO_SLICED, BenchError, Effort, bench_link, bench_one_site
from geocomm.lab.emulator.emulated_links import EmulatedLink
from support.wan_support import require_wan

SIZE_BYTES = 1 << 20
QUICK = Effort(repeats=2, warmup=1, pause_s=0.05)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_bench_link_verifies_and_counts_bytes_of_every_case() -> None:
    require_wan()
    cases = [EXACT, "int8", GLOO, GLOO_SLICED]
    rows = bench_link(EmulatedLink(rate_bps=4e8, delay_s=0.01), cases, [SIZE_BYTES], effort=QUICK)
    by_case = {row.case: row for row in rows}
    assert list(by_case) == cases
    for row in rows:
        assert row.floor_s is not None
        assert min(row.times_s) >= (0.01 if row.case == "int8" else row.floor_s)
        assert row.wire_bytes is not None
        assert row.descriptors > 10
    assert SIZE_BYTES < by_case[EXACT].wire_bytes < 1.3 * SIZE_BYTES
    assert SIZE_BYTES / 4 < by_case["int8"].wire_bytes < 0.4 * SIZE_BYTES
    assert by_case[EXACT].nmse == by_case[GLOO].nmse == 0
    assert 0 < by_case["int8"].nmse < 1e-4


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_bench_link_of_two_ranks_at_each_site_counts_them_all() -> None:
    require_wan()
    link = EmulatedLink(rate_bps=4e8, delay_s=0.01)
    (row,) = bench_link(link, [EXACT], [SIZE_BYTES], ranks_per_site=2, effort=QUICK)
    assert (row.sites, row.ranks_per_site) == (2, 2)
    assert row.wire_bytes is not None
    assert SIZE_BYTES < row.wire_bytes < 1.3 * SIZE_BYTES  # the site's sum crosses once, whatever its ranks


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_benchmark_of_tls_measures_the_same_in_the_clear_first() -> None:
    require_wan()
    scenario = Scenario(EmulatedLink(rate_bps=4e8, delay_s=0.01), (EXACT,), size_bytes=SIZE_BYTES)
    rows = WithTls(scenario).measure(Effort(repeats=1, warmup=1, pause_s=0.05))
    assert [(row.case, row.encrypted, row.nmse) for row in rows] == [(EXACT, False, 0.0), (EXACT, True, 0.0)]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_bench_link_caps_geocomm_and_not_gloo() -> None:
    require_wan()
    link = EmulatedLink(rate_bps=4e8, delay_s=0.01)
    capped, gloo = bench_link(link, [EXACT, GLOO], [4 * SIZE_BYTES], effort=QUICK, pacing=0.25)
    assert (capped.pacing, gloo.pacing) == (0.25, None)
    assert min(capped.times_s) > 3 * 4 * SIZE_BYTES * 8 / link.rate_bps


@pytest.mark.timeout(180)
def test_bench_one_site_pairs_geocomm_with_gloo() -> None:
    rows = bench_one_site([SIZE_BYTES], effort=QUICK)
    assert {row.case for row in rows} == {EXACT, GLOO}
    ours = next(row for row in rows if row.case == EXACT)
    assert ours.floor_s is None
    assert ours.ratio is not None
    assert ours.ratio > 0


@pytest.mark.slow
def test_bench_link_worker_that_fails_raises_with_its_output(monkeypatch: pytest.MonkeyPatch) -> None:
    require_wan()
    monkeypatch.setenv("GEOCOMM_STREAMS", "no number")
    with pytest.raises(BenchError, match="GEOCOMM_STREAMS"):
        bench_link(EmulatedLink(rate_bps=1e9, delay_s=0.005), [EXACT], [SIZE_BYTES], effort=QUICK)
