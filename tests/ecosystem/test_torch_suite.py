"""A sample of PyTorch's own distributed tests over two sites; `make ecosystem` runs all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_torch_suite import read, run_layout

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(280)]

SAMPLE = [
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_to_all_single_unequal_split",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_isend_torch_profiler",
    "test_reduce_min",
    "test_scatter_object_list",
    "test_send_recv_with_tag_autograd_profiler",
]


def test_torch_suite_sample_passes_over_sites(tmp_path: Path) -> None:
    layout = "2+1"
    assert run_layout(layout, tmp_path, 200, SAMPLE, again=False) == 0
    records = read(tmp_path, layout)
    assert {name: record["reason"] for name, record in records.items() if record["outcome"] != "passed"} == {}
    assert sorted(records) == sorted(SAMPLE)
