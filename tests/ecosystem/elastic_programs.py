"""A rank of an elastic run under a framework: trains as if its site were alone, and tells what became of it.

elastic_programs.py CASE OUT, with torchrun's variables. Each case is a script as users write it, without an `mpu`, a
mesh of sites or a process group of the site's ranks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import geocomm

FEATURES = 32
ROUNDS = 8
STEPS = 60
ENDLESS = 100_000
STEP_S = 0.03


class Net(nn.Module):
    """Keeps its losses, whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 96), nn.Tanh(), nn.Linear(96, FEATURES))
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(STEP_S)
        output = self.layers(x)
        loss = (output - labels).square().mean()
        self.losses.append(loss.item())
        return {"loss": loss, "logits": output}


class Watch:
    """The local steps of this rank, and the anchors that it has seen."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.anchors: dict[int, list[str]] = {0: [], 1: []}
        """By fragment: the digests of its anchors, one after the other."""
        self._rounds = -1

    def begin(self, model: nn.Module, optimizer: Any) -> None:
        # Without momentum: the few rounds of a test would end in the middle of a swing.
        settings = geocomm.LocalSettings(every=6, fragments=2, outer=geocomm.Nesterov(1.0, 0.0))
        self.handle = geocomm.local_steps(model, optimizer, settings)

    def has_seen_enough(self) -> bool:
        """After a step; the same at all ranks of the site."""
        if (rounds := self.handle.stats()["rounds"]) > self._rounds:
            self._rounds = rounds
            with self.handle.anchor():
                values = {name: _whole(one).clone() for name, one in self.net.named_parameters()}
            for fragment in self.handle.fragments:
                found = xxhash.xxh3_128()
                for part in fragment.ranges:
                    found.update(values[part.name].flatten()[part.start : part.stop].numpy().tobytes())
                if self.anchors[fragment.index][-1:] != [found.hexdigest()]:
                    self.anchors[fragment.index].append(found.hexdigest())
        return rounds >= ROUNDS and len(self.net.losses) >= STEPS

    def end(self, out: Path) -> None:
        self.handle.finish()
        told = {"losses": self.net.losses, "anchors": list(self.anchors.values()), "step": self.handle.run_step}
        name = f"{os.environ['GEOCOMM_SITE']}.{os.environ['RANK']}.json"
        (out / name).write_text(json.dumps(told))


def _whole(parameter: nn.Parameter) -> torch.Tensor:
    if isinstance(parameter, DTensor):
        return parameter.full_tensor().detach()
    if hasattr(parameter, "ds_id"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    return parameter.detach()


def data() -> TensorDataset:
    """Others at each site."""
    x = torch.randn(4096, FEATURES, generator=torch.Generator().manual_seed(ord(os.environ["GEOCOMM_SITE"])))
    return TensorDataset(x, x.roll(1, 1).sin())


def loop(watch: Watch, model: nn.Module) -> None:
    """A loop of one's own."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watch.begin(model, optimizer)
    while True:
        for x, y in DataLoader(data(), batch_size=16, shuffle=True):
            model(x, y)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            if watch.has_seen_enough():
                return


def ddp(watch: Watch) -> None:
    loop(watch, DistributedDataParallel(watch.net))


def fsdp2(watch: Watch) -> None:
    loop(watch, fully_shard(watch.net))


def hsdp(watch: Watch) -> None:
    replicas = 2 if dist.get_world_size() > 1 else 1
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("copy", "shard"))
    loop(watch, fully_shard(watch.net, mesh=mesh))


def zero(stage: int) -> Callable[[Watch], None]:
    def train(watch: Watch) -> None:
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": 16,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": ENDLESS,
        }
        deepspeed.init_distributed("geocomm")
        optimizer = torch.optim.AdamW(watch.net.parameters(), lr=3e-3)
        engine, *_ = deepspeed.initialize(model=watch.net, optimizer=optimizer, config=config)
        watch.begin(engine, engine.optimizer)
        while True:
            for x, y in DataLoader(data(), batch_size=16, shuffle=True):
                engine.backward(engine(x, y)["loss"])
                engine.step()
                if watch.has_seen_enough():
                    return

    return train


def accelerate(watch: Watch) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(watch.net.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(
        watch.net, optimizer, DataLoader(data(), batch_size=16, shuffle=True)
    )
    watch.begin(model, optimizer)
    while True:
        for x, y in loader:
            accelerator.backward(model(x, y)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if watch.has_seen_enough():
                return


def trainer(watch: Watch) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class LocalSteps(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any) -> None:
            watch.begin(model, optimizer)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = watch.has_seen_enough()

    def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
        return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

    arguments = TrainingArguments(
        output_dir=f"{sys.argv[2]}/{os.environ['GEOCOMM_SITE']}-trainer",
        use_cpu=True,
        per_device_train_batch_size=16,
        max_steps=ENDLESS,
        learning_rate=3e-3,
        logging_steps=20,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    Trainer(watch.net, arguments, collate, data(), callbacks=[LocalSteps()]).train()


def lightning(watch: Watch) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def training_step(self, rows: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
            loss = watch.net(*rows)["loss"]
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    class LocalSteps(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            watch.begin(watch.net, trainer.optimizers)

        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            trainer.should_stop = watch.has_seen_enough()

    module = Module()
    module.net = watch.net
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    pl.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=pl.strategies.DDPStrategy(process_group_backend="geocomm"),
        callbacks=[LocalSteps()],
        max_epochs=ENDLESS,
        **quiet,
    ).fit(module, DataLoader(data(), batch_size=16, shuffle=True))


CASES: dict[str, Callable[[Watch], None]] = {
    "DDP": ddp,
    "FSDP2": fsdp2,
    "HSDP": hsdp,
    **{f"ZeRO {stage}": zero(stage) for stage in range(4)},
    "Accelerate": accelerate,
    "Trainer": trainer,
    "Lightning": lightning,
}

if __name__ == "__main__":
    if not sys.argv[1].startswith(("ZeRO", "Lightning")):  # these make the process group themselves
        dist.init_process_group("geocomm")
    the_watch = Watch(Net())
    CASES[sys.argv[1]](the_watch)
    the_watch.end(Path(sys.argv[2]))
    if dist.is_initialized():
        dist.destroy_process_group()
