"""One rank of the training benchmark: `python benchmarks/bench_train_worker.py PLAN OUT`.

`bench_train` starts it at two sites. PLAN is a JSON file (`Plan`); rank 0 writes the JSON file OUT. The model is the
training driver's (DeepSeek-V3 architecture, byte tokens of the built-in corpus), the training loop plain DDP: forward,
backward, AdamW, the same for every method.
"""

# Annotations are evaluated here: DDP compares those of a hook with the classes themselves.

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

SLICES = 8
PACED = "-paced"
"""Ends the name of a method whose rate `bench_train` caps."""
LOCAL, ALONE = "local-", "alone"
TORCHFT, TORCHFT_OVERLAP = "torchft", "torchft-overlap"
_LR_WARMUP = 40
_FINAL_LR = 0.1


@dataclass(frozen=True)
class Plan:
    """What to train. Every rank gets the same."""

    method: str
    """gloo, gloo8, exact, lossless (DDP alone), powersgd, or a codec for geocomm.ddp_hook; PACED may follow. LOCAL and
    a codec: local steps, with `every` steps between rounds. TORCHFT: its DiLoCo over Gloo. ALONE: each site by
    itself."""
    seed: int
    steps: int
    warmup_steps: int
    """First of them, which every compressed method sends exactly."""
    untimed_steps: int
    """First of them, left out of the times."""
    evaluate_every: int
    """0: never."""
    overrides: dict[str, Any]
    """Of the preset `tiny`."""
    sequence_length: int
    micro_batch: int
    """Sequences per rank and step."""
    learning_rate: float
    held_out: int
    """Sequences."""
    bucket_mib: float
    every: int = 30
    """Of local steps."""
    overlap: int | None = None
    """Of local steps; None: as soon as a result is there."""


