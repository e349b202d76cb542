"""torch.compile of a DDP step and of functions with collectives in them: as without it, over sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from support.harness import Ranks, hash_of, ranks_fixture

ranks = ranks_fixture({"2+1": ["a", "a", "b"]}, time_limit=120)

STEPS = 3


class Net(nn.Module):
    """Several buckets: the compiler cuts the graph at them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in ((40, 600), (600, 600), (600, 8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


def _train(backend: str | None, codec: str | None) -> tuple[list[float], str, int]:
    """Losses of this rank's batches, hash of the parameters, and the number of graphs; backend: torch.compile's."""
    import geocomm

    torch.manual_seed(7)
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=1)
    if codec is not None:
        geocomm.ddp_hook(model, geocomm.HookSettings(codec=codec, warmup_steps=1, guard=False))
    graphs = 0

    def counted(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    torch._dynamo.reset()
    step_model = model if backend is None else torch.compile(model, backend=counted)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 40, generator=generator)
        loss = (step_model(x) - x[:, :8].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, hash_of(*net.parameters()), graphs


@pytest.mark.parametrize("codec", [pytest.param(None, marks=pytest.mark.slow), "balanced"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_ddp_step_learns_what_the_eager_one_does(ranks: Ranks, backend: str, codec: str | None) -> None:
    eager, compiled = ranks.run(_train, None, codec), ranks.run(_train, backend, codec)
    assert len({digest for _, digest, _ in compiled}) == 1
    for (expected, _, _), (losses, _, graphs) in zip(eager, compiled, strict=True):
        # Rounding by another order of operations, which a codec makes larger.
        assert losses == pytest.approx(expected, rel=1e-4 if codec is None else 2e-2)
        assert graphs > 1


def _collectives() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What each of some functions gives compiled, and eagerly."""
    size = dist.get_world_size()

    def reduced(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y + 1

    def gathered(x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(size * x.numel())
        dist.all_gather_into_tensor(y, x + 1)
        return y * 2

    def scattered(x: torch.Tensor) -> torch.Tensor:
        y = x.new_empty(x.numel())
        dist.reduce_scatter_tensor(y, torch.cat([x + r for r in range(size)]))
        return y.cos()

    x = torch.arange(1000.0) + dist.get_rank()
    results = []
    for function in (reduced, gathered, scattered):
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        results.append((compiled(x), function(x)))
    return results


def test_collectives_inside_a_compiled_function_cross_sites(ranks: Ranks) -> None:
    for results in ranks.run(_collectives):
        for compiled, eager in results:
            assert torch.equal(compiled, eager)
