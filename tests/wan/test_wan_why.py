"""`geocomm why` on a real run over a slow line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from geocomm.emulator.emulated_keys import site_environment, site_keys
from geocomm.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, geocomm, require_wan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

START = (
    'exec "$PYTHON" -m geocomm run --hub "$MASTER_ADDR:$MASTER_PORT" --telemetry "$FOLDER" -- '
    '--nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node 1 "$PROGRAM"'
)
STEPS = 15


def test_a_line_that_is_too_slow_is_named_with_what_it_costs(tmp_path: Path) -> None:
    require_wan()
    topology = EmulatedWan.uniform(2, EmulatedLink(rate_bps=40e6, delay_s=0.01))
    with site_keys(topology.sites, None, secure=True) as keys:
        environment = site_environment(os.environ, keys) | {
            "PYTHON": sys.executable,
            "PROGRAM": __file__,
            "FOLDER": str(tmp_path),
            "OMP_NUM_THREADS": "1",
        }
        outcome = emulate(
            topology, ["/bin/sh", "-c", START], timeout_s=240, environment=environment, keys=keys, master_port=30540
        )
    assert outcome.status == 0, outcome.stderr
    asked = geocomm("why", str(tmp_path), "--json")
    answer, problem = asked.communicate(timeout=60)
    assert asked.returncode == 0, problem
    said = json.loads(answer)
    assert said["ranks"] == said["of_ranks"] == 2
    assert said["steps"] == STEPS - 1  # the first one is warm-up
    verdict = said["verdicts"][0]
    assert (verdict["cause"], verdict["where"]) == ("bandwidth", "site0 - site1")
    assert 0.5 < verdict["share"] < 1
    assert verdict["saved_seconds"] < said["step_seconds"] - 0.05  # what the program computes is not the line's


def _train() -> None:
    import time

    import torch
    import torch.distributed as dist

    from geocomm import report_step
    from geocomm.core.typed_torch import all_reduce

    dist.init_process_group("geocomm")
    tensor = torch.ones(1 << 18)
    for step in range(STEPS):
        time.sleep(0.05)
        all_reduce(tensor)
        tensor /= dist.get_world_size()
        report_step(step + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    _train()
