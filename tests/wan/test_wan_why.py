"""`geocomm why` on real runs that something slows down."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanControl, find_control
from support.wan_support import emulate, geocomm, require_wan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

START = (
    'exec "$PYTHON" -m geocomm run --hub "$MASTER_ADDR:$MASTER_PORT" --telemetry "$FOLDER" -- '
    '--nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node 1 "$PROGRAM"'
)
START_ELASTIC = (
    'exec "$PYTHON" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" --run-dir "$FOLDER/$GEOCOMM_SITE" '
    '--wait-for site0,site1 -- --nproc-per-node 1 "$PROGRAM"'
)
STEPS = 15
OUTAGE_S = 6.0
LOCAL_S = 20.0


def said_of(folder: Path, fault: str, port: int, rate_bps: float = 400e6, *, elastic: bool = False) -> dict[str, Any]:
    """What is said of a run of two sites with a fault (`_train`)."""
    require_wan()
    topology = EmulatedWan.uniform(2, EmulatedLink(rate_bps=rate_bps, delay_s=0.01))
    with site_keys(topology.sites, None, secure=True) as keys:
        environment = site_environment(os.environ, keys) | {
            "PYTHON": sys.executable,
            "PROGRAM": __file__,
            "FOLDER": str(folder),
            "FAULT": fault,
            "OMP_NUM_THREADS": "1",
        }
        outcome = emulate(
            topology,
            ["/bin/sh", "-c", START_ELASTIC if elastic else START],
            timeout_s=240,
            environment=environment,
            keys=keys,
            master_port=port,
        )
    assert outcome.status == 0, outcome.stderr
    asked = geocomm("why", str(folder / "site0" if elastic else folder), "--json")
    answer, problem = asked.communicate()
    assert asked.returncode == 0, problem
    return json.loads(answer)


def test_a_line_that_is_too_slow_is_named_with_what_it_costs(tmp_path: Path) -> None:
    said = said_of(tmp_path, "none", 30540, 40e6)
    assert said["ranks"] == said["of_ranks"] == 2
    assert said["steps"] == STEPS - 1  # the first one is warm-up
    verdict = said["verdicts"][0]
    assert (verdict["cause"], verdict["where"]) == ("bandwidth", "site0 - site1")
    assert 0.3 < verdict["share"] < 1
    assert verdict["saved_seconds"] < said["step_seconds"] - 0.05  # what the program computes is not the line's


@pytest.mark.slow
def test_two_pauses_of_a_site_are_named_by_what_they_cost(tmp_path: Path) -> None:
    verdict = said_of(tmp_path, "pauses", 30541)["verdicts"][0]
    assert (verdict["cause"], verdict["where"]) == ("pauses", "site1")
    assert verdict["saved_seconds"] * (STEPS - 1) > 3.5


def test_an_outage_is_named(tmp_path: Path) -> None:
    verdict = said_of(tmp_path, "outage", 30542)["verdicts"][0]
    assert (verdict["cause"], verdict["where"]) == ("outage", "site0 - site1")
    assert verdict["saved_seconds"] * (STEPS - 1) > 0.7 * OUTAGE_S


@pytest.mark.slow
def test_the_slow_site_of_an_elastic_run_is_named_though_nobody_waits_for_it(tmp_path: Path) -> None:
    said = said_of(tmp_path, "slow site", 30543, elastic=True)
    assert said["steps"] > STEPS
    verdict = said["verdicts"][0]
    assert (verdict["cause"], verdict["where"]) == ("straggler site", "site1")
    assert "more tokens" in verdict["text"]


def _cut_line() -> None:
    wan = WanControl(find_control())
    wan.set_link("site0", "site1", up=False)
    time.sleep(OUTAGE_S)
    wan.set_link("site0", "site1", up=True)


def _train() -> None:
    import torch
    import torch.distributed as dist

    from geocomm import report_step
    from geocomm.core.typed_torch import all_reduce

    fault, site = os.environ["FAULT"], os.environ["GEOCOMM_SITE"]
    dist.init_process_group("geocomm")
    if fault == "slow site":
        _train_locally(0.6 if site == "site1" else 0.1)
    tensor = torch.ones(1 << 18)
    for step in range(STEPS if fault != "slow site" else 0):
        time.sleep(0.05)
        if fault == "pauses" and site == "site1" and step in (5, 10):
            time.sleep(2)
        if fault == "outage" and site == "site0" and step == 5:
            threading.Thread(target=_cut_line).start()
        all_reduce(tensor)
        tensor /= dist.get_world_size()
        report_step(step + 1)
    dist.destroy_process_group()


def _train_locally(step_s: float) -> None:
    import torch

    from geocomm import LocalSettings, local_steps, report_step

    model = torch.nn.Linear(8, 8)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    outer = local_steps(model, optimizer, LocalSettings(every=10))
    until = time.monotonic() + LOCAL_S
    while time.monotonic() < until:
        time.sleep(step_s)
        outer.count_tokens(100)
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        report_step(outer.run_step, tokens=100)
    outer.finish()


if __name__ == "__main__":
    _train()
