"""Loss of training with local steps over per-step training, at equal tokens: `python benchmarks/bench_local.py`.

Sites are simulated in this process, with the real handle and the real codecs (geocomm/local_sgd). Every run of one seed
begins with the same weights and reads the same batches: per step, the union of what the sites read. The per-step
baseline averages exactly, which is the same as training on that union. The loss is of held-out text, on the anchor.

Runs are kept one by one in a file of JSON lines beside the report, and an interrupted benchmark goes on after the last.
`--parts` says what to compare, in this order: merge, codec, int4, int8, loco, every, every-int4, sites, sites-int4,
sites-outer, alone, fragments, joint, outer, rate, per-step (`parts_of`). Runs are compared inside of one regime:
`--size`, `--text`, `--steps` and `--batch`.
One thread; start it under `nice` where others work. Results: benchmarks/results/<--date>-local-quality.md, .jsonl and
.png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from bench_local_report import TEXTS, write_report

from geocomm.bench.bench_report import Conditions, git_commit
from geocomm.data.data_settings import DataConfig
from geocomm.data.packing import PackedSequences
from geocomm.data.text_tokenizer import load_tokenizer
from geocomm.data.token_store import load_tokens
from geocomm.local_sgd.averaging import Averaging
from geocomm.local_sgd.local_steps import local_steps
from geocomm.local_sgd.outer_step import Nesterov
from geocomm.local_sgd.rounds import Rounds
from geocomm.local_sgd.simulated_rounds import SimulatedSites
from geocomm.models.model_factory import build_model, model_config
from geocomm.models.model_settings import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE_LENGTH = 64
HELD_OUT_FRACTION = 0.05
HELD_OUT_SEQUENCES = 512
CLIP_NORM = 1.0
LEAST_ROUNDS = 30  # shorter runs say little of outer optimizers
FINAL_LR = 0.1
SIZES: dict[str, dict[str, Any]] = {  # overrides of the preset `tiny`
    "0.4m": {
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "first_k_dense_replace": 3,
        "q_lora_rank": 48,
        "kv_lora_rank": 32,
    },
    "2.2m": {
        "hidden_size": 224,
        "intermediate_size": 608,
        "moe_intermediate_size": 208,
        "num_hidden_layers": 3,
        "q_lora_rank": 64,
        "kv_lora_rank": 48,
    },
}


@dataclass(frozen=True)
class Plan:
    """One run."""

    size: str
    seed: int
    steps: int
    sites: int = 2
    every: int | None = 30
    """None: per-step."""
    overlap: int = 5
    merge: float | str = 0.5
    codec: str = "none"
    fragments: int = 1
    outer_lr: float = 0.6
    outer_momentum: float = 0.9
    decay: float = 1.0
    """Of the residual of error feedback."""
    averaging: Averaging = "auto"
    joint_steps: int = 0
    """First steps that are per-step."""
    learning_rate: float = 2e-3
    warmup_steps: int = 40
    micro_batch: int = 4
    """Sequences per site and step."""
    text: str = "builtin"
    """One of `TEXTS`."""

    def per_step(self) -> Plan:
        """The run that this one is compared with."""
        defaults = {name: Plan.__dataclass_fields__[name].default for name in _LOCAL_FIELDS}
        return replace(self, **defaults, every=None)

    @property
    def regime(self) -> tuple[str, str, int, int]:
        """Model, text, steps and batch: runs of one regime are compared."""
        return self.size, self.text, self.steps, self.micro_batch

    @property
    def name(self) -> str:
        """For the report."""
        if self.every is None:
            return f"per-step, M={self.sites}, lr {self.learning_rate:.3g}"
        merge = "no overlap" if self.overlap == 0 else f"overlap {self.overlap}, merge {self.merge}"
        parts = [f"M={self.sites}, H={self.every}, {merge}", "fp32" if self.codec == "none" else f"{self.codec} + EF"]
        if self.decay != 1:
            parts.append(f"decay {self.decay:g}")
        if self.fragments > 1:
            parts.append(f"{self.fragments} fragments")
        if (self.outer_lr, self.outer_momentum) != (0.6, 0.9):
            parts.append(f"outer lr {self.outer_lr:g}, momentum {self.outer_momentum:g}")
        if self.averaging != "auto":
            parts.append(f"{self.averaging} averages")
        if self.joint_steps:
            parts.append(f"first {self.joint_steps} steps per-step")
        if self.learning_rate != Plan.learning_rate:
            parts.append(f"lr {self.learning_rate:.3g}")
        return ", ".join(parts)


_LOCAL_FIELDS = (
    "overlap",
    "merge",
    "codec",
    "fragments",
    "outer_lr",
    "outer_momentum",
    "decay",
    "averaging",
    "joint_steps",
)


def parts_of(base: Plan) -> dict[str, list[Plan]]:
    """What each part compares with per-step."""
    up, down = base.learning_rate * math.sqrt(2), base.learning_rate / math.sqrt(2)
    return {
        "merge": [
            replace(base, overlap=0),
            base,
            replace(base, merge="carry"),
            replace(base, merge=0.0),
        ],
        "codec": [base, replace(base, codec="int4")],
        "int4": [replace(base, codec="int4")],
        "int8": [base, replace(base, codec="int8")],
        "loco": [replace(base, codec="loco", outer_lr=1.0, outer_momentum=0.0, decay=0.95)],  # the preset of this name
        "every": [
            replace(base, every=every, overlap=overlap)
            for every in (10, 30, 100)
            for overlap in (0, 5)
            if base.steps // every >= LEAST_ROUNDS
        ],
        "every-int4": [
            replace(base, codec="int4", every=every)
            for every in (10, 30, 100)
            if (base.steps - base.joint_steps) // every >= LEAST_ROUNDS - 1
        ],
        "sites-int4": [replace(base, sites=4, codec="int4")],
        "sites-outer": [
            replace(base, sites=4, codec="int4", **changes)
            for changes in (
                {"averaging": "radial"},
                {"outer_lr": 0.8},
                {"outer_lr": 0.4},
                {"every": 10},
                {"joint_steps": base.steps // 10},
            )
        ],
        "per-step": [base.per_step()],
        "sites": [replace(base, sites=4), replace(base, sites=4, codec="int4"), replace(base, sites=4, overlap=0)],
        "alone": [replace(base, sites=1).per_step()],
        "fragments": [base, replace(base, fragments=4)],
        "joint": [base, replace(base, joint_steps=base.warmup_steps), replace(base, joint_steps=base.steps // 10)],
        "outer": [
            base,
            *(
                replace(base, outer_lr=lr, outer_momentum=momentum)
                for lr, momentum in ((1.0, 0.0), (0.8, 0.6), (0.4, 0.9), (0.8, 0.9), (1.0, 0.3))
            ),
        ],
        "rate": [replace(base, learning_rate=rate) for rate in (down, base.learning_rate, up)],
    }


def standard_library() -> tuple[Path, ...]:
    """The Python files of the interpreter's standard library, without its tests: 11 MB in version 3.11."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    return tuple(path for path in sorted(root.rglob("*.py")) if not left_out & set(path.relative_to(root).parts))


