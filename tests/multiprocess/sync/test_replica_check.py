"""check_replicas over real ranks: silence where all is well, and the tensor and the ranks where not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from support.harness import Outcome, Ranks, ranks_fixture

ranks = ranks_fixture({"2+1": ["a", "a", "b"]})


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(9, 7), nn.BatchNorm1d(7), nn.Linear(7, 5).bfloat16())
    optimizer = torch.optim.AdamW(model[0].parameters())
    model[0](torch.ones(2, 9)).sum().backward()
    optimizer.step()
    return model, optimizer


def _check(change: str, changed_rank: int, group_of: list[int] | None = None) -> str | None:
    import geocomm

    model, optimizer = _trained()
    with torch.no_grad():
        if dist.get_rank() == changed_rank:
            if change == "weight":
                model[2].weight.view(torch.int16)[1, 2] ^= 1
                model[2].bias += 1
            elif change == "nan":
                model[0].bias[0] = float("nan")
            elif change == "moment":
                optimizer.state[model[0].weight]["exp_avg"][0, 0] += 1
            elif change == "buffer":
                model[1].running_mean += 1
            elif change == "layer":
                model.append(nn.Linear(2, 2))
        if change == "nan everywhere":
            model[0].bias[0] = float("nan")
    group = dist.new_group(group_of) if group_of else None
    if group_of is None or dist.get_rank() in group_of:
        return str(geocomm.check_replicas(model, optimizer, buffers=change in ("buffer", "none"), group=group))
    return None


def _found(outcomes: list[Outcome]) -> str:
    failures = [outcome.require("ReplicaMismatchError") for outcome in outcomes]
    assert len({failure.message for failure in failures}) == 1
    assert failures[0].attributes["code"] == "ReplicaMismatch"
    return failures[0].message


@pytest.mark.parametrize("change", ["none", "nan everywhere"])
def test_equal_replicas_pass(ranks: Ranks, change: str) -> None:
    said = ranks.run(_check, change, -1)
    buffers = "3 buffers, " if change == "none" else ""
    assert all(
        one.startswith(f"replicas are equal: 6 parameters, {buffers}6 values of the optimizer (") for one in said
    )
    assert all(one.endswith(" MB) on 3 ranks") for one in said)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("weight", "2.weight"),
        ("nan", "0.bias"),
        ("moment", "optimizer: 0.weight: exp_avg"),
        ("buffer", "1.running_mean"),
    ],
)
def test_first_tensor_that_differs_and_its_rank_are_named_on_all_ranks(ranks: Ranks, change: str, name: str) -> None:
    message = _found(ranks.outcomes(_check, change, 1))
    assert f"{name} differs on rank 1 (ranks 0, 2 agree)" in message


def test_model_with_other_tensors_is_told_from_one_with_other_values(ranks: Ranks) -> None:
    assert "rank 2: 3.weight" in _found(ranks.outcomes(_check, "layer", 2))


def test_only_the_ranks_of_the_group_are_compared(ranks: Ranks) -> None:
    ranks.run(_check, "weight", 0, [1, 2])
    outcomes = ranks.outcomes(_check, "weight", 2, [1, 2])
    assert outcomes[0].failure is None
    message = _found(outcomes[1:])
    assert "2.weight differs on rank 2 (no two ranks agree)" in message


def _check_dtensor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    import geocomm

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(distribute_tensor(model.weight, mesh, [Shard(0)]))
    geocomm.check_replicas(model)


def test_sharded_parameters_are_refused(ranks: Ranks) -> None:
    for outcome in ranks.outcomes(_check_dtensor):
        assert "weight is a DTensor" in outcome.require("UnsupportedError").message
