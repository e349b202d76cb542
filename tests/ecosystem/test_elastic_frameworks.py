"""A site of an elastic run trains under each framework as if it were alone: two ranks beside a site of one. They read
one data set, of which each sequence counts once."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from elastic_programs import BATCH, CASES, ROUNDS

from geocomm.data.deal_records import DealtSet
from support.dealt_sets import DataSet
from support.elastic_commands import supervised

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("elastic_programs.py")
PACKAGES = {"Accelerate": "accelerate", "Trainer": "transformers", "Lightning": "lightning", "own data": "accelerate"}


@pytest.mark.parametrize("case", CASES)
def test_framework_trains_inside_a_site_of_an_elastic_run(tmp_path: Path, case: str) -> None:
    pytest.importorskip("deepspeed" if case.startswith("ZeRO") else PACKAGES.get(case, "torch"))
    ranks = {"a": 4 if case == "HSDP" else 2, "b": 1}
    data = DataSet(tmp_path / "data", shards=24, of_shard=480)
    with supervised(tmp_path, "ab", together=True) as run:
        if case != "own data":
            run.sites["a"].data = DealtSet(set=data.catalog.url, sequence_length=data.LENGTH)
        variables = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        started = [
            run.start(site, "--nproc-per-node", str(count), str(PROGRAM), case, str(tmp_path), environment=variables)
            for site, count in ranks.items()
        ]
        run.until(lambda: all(site.poll() is not None for site in started), "both sites have left", 300)
        text = "\n".join(site.text() for site in run.sites.values())
        assert [site.returncode for site in started] == [0, 0], text
        state = run.sites["a"].state()
    assert "other bits" not in text
    told = {site: [_told(tmp_path, site, rank) for rank in range(count)] for site, count in ranks.items()}
    for fragment in range(2):
        anchors = [one["anchors"][fragment] for ranks_of_site in told.values() for one in ranks_of_site]
        shortest = min(anchors, key=len)
        assert len(shortest) >= ROUNDS // 2 - 1
        assert all(one[: len(shortest)] == shortest for one in anchors)
    for ranks_of_site in told.values():
        losses = ranks_of_site[0]["losses"]
        assert statistics.mean(losses[-5:]) < 0.8 * losses[0]  # that of the weights that all begin with
    if case != "own data":
        read = {site: _by_position([one["read"] for one in ranks_of_site]) for site, ranks_of_site in told.items()}
        assert all(state.position(site) > BATCH * ROUNDS for site in ranks)
        data.assert_each_counts_once(state, read)


def _told(folder: Path, site: str, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"{site}.{rank}.json").read_text())


def _by_position(read: list[list[int]]) -> dict[int, int]:
    """read: by rank of the site, which take turns with a batch each."""
    found: dict[int, int] = {}
    for rank, numbers in enumerate(read):
        for index, number in enumerate(numbers):
            turn, place = divmod(index, BATCH)
            found[(turn * len(read) + rank) * BATCH + place] = number
    return found