class Data:
    """Text, and models by seed."""

    def __init__(self, size: str, text: str, seed: int) -> None:
        source = {} if text == "builtin" else {"source": "text", "paths": standard_library()}
        config = DataConfig(sequence_length=SEQUENCE_LENGTH, held_out_fraction=HELD_OUT_FRACTION, **source)
        tokenizer = load_tokenizer(config.tokenizer)
        self._sequences = PackedSequences(load_tokens(config, tokenizer), SEQUENCE_LENGTH, HELD_OUT_FRACTION, seed)
        self._settings = ModelConfig(preset="tiny", overrides=SIZES[size])
        self._model_config = model_config(self._settings, config, tokenizer)
        self._seed = seed

    def model(self) -> torch.nn.Module:
        """The same for every run of the seed."""
        return build_model(self._settings, self._model_config, self._seed)

    def batch(self, step: int, site: int, sites: int, size: int) -> torch.Tensor:
        """What a site reads in a step."""
        return torch.from_numpy(self._sequences.micro_batch(step * size * sites, 0, site, sites, size))

    @torch.no_grad()
    def held_out_loss(self, model: torch.nn.Module) -> float:
        """In nats a token."""
        model.eval()
        total, count = 0.0, 0
        numbers = self._sequences.held_out_numbers[:HELD_OUT_SEQUENCES]
        for first in range(0, len(numbers), 32):
            rows = torch.from_numpy(self._sequences.rows(numbers[first : first + 32]))
            total += len(rows) * float(model(input_ids=rows, labels=rows).loss)
            count += len(rows)
        model.train()
        return total / count


