"""Local steps over an emulated WAN with TLS: a line that is down holds up no step, and the rounds catch up."""

from __future__ import annotations

import json
import os
import sys
import time

import pytest

from support.wan_support import geocomm, require_wan

pytestmark = pytest.mark.timeout(180)

DOWN_S = 5.0


def test_line_that_is_down_holds_up_no_step_and_rounds_catch_up() -> None:
    require_wan()
    run = geocomm("wan", "run", "--secure", "--rtt", "40ms", "--rate", "100mbit", "--", sys.executable, __file__)
    stdout, stderr = run.communicate(timeout=160)
    assert run.returncode == 0, stderr
    found = [json.loads(line.split("] ", 1)[1]) for line in stdout.splitlines() if '"result"' in line]
    assert len(found) == 2, stdout
    for site in found:
        assert site["steps_while_down"] > site["every"]  # a step that waited would have stopped at the next round
        assert site["held_back"] > 0
        assert site["rounds"] > site["rounds_when_down"] + 4
    assert found[0]["result"] == found[1]["result"]


def site_program() -> None:
    """At each site: steps of 20 ms; the first site takes the line down and up again in the middle."""
    import torch
    import torch.distributed as dist

    import geocomm as library
    from geocomm.emulator.emulated_wan import WanControl
    from support.harness import hash_of

    torch.set_num_threads(1)
    node = int(os.environ["NODE_RANK"])
    dist.init_process_group(
        "geocomm",
        init_method=f"geocomm://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rank=node,
        world_size=int(os.environ["NNODES"]),
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    every = 10
    outer = library.local_steps(model, optimizer, every=every, fragments=2, overlap=3)
    torch.manual_seed(1 + node)

    def step() -> None:
        inputs = torch.randn(16, 64)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs.flip(1)).backward()
        optimizer.step()
        time.sleep(0.02)

    for _ in range(5 * every):
        step()
    dist.barrier()
    control = WanControl(os.environ["GEOCOMM_WAN_CONTROL"])
    if node == 0:
        control.set_link("site0", "site1", up=False)
    rounds_when_down, steps_while_down = outer.stats()["rounds"], 0
    until = time.monotonic() + DOWN_S
    while time.monotonic() < until:
        step()
        steps_while_down += 1
    if node == 0:
        control.set_link("site0", "site1", up=True)
    for _ in range(10 * every):
        step()
    outer.finish()
    stats = outer.stats()
    print(
        json.dumps(
            {
                "result": hash_of(*model.parameters()),
                "every": every,
                "rounds": stats["rounds"],
                "rounds_when_down": rounds_when_down,
                "held_back": stats["held_back"],
                "steps_while_down": steps_while_down,
            }
        ),
        flush=True,
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program()
