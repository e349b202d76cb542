"""DDP under torchrun, as in PyTorch's tutorials: a sampler of this rank's rows, a Trainer, a snapshot to go on from."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from outcome import leave
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    def __init__(self, model: nn.Module, data: DataLoader, optimizer: torch.optim.Optimizer, snapshot: Path) -> None:
        self.data, self.optimizer, self.snapshot = data, optimizer, snapshot
        self.epochs_run, self.losses = 0, []
        if snapshot.exists():
            state = torch.load(snapshot)
            model.load_state_dict(state["model"])
            self.epochs_run = state["epochs"]
        self.model = DDP(model)

    def train(self, epochs: int) -> None:
        for epoch in range(self.epochs_run, epochs):
            self.data.sampler.set_epoch(epoch)
            for x, y in self.data:
                self.optimizer.zero_grad()
                loss = nn.functional.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss.item())
            if dist.get_rank() == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch + 1}, self.snapshot)
            dist.barrier()


def main() -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend=backend)
    assert dist.get_backend() == backend
    torch.manual_seed(1)
    x = torch.randn(256, 20)
    rows = TensorDataset(x, x[:, :4].argmax(1))
    for epochs in (1, 3):  # the second starts from the snapshot of the first
        model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
        loader = DataLoader(rows, batch_size=16, sampler=DistributedSampler(rows))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        trainer = Trainer(model, loader, optimizer, Path(os.environ["OUTCOME"], "snapshot.pt"))
        dist.barrier()  # all have looked for the snapshot
        trainer.train(epochs)
    leave(trainer.losses, trainer.model.module.state_dict().values())
    dist.destroy_process_group()


main()
