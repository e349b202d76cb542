"""A site of an elastic run trains under each framework as if it were alone: two ranks beside a site of one."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from elastic_programs import CASES, ROUNDS

from support.elastic_commands import supervised

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("elastic_programs.py")
PACKAGES = {"Accelerate": "accelerate", "Trainer": "transformers", "Lightning": "lightning"}


@pytest.mark.parametrize("case", CASES)
def test_framework_trains_inside_a_site_of_an_elastic_run(tmp_path: Path, case: str) -> None:
    pytest.importorskip("deepspeed" if case.startswith("ZeRO") else PACKAGES.get(case, "torch"))
    ranks = {"a": 4 if case == "HSDP" else 2, "b": 1}
    with supervised(tmp_path, "ab", together=True) as run:
        variables = {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        started = [
            run.start(site, "--nproc-per-node", str(count), str(PROGRAM), case, str(tmp_path), environment=variables)
            for site, count in ranks.items()
        ]
        run.until(lambda: all(site.poll() is not None for site in started), "both sites have left", 300)
        text = "\n".join(site.text() for site in run.sites.values())
        assert [site.returncode for site in started] == [0, 0], text
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


def _told(folder: Path, site: str, rank: int) -> dict[str, Any]:
    return json.loads((folder / f"{site}.{rank}.json").read_text())
