"""Local steps over an emulated WAN with TLS: a line that is down holds up no step, and the rounds catch up; on a line
that is slow there are fewer of them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.wan_support import geocomm, require_wan, warm_program

pytestmark = pytest.mark.timeout(180)

DOWN_S = 5.0


def run_sites(program: str, *line: str) -> list[dict[str, Any]]:
    """What the two sites say at the end."""
    require_wan()
    run = geocomm("wan", "run", "--secure", *line, "--", *warm_program(__file__, program))
    stdout, stderr = run.communicate(timeout=160)
    assert run.returncode == 0, stderr
    found = [json.loads(line.split("] ", 1)[1]) for line in stdout.splitlines() if '"result"' in line]
    assert len(found) == 2, stdout
    assert found[0]["result"] == found[1]["result"]
    return found


def test_line_that_is_down_holds_up_no_step_and_rounds_catch_up() -> None:
    for site in run_sites("cut_line", "--rtt", "40ms", "--rate", "100mbit"):
        assert site["steps_while_down"] > site["every"]  # a step that waited would have stopped at the next round
        assert site["held_back"] > 0
        assert site["rounds"] > site["rounds_when_down"] + 4


@pytest.mark.slow
def test_slow_line_gets_fewer_rounds_after_the_same_round_at_every_site() -> None:
    one, other = run_sites("slow_line", "--rtt", "40ms", "--rate", "5mbit")
    assert one["every"] == other["every"]
    assert 30 < one["every"] <= 300  # a delta takes about 0.4 s, and 30 steps little more than 0.15 s


def cut_line(node: int, step: Callable[[], None], outer: Any) -> dict[str, Any]:
    """The first site takes the line down and up again in the middle."""
    import torch.distributed as dist

    from geocomm.lab.emulator.emulated_wan import WanControl

    for _ in range(50):
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
    for _ in range(100):
        step()
    return {"rounds_when_down": rounds_when_down, "steps_while_down": steps_while_down}


def slow_line(node: int, step: Callable[[], None], outer: Any) -> dict[str, Any]:
    """Steps until a few rounds were made."""
    while outer.stats()["rounds"] < 6:
        step()
    return {}


PROGRAMS: dict[str, tuple[Callable[..., dict[str, Any]], int, float, dict[str, Any]]] = {
    "cut_line": (cut_line, 256, 0.02, {"every": 10, "fragments": 2, "overlap": 3}),
    "slow_line": (slow_line, 4096, 0.005, {"fragments": 1}),
}
"""By name: what a site does, the width of its model, the least seconds of a step, the settings of local steps."""


def site_program(name: str) -> None:
    """At each site."""
    import torch
    import torch.distributed as dist

    import geocomm as library
    from support.harness import hash_of

    program, width, step_s, settings = PROGRAMS[name]
    torch.set_num_threads(1)
    node = int(os.environ["NODE_RANK"])
    dist.init_process_group(
        "geocomm",
        init_method=f"geocomm://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rank=node,
        world_size=int(os.environ["NNODES"]),
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.Tanh(), torch.nn.Linear(width, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    outer = library.local_steps(model, optimizer, library.LocalSettings(**settings))
    torch.manual_seed(1 + node)

    def step() -> None:
        inputs = torch.randn(16, 64)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs.flip(1)).backward()
        optimizer.step()
        time.sleep(step_s)

    told = program(node, step, outer)
    outer.finish()
    stats = {name: outer.stats()[name] for name in ("every", "rounds", "held_back")}
    print(json.dumps({"result": hash_of(*model.parameters()), **stats, **told}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program(sys.argv[1])
