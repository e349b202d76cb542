"""From per-step training to an elastic run, and back, by ordinary checkpoints of torch."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
import torch

from support.elastic_commands import supervised
from support.elastic_upgrade import load, load_distributed, make, save, save_distributed, step
from support.warm_ranks import warm_ranks

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("elastic-training"),
    pytest.mark.slow,
]  # one process to fork from
BEFORE = 60


def loss_over(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> float:
    """The mean loss of some more steps."""
    data = torch.Generator().manual_seed(5)
    return statistics.mean(step(model, optimizer, data) for _ in range(steps))


def test_weights_moments_and_steps_go_over_to_an_elastic_run_and_back(tmp_path: Path) -> None:
    """torch.save at a site of one rank, a distributed checkpoint of shards at a site of two."""
    torch.manual_seed(1)
    model, optimizer = make()
    first = loss_over(model, optimizer, BEFORE // 2)
    before = loss_over(model, optimizer, BEFORE // 2)
    save(tmp_path / "before.pt", model, optimizer, BEFORE)
    save_distributed(tmp_path / "before.dcp", model, optimizer, BEFORE)
    with supervised(tmp_path, "ab", together=True) as run:
        variables = {"OMP_NUM_THREADS": "1"}
        program = ("--no-python", *warm_ranks().command("support.elastic_upgrade"), str(tmp_path))
        started = [
            run.start(site, "--nproc-per-node", str(ranks), *program, environment=variables)
            for site, ranks in (("a", 2), ("b", 1))
        ]
        run.until(lambda: all(site.poll() is not None for site in started), "both sites have left", 200)
        text = "\n".join(site.text() for site in run.sites.values())
        assert [site.returncode for site in started] == [0, 0], text
        assert "other weights" not in text
        assert "other bits" not in text
        assert all(one.step > BEFORE for entry in run.sites["a"].rounds() for one in entry.members)

    at_a, at_b = make(), make()
    steps = [load_distributed(tmp_path / "after-a", *at_a), load(tmp_path / "after-b", *at_b)]
    assert min(steps) > BEFORE
    for model, optimizer in (at_a, at_b):
        assert optimizer.state_dict()["state"][0]["step"] > BEFORE
        assert loss_over(model, optimizer, BEFORE // 2) < before < first
