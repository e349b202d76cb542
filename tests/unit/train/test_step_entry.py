"""The entry of a step: times, speeds and counters, in total and by site."""

from __future__ import annotations

import dataclasses

import pytest

from geocomm.train.runs.step_entry import RunFacts, step_entry

RUN = RunFacts(
    site="a",
    ranks_of_site={"a": 2, "b": 1},
    tokens_per_rank=100,
    backend="geocomm",
    codec="int8",
    counters=("wire_bytes_sent",),
    times=("decode_seconds", "exposed_seconds"),
    counts=True,
)
ROWS = {
    "a": {
        "step_seconds": 4.0,
        "input_seconds": 0.6,
        "checkpoint_seconds": 6.0,
        "decode_seconds": 0.2,
        "exposed_seconds": 1.0,
        "wire_bytes_sent": 30.0,
    },
    "b": {
        "step_seconds": 1.0,
        "input_seconds": 0.3,
        "checkpoint_seconds": 3.0,
        "decode_seconds": 0.4,
        "exposed_seconds": 0.5,
        "wire_bytes_sent": 12.0,
    },
}


def test_entry_has_means_over_ranks_and_sums_of_counters() -> None:
    entry = step_entry(RUN, {"step": 7, "loss": 2.5}, 2.0, ROWS)
    assert (entry["step"], entry["loss"]) == (7, 2.5)
    assert (entry["tokens"], entry["tokens_per_second"]) == (300, 150)
    assert (entry["wire_bytes_sent"], entry["exposed_seconds"]) == (42, 0.5)
    assert (entry["input_seconds"], entry["decode_seconds"]) == (pytest.approx(0.3), pytest.approx(0.2))
    assert entry["checkpoint_seconds"] == 3
    assert entry["sites"]["a"] == {
        "ranks": 2,
        "tokens": 200,
        "step_seconds": 2.0,
        "tokens_per_second": 100,
        "input_seconds": 0.3,
        "checkpoint_seconds": 3.0,
        "decode_seconds": 0.1,
        "wire_bytes_sent": 30,
        "exposed_seconds": 0.5,
    }
    assert entry["sites"]["b"]["tokens_per_second"] == 100


def test_entry_of_a_backend_without_counters_has_none_in_their_place() -> None:
    entry = step_entry(dataclasses.replace(RUN, backend="gloo", codec=None, counts=False), {"step": 1}, 2.0, ROWS)
    for row in (entry, *entry["sites"].values()):
        assert row["wire_bytes_sent"] is None
        assert row["exposed_seconds"] is None
    assert entry["tokens_per_second"] == 150
