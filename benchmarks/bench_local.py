"""Loss of training with local steps over per-step training, at equal tokens: `python benchmarks/bench_local.py`.

Sites are simulated in this process, with the real handle and the real codecs (geocomm/sync/local_steps). Every run of
one seed begins with the same weights and reads the same batches: per step, the union of what the sites read. The
per-step baseline averages exactly, which is the same as training on that union. The loss is of held-out text, on the
anchor.

Runs are kept one by one in a file of JSON lines beside the report, and an interrupted benchmark goes on after the
last. Several processes may add to one file. `--parts` says what to compare: base, per-step, merge, sites-merge, outer,
before, codec, int8, loco, every, alone, radial, fragments, joint, rate, muon (`parts_of`). Runs are compared inside of
one regime: `--size`, `--text`, `--steps`, and the sequences that all sites read in a step (`--sites` times `--batch`).
One thread; start it under `nice` where others work. Results: benchmarks/results/local-quality.md, .jsonl and .png.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import shlex
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from bench_local_report import TEXTS, write_report

from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.lab.bench.bench_report import Conditions, git_commit
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.averaging import Averaging
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE_LENGTH = 64
HELD_OUT_FRACTION = 0.05
HELD_OUT_SEQUENCES = 512
CLIP_NORM = 1.0
MERGES: tuple[dict[str, Any], ...] = (
    {"overlap": 0},
    {"overlap": 5},
    {"overlap": 15},
    {"overlap": 5, "merge": 0.0},
)
RATES = (0.7, 1, 2)
"""Of the inner learning rate, in the part `rate`."""
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


Inner = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Plan:
    """One run."""

    size: str
    seed: int
    steps: int
    sites: int = 2
    every: int | None = 30
    """None: per-step."""
    overlap: int = 1
    merge: float | str = "carry"
    codec: str = "none"
    fragments: int = 1
    outer_lr: float = 1.0
    outer_momentum: float = 0.8
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
    inner: Inner = "adamw"
    """muon: for the matrices between embeddings and output head, and AdamW for the rest."""
    muon_rate: float = 0.02
    """Muon's learning rate; `learning_rate` is AdamW's."""
    end: Literal["outer step", "mean"] = "outer step"
    """Of the run: what `finish` did up to version 0.2, or what it does now."""

    def per_step(self) -> Plan:
        """The run that this one is compared with."""
        defaults = {name: Plan.__dataclass_fields__[name].default for name in _LOCAL_FIELDS}
        return replace(self, **defaults, every=None)

    @property
    def regime(self) -> tuple[str, str, int, int]:
        """Model, text, steps, and the sequences that all sites read in a step: runs of one regime are compared."""
        return self.size, self.text, self.steps, self.sites * self.micro_batch

    @property
    def identity(self) -> Plan:
        """Equal for plans that are the same run: a per-step run does not depend on how many sites share its batch."""
        plan = self if self.inner == "muon" else replace(self, muon_rate=Plan.muon_rate)
        if plan.every is not None:
            return plan
        return replace(plan.per_step(), sites=1, micro_batch=plan.sites * plan.micro_batch)

    @property
    def name(self) -> str:
        """For the report."""
        muon = f", Muon {self.muon_rate:g}" if self.inner == "muon" else ""
        if self.every is None:
            return f"per-step, {self.sites * self.micro_batch} sequences, lr {self.learning_rate:.3g}{muon}"
        merge = "no overlap" if self.overlap == 0 else f"overlap {self.overlap}, merge {self.merge}"
        parts = [
            f"M={self.sites} x {self.micro_batch}, H={self.every}, {merge}",
            f"outer {self.outer_lr:g} / {self.outer_momentum:g}",
            "fp32" if self.codec == "none" else f"{self.codec} + EF",
        ]
        if self.decay != 1:
            parts.append(f"decay {self.decay:g}")
        if self.fragments > 1:
            parts.append(f"{self.fragments} fragments")
        if self.averaging != "auto":
            parts.append(f"{self.averaging} averages")
        if self.joint_steps:
            parts.append(f"first {self.joint_steps} steps per-step")
        if self.end == "mean":
            parts.append("ends in a mean")
        return ", ".join(parts) + f", lr {self.learning_rate:.3g}{muon}"


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
    "end",
)


def parts_of(base: Plan) -> dict[str, list[Plan]]:
    """What each part compares with per-step."""
    return {
        "base": [base],
        "per-step": [base.per_step()],
        "merge": [base, *(replace(base, **changes) for changes in MERGES)],
        "sites-merge": [replace(base, sites=4, codec="int4", **changes) for changes in ({}, *MERGES)],
        "outer": [
            base,
            *(
                replace(base, outer_lr=lr, outer_momentum=momentum)
                for lr, momentum in ((0.6, 0.9), (1.0, 0.0), (0.8, 0.6), (0.4, 0.9), (0.8, 0.9), (1.0, 0.3))
            ),
        ],
        "before": [
            replace(base, overlap=5, merge=0.5, outer_lr=0.6, outer_momentum=0.9)
        ],  # the defaults until November 2026
        "codec": [base, replace(base, codec="int4")],
        "int8": [base, replace(base, codec="int8")],
        "loco": [replace(base, codec="loco", outer_lr=1.0, outer_momentum=0.0, decay=0.95)],  # the preset of this name
        "every": [
            replace(base, every=every)
            for every in (10, 30, 100)
            if (base.steps - base.joint_steps) // every >= LEAST_ROUNDS - 1
        ],
        # Exact averages, nearly in every step: what these lose, no exchange of fewer bytes makes good.
        "short": [replace(base, every=3, codec="none", outer_momentum=momentum) for momentum in (0.0, 0.5)],
        "alone": [replace(base, sites=1).per_step()],
        "radial": [replace(base, averaging="radial")],
        "fragments": [base, replace(base, fragments=4)],
        "joint": [base, replace(base, joint_steps=base.warmup_steps), replace(base, joint_steps=base.steps // 10)],
        "rate": [replace(base, learning_rate=factor * base.learning_rate) for factor in RATES],
        "muon": [replace(base, inner="muon")],
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
            total += len(rows) * float(model.forward(input_ids=rows, labels=rows).loss)  # never compiled
            count += len(rows)
        model.train()
        return total / count


def run_plan(plan: Plan, *, compiled: bool = False) -> dict[str, Any]:
    """Train; the loss and what it took."""
    data = Data(plan.size, plan.text, plan.seed)
    start = time.monotonic()

    def begin() -> tuple[torch.nn.Module, list[torch.optim.Optimizer]]:
        model = data.model()
        if compiled:
            model.compile(dynamic=False)
        return model, make_optimizers(model, plan)

    model, optimizers = begin()
    for step in range(plan.steps if plan.every is None else plan.joint_steps):
        train_step(model, optimizers, data.batch(step, 0, 1, plan.sites * plan.micro_batch), plan, step)
    if plan.every is None:
        return {"loss": data.held_out_loss(model), "seconds": time.monotonic() - start}
    names = [f"site{index}" for index in range(plan.sites)]
    joint_weights = model.state_dict()
    joint_moments = [optimizer.state_dict() for optimizer in optimizers]

    def train_site(rounds: Rounds) -> dict[str, Any]:
        model, optimizers = begin()
        model.load_state_dict(joint_weights)
        for optimizer, moments in zip(optimizers, joint_moments, strict=True):
            optimizer.load_state_dict(copy.deepcopy(moments))
        handle = local_steps(
            model,
            optimizers if len(optimizers) > 1 else optimizers[0],
            LocalSettings(
                every=plan.every or 1,
                codec=plan.codec,
                decay=plan.decay,
                outer=Nesterov(plan.outer_lr, plan.outer_momentum),
                fragments=plan.fragments,
                averaging=plan.averaging,
                merge=plan.merge,
                overlap=plan.overlap,
            ),
            rounds=rounds,
        )
        site = names.index(rounds.site)
        for step in range(plan.joint_steps, plan.steps):
            train_step(model, optimizers, data.batch(step, site, plan.sites, plan.micro_batch), plan, step)
        handle.finish()
        stats = handle.stats()
        seconds = time.monotonic() - start
        loss = data.held_out_loss(model) if site == 0 else math.nan
        return {"loss": loss, "seconds": seconds, "rounds": stats["rounds"], "wire_bytes": stats["wire_bytes"]}

    return SimulatedSites(names, timeout_s=3600).run(train_site)[0]


def make_optimizers(model: torch.nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """The inner optimizers, in the order of their steps."""
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if plan.inner == "muon" and parameter.ndim == 2 and not {"embed_tokens", "lm_head"} & set(name.split("."))
    ]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    adamw = torch.optim.AdamW(others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    return [torch.optim.Muon(matrices, lr=plan.muon_rate, weight_decay=0.1), adamw] if matrices else [adamw]


def train_step(
    model: torch.nn.Module, optimizers: list[torch.optim.Optimizer], rows: torch.Tensor, plan: Plan, step: int
) -> None:
    """One optimizer step; the learning rate rises over the warm-up and falls linearly to a tenth."""
    done = max(0.0, step - plan.warmup_steps) / max(1, plan.steps - plan.warmup_steps)
    share = min(1.0, (step + 1) / plan.warmup_steps) * (1 - (1 - FINAL_LR) * done)
    for optimizer in optimizers:
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = optimizer.defaults["lr"] * share
    model(input_ids=rows, labels=rows).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    for optimizer in optimizers:
        optimizer.step()


class Runs:
    """A file of JSON lines, one for each run that has ended. Several processes may add to one file."""

    def __init__(self, path: Path, *, compiled: bool = False) -> None:
        self._path = path
        self._compiled = compiled
        self._commit = git_commit()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """`plan` of an older row may lack a field that plans have now."""
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        return [json.loads(line) for line in lines]

    def find(self, plan: Plan) -> dict[str, Any] | None:
        """The run of this plan, if it has ended."""
        return next((row for row in self.rows if Plan(**row["plan"]).identity == plan.identity), None)

    def run(self, plan: Plan) -> None:
        """Unless it has been run."""
        if self.find(plan) is not None:
            return
        loads = [os.getloadavg()[0]]
        result = run_plan(plan, compiled=self._compiled)
        loads.append(os.getloadavg()[0])
        row = {"plan": asdict(plan), **result, "load": max(loads), "compiled": self._compiled, "commit": self._commit}
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
    parser.add_argument("--sites", type=int, default=2, help="their number (default 2)")
    parser.add_argument("--codec", default="none", help="of the deltas (default none)")
    parser.add_argument("--batch", type=int, default=4, help="sequences for each site and step (default 4)")
    parser.add_argument("--warmup", type=int, default=40, help="steps of warm-up (default 40)")
    parser.add_argument("--rate", type=float, default=2e-3, help="inner learning rate (default 2e-3)")
    parser.add_argument("--joint", type=int, default=0, help="first steps that are per-step (default 0)")
    parser.add_argument("--seeds", default="1,2,3", help="by commas (default 1,2,3)")
    parser.add_argument("--parts", default="merge,codec", help="by commas (default merge,codec)")
    parser.add_argument("--report", action="store_true", help="only write the report of what has been run")
    parser.add_argument("--compile", action="store_true", help="model.compile(): a third faster from a minute on")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = arguments.out / "local-quality.md"
    runs = Runs(path.with_suffix(".jsonl"), compiled=arguments.compile)
    if not arguments.report:
        for seed in map(int, arguments.seeds.split(",")):
            base = Plan(
                arguments.size,
                seed,
                arguments.steps,
                sites=arguments.sites,
                codec=arguments.codec,
                joint_steps=arguments.joint,
                learning_rate=arguments.rate,
                warmup_steps=arguments.warmup,
                micro_batch=arguments.batch,
                text=arguments.text,
                end="mean",
            )
            parts = parts_of(base)
            for part in arguments.parts.split(","):
                for plan in parts[part]:
                    runs.run(plan.per_step())
                    runs.run(plan)
    rows = [(Plan(**row["plan"]), row) for row in runs.rows]
    write_report(path, rows, Conditions.here(shlex.join(["python", *sys.argv])))
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