def run_plan(plan: Plan) -> dict[str, Any]:
    """Train; the loss and what it took."""
    data = Data(plan.size, plan.text, plan.seed)
    start = time.monotonic()
    if plan.every is None:
        model = data.model()
        optimizer = make_optimizer(model, plan)
        for step in range(plan.steps):
            train_step(model, optimizer, data.batch(step, 0, 1, plan.sites * plan.micro_batch), plan, step)
        return {"loss": data.held_out_loss(model), "seconds": time.monotonic() - start}
    names = [f"site{index}" for index in range(plan.sites)]

    def train_site(rounds: Rounds) -> dict[str, Any]:
        model = data.model()
        optimizer = make_optimizer(model, plan)
        for step in range(plan.joint_steps):
            train_step(model, optimizer, data.batch(step, 0, 1, plan.sites * plan.micro_batch), plan, step)
        handle = local_steps(
            model,
            optimizer,
            rounds=rounds,
            every=plan.every or 1,
            codec=plan.codec,
            decay=plan.decay,
            outer=Nesterov(plan.outer_lr, plan.outer_momentum),
            fragments=plan.fragments,
            averaging=plan.averaging,
            merge=plan.merge,  # pyright: ignore[reportArgumentType]
            overlap=plan.overlap,
        )
        site = names.index(rounds.site)
        for step in range(plan.joint_steps, plan.steps):
            train_step(model, optimizer, data.batch(step, site, plan.sites, plan.micro_batch), plan, step)
        handle.finish()
        stats = handle.stats()
        seconds = time.monotonic() - start
        loss = data.held_out_loss(model) if site == 0 else math.nan
        return {"loss": loss, "seconds": seconds, "rounds": stats["rounds"], "wire_bytes": stats["wire_bytes"]}

    return SimulatedSites(names, timeout_s=3600).run(train_site)[0]


def make_optimizer(model: torch.nn.Module, plan: Plan) -> torch.optim.Optimizer:
    """AdamW of every run."""
    return torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def train_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rows: torch.Tensor, plan: Plan, step: int
) -> None:
    """One optimizer step; the learning rate rises over the warm-up and falls linearly to a tenth."""
    done = max(0.0, step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    rate = plan.learning_rate * min(1.0, (step + 1) / plan.warmup_steps) * (1 - (1 - FINAL_LR) * done)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    model(input_ids=rows, labels=rows).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()


class Runs:
    """A file of JSON lines, one for each run that has ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commit = git_commit()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        """`plan` of an older row may lack a field that plans have now."""

    def find(self, plan: Plan) -> dict[str, Any] | None:
        """The run of this plan, if it has ended."""
        return next((row for row in self.rows if Plan(**row["plan"]) == plan), None)

    def run(self, plan: Plan) -> None:
        """Unless it has been run."""
        if self.find(plan) is not None:
            return
        loads = [os.getloadavg()[0]]
        result = run_plan(plan)
        loads.append(os.getloadavg()[0])
        row = {"plan": asdict(plan), **result, "load": max(loads), "commit": self._commit}
        self.rows.append(row)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"bench_local: seed {plan.seed}: {plan.name}: {row['loss']:.4f}, {row['seconds']:.0f} s", flush=True)


def main() -> int:
    """Run what is missing, print, write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.4m", help="of the model (default 0.4m)")
    parser.add_argument("--text", choices=TEXTS, default="builtin", help="what the models read (default builtin)")
    parser.add_argument("--steps", type=int, default=960, help="optimizer steps of every site (default 960)")
    parser.add_argument("--batch", type=int, default=4, help="sequences for each site and step (default 4)")
    parser.add_argument("--warmup", type=int, default=40, help="steps of warm-up (default 40)")
    parser.add_argument("--rate", type=float, default=2e-3, help="inner learning rate (default 2e-3)")
    parser.add_argument("--joint", type=int, default=0, help="first steps that are per-step (default 0)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method (default 3)")
    parser.add_argument("--parts", default="merge,codec", help="by commas (default merge,codec), or 'all'")
    parser.add_argument("--report", action="store_true", help="only write the report of what has been run")
    parser.add_argument("--date", default=date.today().isoformat(), help="in the names of the results")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.out / f"{arguments.date}-local-quality.md"
    runs = Runs(path.with_suffix(".jsonl"))
    if not arguments.report:
        for seed in range(1, arguments.seeds + 1):
            base = Plan(
                arguments.size,
                seed,
                arguments.steps,
                joint_steps=arguments.joint,
                learning_rate=arguments.rate,
                warmup_steps=arguments.warmup,
                micro_batch=arguments.batch,
                text=arguments.text,
            )
            parts = parts_of(base)
            for part in parts if arguments.parts == "all" else arguments.parts.split(","):
                for plan in parts[part]:
                    runs.run(plan.per_step())
                    runs.run(plan)
    rows = [(Plan(**row["plan"]), row) for row in runs.rows]
    write_report(path, rows, Conditions.here(shlex.join(["python", *sys.argv])))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
