"""A sample of PyTorch's own distributed tests over two sites; `make ecosystem` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_torch_suite import read, run_layout

# The harness of the suite is what is looked at: `make ecosystem` has its results.
pytestmark = [pytest.mark.timeout(280), pytest.mark.slow]

SAMPLE = [
    "test_DistributedDataParallelCPU",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_to_all_single_unequal_split",
    "test_batch_isend_irecv_gloo_tags",
]


def test_torch_suite_sample_passes_over_sites(tmp_path: Path) -> None:
    layout = "2+1"
    assert run_layout(layout, tmp_path, 200, SAMPLE, again=False) == 0
    records = read(tmp_path, layout)
    assert {name: record["reason"] for name, record in records.items() if record["outcome"] != "passed"} == {}
    assert sorted(records) == sorted(SAMPLE)
