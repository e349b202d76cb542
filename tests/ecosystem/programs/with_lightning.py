"""Lightning's Trainer, with strategy "ddp", a logged mean of all ranks and a checkpoint."""

from __future__ import annotations

import os
from typing import Any

import lightning as L
import torch
from outcome import leave
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 4))
        self.losses: list[float] = []

    def training_step(self, rows: list[torch.Tensor], _: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(rows[0]), rows[1])
        self.log("train", loss, sync_dist=True, on_step=False, on_epoch=True)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, rows: list[torch.Tensor], _: int) -> None:
        self.log("validation", nn.functional.cross_entropy(self.net(rows[0]), rows[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    L.seed_everything(7)
    x = torch.randn(128, 20)
    rows = TensorDataset(x, x[:, :4].argmax(1))
    model = Classifier()
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(
        accelerator="cpu",
        strategy="ddp",
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        max_epochs=2,
        default_root_dir=os.environ["OUTCOME"],
        **quiet,
    )
    trainer.fit(model, DataLoader(rows, batch_size=8, shuffle=True), DataLoader(rows, batch_size=32))
    leave([*model.losses, *(trainer.callback_metrics[name] for name in ("train", "validation"))], model.parameters())


main()
