"""Calls of collectives with bad arguments: refused on the rank that made them, and the group lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.core.errors import InvalidArgumentError
from support import collective_cases
from support.collective_cases import LAYOUTS
from support.harness import Ranks, ranks_fixture

ranks = ranks_fixture(LAYOUTS)


FLOATS = 4


def _floats() -> torch.Tensor:
    return torch.ones(FLOATS)


def _each(tensor: torch.Tensor | None = None) -> list[torch.Tensor]:
    """A tensor for each rank."""
    return [(_floats() if tensor is None else tensor).clone() for _ in range(dist.get_world_size())]


def _freed() -> torch.Tensor:
    tensor = _floats()
    tensor.untyped_storage().resize_(0)
    return tensor


def _as_root(group: Any) -> int:
    """Every rank takes itself for the root: what the root alone gives is checked on each."""
    return int(group.rank())


BAD_CALLS: dict[str, Callable[[Any], Any]] = {
    "broadcast from a root that is not there": lambda group: group.broadcast(_floats(), 1 << 30),
    "broadcast from a negative root": lambda group: group.broadcast(_floats(), -1),
    "broadcast into shared elements": lambda group: dist.broadcast(torch.ones(1).expand(FLOATS), 0),
    "reduce to a root that is not there": lambda group: group.reduce(_floats(), 5),
    "reduce to a negative root": lambda group: group.reduce(_floats(), -1),
    "scatter from a root that is not there": lambda group: group.scatter(_floats(), [], 5),
    "scatter of too few tensors": lambda group: group.scatter(_floats(), [_floats()], _as_root(group)),
    "scatter without a list at the root": lambda group: group.scatter(_floats(), [], _as_root(group)),
    "gather to a root that is not there": lambda group: group.gather([], _floats(), 5),
    "gather into too few tensors": lambda group: group.gather([_floats()], _floats(), _as_root(group)),
    "gather without a list at the root": lambda group: group.gather([], _floats(), _as_root(group)),
    "send to a rank that is not there": lambda group: group.send([_floats()], 99, 0),
    "send to itself": lambda group: group.send([_floats()], group.rank(), 0),
    "send with a negative tag": lambda group: group.send([_floats()], 1 - min(group.rank(), 1), -1),
    "recv from a rank that is not there": lambda group: group.recv([_floats()], 99, 0),
    "recv with a negative tag": lambda group: group.recv([_floats()], 1 - min(group.rank(), 1), -1),
    "recv into shared elements": lambda group: group.recv([torch.ones(1).expand(FLOATS)], 1 - min(group.rank(), 1), 0),
    "recv from any rank with a negative tag": lambda group: group.recv_anysource([_floats()], -1),
    "all_gather into too few tensors": lambda group: group.allgather([[_floats()]], [_floats()]),
    "all_gather into another size": lambda group: group.allgather([_each(torch.ones(FLOATS + 1))], [_floats()]),
    "all_gather into another dtype": lambda group: group.allgather([_each(_floats().int())], [_floats()]),
    "all_gather of a tensor into another size": lambda group: collective_cases.gather_single(
        torch.ones(FLOATS + 1), _floats(), group
    ),
    "all_gather_coalesced into too few lists": lambda group: group.allgather_coalesced(
        [[_floats(), _floats()]], [_floats(), _floats()]
    ),
    "all_gather_coalesced into lists that are too short": lambda group: group.allgather_coalesced(
        [[tensor] for tensor in _each()], [_floats(), _floats()]
    ),
    "several all_gathers into too few tensors": lambda group: group.allgather_into_tensor_coalesced(
        [torch.cat(_each())], [_floats(), _floats()]
    ),
    "several all_gathers into another size": lambda group: group.allgather_into_tensor_coalesced(
        [torch.cat(_each()), _floats()[1:]], [_floats(), _floats()]
    ),
    "reduce_scatter of too few tensors": lambda group: group.reduce_scatter([_floats()], [[_floats()]]),
    "reduce_scatter of a tensor of another size": lambda group: collective_cases.reduce_scatter_single(
        _floats(), torch.ones(FLOATS + 1), group=group
    ),
    "several reduce_scatters of another size": lambda group: group.reduce_scatter_tensor_coalesced(
        [_floats(), _floats()], [torch.cat(_each()), torch.ones(FLOATS + 1)]
    ),
    "all_reduce of freed memory": lambda group: dist.all_reduce(_freed()),
    "all_reduce in place of shared elements": lambda group: dist.all_reduce(torch.ones(1).expand(FLOATS)),
    "all_reduce of several in place of shared elements": lambda group: group.allreduce_coalesced(
        [_floats(), torch.ones(1).expand(FLOATS)]
    ),
    "mean of bools": lambda group: dist.all_reduce(torch.ones(FLOATS, dtype=torch.bool), dist.ReduceOp.AVG),
    "maximum of complex numbers": lambda group: group.allreduce([_floats() * 1j], dist.ReduceOp.MAX),
    "sum of lazily conjugated numbers": lambda group: group._get_backend(torch.device("cpu")).allreduce(
        [(_floats() * 1j).conj()]
    ),
    "scaled sum of integers": lambda group: group.allreduce([_floats().int()], dist._make_nccl_premul_sum(2.0)),
    "all_to_all of too few tensors": lambda group: dist.all_to_all([_floats()], [_floats()]),
    "all_to_all_single of another size": lambda group: dist.all_to_all_single(
        torch.cat(_each()), torch.cat([*_each(), _floats()])
    ),
    "all_to_all_single with splits that do not add up": lambda group: dist.all_to_all_single(
        _floats(), _floats(), [1] * group.size(), [9] * group.size()
    ),
    "all_to_all_single with a negative split": lambda group: dist.all_to_all_single(
        _floats(), _floats(), [FLOATS + 1, -1] + [0] * (group.size() - 2), [FLOATS + 1, -1] + [0] * (group.size() - 2)
    ),
}


def _bad_call(name: str) -> list[Any]:
    group = dist.group.WORLD
    try:
        work = BAD_CALLS[name](group)
        if work is not None:
            work.wait()
    except InvalidArgumentError as error:
        kind = "geocomm" if str(error) else "no message"
    except (RuntimeError, ValueError) as error:
        kind = f"not geocomm's: {error}"
    else:
        kind = "no error"
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return [kind, tensor[0].item()]


@pytest.mark.parametrize("name", BAD_CALLS)
def test_call_with_bad_arguments_is_refused_on_this_rank_and_the_group_lives(ranks: Ranks, name: str) -> None:
    found = ranks.run(_bad_call, name)
    assert found == [["geocomm", float(ranks.size)]] * ranks.size
