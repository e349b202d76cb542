"""Trainings under frameworks that make their own wrappers; each imports its framework when it runs."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from training_cases import CLASSES, STEPS, Net, Trained, batch, digest_of


class Batches(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of 2 * STEPS batches, which the frameworks deal out to the ranks."""

    def __init__(self) -> None:
        parts = [batch(step, rank=0) for step in range(2 * STEPS)]
        self.x, self.y = (torch.cat(columns) for columns in zip(*parts, strict=True))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


class Regression(nn.Module):
    """As the Trainer wants it: the loss is an output."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        del self.net.other_head

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = self.net(x)
        return {"loss": nn.functional.mse_loss(output, labels), "logits": output}


def _as_launched() -> None:
    """The frameworks look for a launcher's variables, though the process group is there already."""
    os.environ |= {"NODE_RANK": os.environ["RANK"], "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def accelerate() -> Trained:
    """Accelerate takes the process group that there is; on CPUs it would only make Gloo's itself."""
    from accelerate import Accelerator

    _as_launched()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Regression()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(net, optimizer, DataLoader(Batches(), batch_size=8))
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = model(x, y)["loss"]
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses += accelerator.gather(loss.detach()).tolist()
    return Trained(losses, digest_of(net.parameters()))


def trainer(folder: str) -> Trained:
    """Hugging Face's Trainer, over the process group that there is."""
    from transformers import Trainer, TrainingArguments

    def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    _as_launched()
    arguments = TrainingArguments(
        output_dir=f"{folder}/{dist.get_backend()}",
        use_cpu=True,
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    net = Regression()
    run = Trainer(model=net, args=arguments, train_dataset=Batches(), data_collator=collate)
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    return Trained(losses, digest_of(net.parameters()))


def lightning() -> Trained:
    """Lightning's DDP strategy."""
    import lightning.pytorch as pl

    losses: list[float] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Regression()

        def training_step(self, rows: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            loss = self.net(*rows)["loss"]
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module = Module()
    _lightning_trainer().fit(module, DataLoader(Batches(), batch_size=8))
    assert len(losses) > CLASSES // 2
    return Trained(losses, digest_of(module.parameters()))


def lightning_metrics() -> Trained:
    """Lightning's `log(sync_dist=True)`: means, whose counts of rows are integers, sums and extremes of all ranks."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Regression()

        def training_step(self, rows: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            loss = self.net(*rows)["loss"]
            rank = dist.get_rank()
            for value, name in ((loss, "loss"), (torch.tensor(10 * number + rank), "count"), (2.5 * rank, "number")):
                for reduce in ("mean", "sum", "max", "min"):
                    # Ranks with different numbers of rows: over two of them, the mean of these is no whole number.
                    self.log(
                        *(f"{name}_{reduce}", value),
                        reduce_fx=reduce,
                        on_step=True,
                        on_epoch=True,
                        sync_dist=True,
                        batch_size=3 + rank,
                    )
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    module, trainer = Module(), _lightning_trainer()
    trainer.fit(module, DataLoader(Batches(), batch_size=8))
    metrics = {name: value.item() for name, value in sorted(trainer.callback_metrics.items())}
    assert {f"{name}_{reduce}_epoch" for name in ("loss", "count") for reduce in ("mean", "sum", "max")} <= set(metrics)
    whole = trainer.strategy.reduce(torch.tensor([3, -3]) * (dist.get_rank() + 1), reduce_op="mean")
    return Trained([*metrics.values(), *whole.tolist()], digest_of(module.parameters()))


def _lightning_trainer() -> Any:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    _as_launched()
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        num_nodes=dist.get_world_size(),
        strategy=DDPStrategy(process_group_backend=dist.get_backend()),
        max_epochs=1,
        enable_model_summary=False,
        **quiet,
    )
