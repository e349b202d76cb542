"""PyTorch-Ignite: `idist.Parallel` makes the group, `auto_model` wraps the model for the backends that it knows."""

from __future__ import annotations

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from outcome import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset


def training(_: int) -> None:
    torch.manual_seed(8)
    x = torch.randn(128, 20)
    rows = TensorDataset(x, x[:, :4].argmax(1))
    net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))
    model = idist.auto_model(net)
    assert isinstance(model, DistributedDataParallel)
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=1e-2))
    loader = idist.auto_dataloader(rows, batch_size=16, shuffle=True)
    losses: list[float] = []
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), device=idist.device())
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy(), "loss": Loss(nn.CrossEntropyLoss())})

    @trainer.on(Events.ITERATION_COMPLETED)
    def _keep(engine: Engine) -> None:
        losses.append(engine.state.output)

    trainer.run(loader, max_epochs=2)
    evaluator.run(loader)
    metrics = [evaluator.state.metrics[name] for name in ("accuracy", "loss")]
    leave([*losses, *metrics, idist.all_reduce(1.5 * idist.get_rank()), idist.get_nnodes()], net.parameters())


if __name__ == "__main__":
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(training)