class Trainer:
    """Runs a plan; collective over all ranks."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._method = plan.method.removesuffix(PACED)
        if self._method == "gloo8":
            # Where an interface is named again and again, Gloo makes a connection for each.
            os.environ["GLOO_SOCKET_IFNAME"] = ",".join([os.environ["GLOO_SOCKET_IFNAME"]] * SLICES)
        if self._method == "lossless":
            os.environ["GEOCOMM_CODEC"] = self._method
        dist.init_process_group("gloo" if self._method.startswith(("gloo", TORCHFT)) else "geocomm")
        self._rank, self._world_size = dist.get_rank(), dist.get_world_size()
        data_config = DataConfig(sequence_length=plan.sequence_length, held_out_fraction=0.05)
        model_settings = ModelConfig(preset="tiny", overrides=plan.overrides)
        tokenizer = load_tokenizer(data_config.tokenizer)
        self._data = PackedSequences(load_tokens(data_config, tokenizer), plan.sequence_length, 0.05, plan.seed)
        bare = build_model(model_settings, model_config(model_settings, data_config, tokenizer), plan.seed)
        self.parameters = sum(parameter.numel() for parameter in bare.parameters())
        # Experts that no token of a rank chose have no gradient there. PowerSGD's collectives must not meet DDP's about
        # them: there every parameter gets one.
        self._touch_all = self._method == "powersgd"
        # The model's buffers are constants; to send them in every forward would cost each step one way over the line.
        self._by_itself = self._method == ALONE or self._method.startswith((LOCAL, TORCHFT))
        self._model: Any = bare
        if not self._by_itself:
            self._model = DistributedDataParallel(
                bare,
                bucket_cap_mb=plan.bucket_mib,
                find_unused_parameters=not self._touch_all,
                broadcast_buffers=False,
            )
        self._optimizer = torch.optim.AdamW(bare.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95))
        self._local: Any = None
        self._attach_method()

    def run(self) -> dict[str, Any]:
        """Train; what rank 0 knows afterwards."""
        plan, gloo = self._plan, self._method.startswith("gloo")
        held_out: list[tuple[int, float]] = []
        cpu_before_s = 0.0

        def step_and_evaluate(step: int) -> None:
            nonlocal cpu_before_s
            if step == plan.untimed_steps:
                cpu_before_s = time.process_time()
            self._step(step)
            if plan.evaluate_every and ((step + 1) % plan.evaluate_every == 0 or step + 1 == plan.steps):
                held_out.append((step + 1, self._held_out_loss()))

        times = _seconds_of_each(plan.steps, step_and_evaluate)[plan.untimed_steps :]
        cpu_s = (time.process_time() - cpu_before_s) / len(times) if times else None
        rounds = {} if self._local is None else self._local.stats()
        if self._method.startswith(LOCAL):
            fragments = self._local.fragments
            rounds["elements_sent"] = sum(fragments[r % len(fragments)].numel for r in range(rounds["rounds"]))
        if self._local is not None:
            self._local.finish()
        compute_s, backward_s = self._compute_seconds() if times else (None, None)
        return {
            "parameters": self.parameters,
            "step_s": statistics.median(times) if times else None,
            "steps_s": times,
            "cpu_s": cpu_s,
            "compute_s": compute_s,
            "backward_s": backward_s,
            "communication_s": self._communication_seconds() if times and not gloo and not self._by_itself else None,
            "held_out": held_out,
            "rounds": rounds,
        }

    def _attach_method(self) -> None:
        method = self._method
        if method == "gloo8":
            self._model.register_comm_hook(None, _sliced)
        elif method == "powersgd":
            from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

            state = powerSGD_hook.PowerSGDState(
                self._model.process_group,
                matrix_approximation_rank=4,
                start_powerSGD_iter=self._plan.warmup_steps,
                min_compression_rate=2.0,
                orthogonalization_epsilon=1e-8,  # a gradient of zeros has columns of length 0
            )
            self._model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif method.startswith(LOCAL):
            import geocomm

            codec = method.removeprefix(LOCAL)
            preset = "loco" if codec == "loco" else "pretrain"
            self._local = geocomm.local_steps(
                self._model,
                self._optimizer,
                geocomm.LocalSettings(
                    preset=preset,
                    codec=codec,
                    every=self._plan.every,
                    overlap="auto" if self._plan.overlap is None else self._plan.overlap,
                ),
            )
        elif method.startswith(TORCHFT):
            from torchft_peer import TorchftDiloco

            overlap = 5 if method == TORCHFT_OVERLAP else 0
            self._local = TorchftDiloco(self._model, self._optimizer, self._plan.every, overlap)
        elif method not in (ALONE, "gloo", "exact", "lossless"):
            import geocomm

            geocomm.ddp_hook(
                self._model, geocomm.HookSettings(codec=method, warmup_steps=self._plan.warmup_steps, guard=False)
            )

    def _step(self, step: int) -> float:
        """Seconds of its backward pass."""
        plan = self._plan
        self._optimizer.zero_grad()
        consumed = step * plan.micro_batch * self._world_size
        rows = torch.from_numpy(self._data.micro_batch(consumed, 0, self._rank, self._world_size, plan.micro_batch))
        loss = self._model(input_ids=rows, labels=rows).loss
        if self._touch_all:
            loss = loss + 0 * sum(parameter.sum() for parameter in self._model.parameters())
        start = time.monotonic()
        loss.backward()
        backward_s = time.monotonic() - start
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        done = max(0.0, step - _LR_WARMUP) / max(1, plan.steps - _LR_WARMUP)
        rate = plan.learning_rate * min(1.0, (step + 1) / _LR_WARMUP) * (1 - (1 - _FINAL_LR) * done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        return backward_s

    def _held_out_loss(self) -> float:
        sums = torch.zeros(2, dtype=torch.float64)
        self._model.eval()
        with torch.no_grad():
            numbers = self._data.held_out_share(self._rank, self._world_size, self._plan.held_out)
            for first in range(0, len(numbers), 8):
                rows = torch.from_numpy(self._data.rows(numbers[first : first + 8]))
                sums += torch.tensor(
                    [len(rows) * float(self._model.module(input_ids=rows, labels=rows).loss), len(rows)]
                )
        self._model.train()
        dist.all_reduce(sums)
        return float(sums[0] / sums[1])

    def _compute_seconds(self) -> tuple[float, float]:
        """Of a step without communication, and of its backward pass."""
        times, backward_times = [], []
        for step in range(7):
            dist.barrier()
            start = time.monotonic()
            with contextlib.nullcontext() if self._by_itself else self._model.no_sync():
                backward_times.append(self._step(self._plan.steps - 1 + step))
            times.append(time.monotonic() - start)
        return statistics.median(times[2:]), statistics.median(backward_times[2:])

    def _communication_seconds(self) -> float:
        """Of a step that computes nothing: the backward pass hands out the gradients of the last step at once."""
        bare = self._model.module
        gradients = [
            (parameter, torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone())
            for parameter in bare.parameters()
        ]
        bare.forward = lambda: _Given.apply(*(parameter for parameter, _ in gradients))
        _Given.gradients = [gradient for _, gradient in gradients]

        def hand_out(_: int) -> None:
            self._optimizer.zero_grad()
            self._model().backward()

        return statistics.median(_seconds_of_each(12, hand_out)[2:])


def _seconds_of_each(steps: int, step: Callable[[int], None]) -> list[float]:
    """From end to end, as in any training loop: a barrier before each lets one site go a one-way delay earlier."""
    dist.barrier()
    ends = [time.monotonic()]
    for number in range(steps):
        step(number)
        ends.append(time.monotonic())
    return [end - before for before, end in pairwise(ends)]


class _Given(torch.autograd.Function):
    """A scalar whose derivatives are `gradients`."""

    gradients: ClassVar[list[torch.Tensor]] = []

    @staticmethod
    def forward(_: Any, *parameters: torch.Tensor) -> torch.Tensor:
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(_: Any, _derivative: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_Given.gradients)


def _sliced(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer().div_(dist.get_world_size())
    parts = [dist.all_reduce(part, async_op=True).get_future() for part in buffer.chunk(SLICES)]
    return torch.futures.collect_all(parts).then(lambda _: buffer)


def main(plan_path: str, out: str) -> int:
    """A rank, as RANK and WORLD_SIZE say, or one per site, as NODE_RANK and NNODES do."""
    for name, other in (("RANK", "NODE_RANK"), ("WORLD_SIZE", "NNODES")):
        os.environ.setdefault(name, os.environ.get(other, ""))
    torch.set_num_threads(1)
    trainer = Trainer(Plan(**json.loads(Path(plan_path).read_text(encoding="utf-8"))))
    result = trainer.run()
    if dist.get_rank() == 0:
        partial = Path(f"{out}.partial")
        partial.write_text(json.dumps(result), encoding="utf-8")
        partial.rename(out)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
