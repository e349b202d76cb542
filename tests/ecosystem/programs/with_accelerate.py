"""Accelerate names the backend itself. Metrics of all ranks, accumulation, a checkpoint that is loaded again."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from outcome import leave
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator(gradient_accumulation_steps=2)
    set_seed(5)
    x = torch.randn(128, 20)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 8)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    losses: list[float] = []
    for epoch in range(2):
        for rows, labels in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(rows), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses += accelerator.gather_for_metrics(loss.detach()).reshape(-1).tolist()
        if epoch == 0:
            accelerator.save_state(Path(os.environ["OUTCOME"], "state"))
            accelerator.wait_for_everyone()
            accelerator.load_state(Path(os.environ["OUTCOME"], "state"))
    leave(losses, accelerator.unwrap_model(model).parameters())
    accelerator.end_training()


main()
