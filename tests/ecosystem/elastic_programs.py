"""A rank of an elastic run under a framework: trains as if its site were alone, and tells what became of it.

elastic_programs.py CASE OUT, with torchrun's variables. Each case is a script as users write it, without an `mpu`, a
mesh of sites or a process group of the site's ranks. It reads what the run deals to the site; one case its own data.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
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
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import geocomm

FEATURES = 32
SEQUENCES = 4096
BATCH = 16
ROUNDS = 8
STEPS = 60
ENDLESS = 100_000
STEP_S = 0.03


class Net(nn.Module):
    """Keeps its losses, and which sequences it has trained on, whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(FEATURES, 96), nn.Tanh(), nn.Linear(96, FEATURES))
        self.losses: list[float] = []
        self.read: list[int] = []
        self._inputs = torch.randn(SEQUENCES, FEATURES, generator=torch.Generator().manual_seed(1))

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(STEP_S)
        self.read += rows[:, 0].tolist()
        x = self._inputs[rows[:, 0] % SEQUENCES]
        output = self.layers(x)
        loss = (output - x.roll(1, 1).sin()).square().mean()
        self.losses.append(loss.item())
        return {"loss": loss, "logits": output}


class Watch:
    """The local steps of this rank, and the anchors that it has seen."""

    data: geocomm.SiteDataset

    def __init__(self, net: Net) -> None:
        self.net = net
        self.anchors: dict[int, list[str]] = {0: [], 1: []}
        """By fragment: the digests of its anchors, one after the other."""
        self._rounds = -1

    def begin(self, model: nn.Module, optimizer: Any, *, dealt: bool = True) -> None:
        # Without momentum: the few rounds of a test would end in the middle of a swing.
        settings = geocomm.LocalSettings(every=6, fragments=2, outer=geocomm.Nesterov(1.0, 0.0))
        self.handle = geocomm.local_steps(model, optimizer, settings)
        if dealt:
            self.data = geocomm.SiteDataset(self.handle, batch_size=BATCH)

    def count(self, batches: int = 1) -> None:
        """In each step, before the optimizer's."""
        self.handle.count_tokens(self.data.batch_tokens * batches)

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
        told = {"losses": self.net.losses, "anchors": list(self.anchors.values()), "read": self.net.read}
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


class Dealt(IterableDataset[dict[str, torch.Tensor]]):
    """For loaders that are made before there are local steps."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return ({"rows": rows} for rows in self._watch.data)


def loop(watch: Watch, model: nn.Module) -> None:
    """A loop of one's own."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watch.begin(model, optimizer)
    for rows in watch.data:
        watch.count()
        model(rows)["loss"].backward()
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
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": ENDLESS,
        }
        deepspeed.init_distributed("geocomm")
        optimizer = torch.optim.AdamW(watch.net.parameters(), lr=3e-3)
        engine, *_ = deepspeed.initialize(model=watch.net, optimizer=optimizer, config=config)
        watch.begin(engine, engine.optimizer)
        for rows in watch.data:
            watch.count()
            engine.backward(engine(rows)["loss"])
            engine.step()
            if watch.has_seen_enough():
                return

    return train


def accelerate(watch: Watch) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(watch.net, torch.optim.AdamW(watch.net.parameters(), lr=3e-3))
    watch.begin(model, optimizer)
    for rows in watch.data:
        watch.count()
        accelerator.backward(model(rows)["loss"])
        optimizer.step()
        optimizer.zero_grad()
        if watch.has_seen_enough():
            return


def own_data(watch: Watch) -> None:
    """Accelerate deals it to the ranks of the site."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    seed = ord(os.environ["GEOCOMM_SITE"])  # others at each site
    rows = torch.randint(SEQUENCES, (SEQUENCES, 1), generator=torch.Generator().manual_seed(seed))
    loader = DataLoader(TensorDataset(rows), batch_size=BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(watch.net.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(watch.net, optimizer, loader)
    watch.begin(model, optimizer, dealt=False)
    while True:
        for (some,) in loader:
            accelerator.backward(model(some)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if watch.has_seen_enough():
                return


def trainer(watch: Watch) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class LocalSteps(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any) -> None:
            watch.begin(model, optimizer)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.count(args.gradient_accumulation_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = watch.has_seen_enough()

    class DealtTrainer(Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(Dealt(watch), batch_size=None)

    arguments = TrainingArguments(
        output_dir=f"{sys.argv[2]}/{os.environ['GEOCOMM_SITE']}-trainer",
        use_cpu=True,
        max_steps=ENDLESS,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        logging_steps=20,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    DealtTrainer(watch.net, arguments, callbacks=[LocalSteps()]).train()


def lightning(watch: Watch) -> None:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            loss = watch.net(**batch)["loss"]
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    class LocalSteps(pl.Callback):
        def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            watch.begin(watch.net, trainer.optimizers)

        def on_train_batch_start(self, *_: Any) -> None:
            watch.count()

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
        max_epochs=1,
        **quiet,
    ).fit(module, DataLoader(Dealt(watch), batch_size=None))


CASES: dict[str, Callable[[Watch], None]] = {
    "DDP": ddp,
    "FSDP2": fsdp2,
    "HSDP": hsdp,
    **{f"ZeRO {stage}": zero(stage) for stage in range(4)},
    "Accelerate": accelerate,
    "Trainer": trainer,
    "Lightning": lightning,
    "own data": own_data,
}

if __name__ == "__main__":
    if not sys.argv[1].startswith(("ZeRO", "Lightning")):  # these make the process group themselves
        dist.init_process_group("geocomm")
    the_watch = Watch(Net())
    CASES[sys.argv[1]](the_watch)
    the_watch.end(Path(sys.argv[2]))
    if dist.is_initialized():
        dist.destroy_process_group()
