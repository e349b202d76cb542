"""Loss of local steps by what each site reads, at equal tokens: `python benchmarks/bench_data_quality.py`, an hour.

Three sites, simulated in this process as in bench_local.py, of equal speed; three topics of text that are 1, 2 and 3
parts of the corpus, one at each site. Each variant trains on as many tokens as there are, three times 1 MiB of bytes:

- own: each site reads its own topic alone, the small ones again and again
- own first: each site reads its own topic, and what is left of the others' after that. Every sequence once
- dealt: each site reads the mix of all, dealt out. Every sequence once
- per-step: one site reads what the three read of the mix, at the same batch

The loss is of held-out text of all topics, weighted as the corpus is. Results: benchmarks/results/data-quality.md.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from bench_local import SIZES, Plan, make_optimizers, standard_library, train_step
from numpy.typing import NDArray

from geocomm.core.typed_torch import from_numpy
from geocomm.core.units import count_text
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.lab.bench.bench_report import Conditions, page, write_pair
from geocomm.sync.local_steps.fixed.simulated_rounds import SimulatedSites
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.settings.local_settings import LocalSettings, Nesterov
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

ROOT = Path(__file__).resolve().parent.parent
LENGTH, BATCH, STEPS = 64, 8, 2016
SITES = ("site0", "site1", "site2")
VARIANTS = ("per-step", "dealt", "own first", "own")
PARTS = (1, 2, 3)
PER_PART = len(SITES) * STEPS * BATCH // sum(PARTS)
"""Sequences of one part of the corpus: all sites together read as many as there are."""
HELD_OUT = 128
"""Sequences for each part."""


def topics() -> dict[str, tuple[Path, ...]]:
    """Files by topic, the smallest part first."""
    import cmake

    help_pages = Path(cmake.__file__).parent.rglob("Help/**/*.rst")
    headers = (Path(torch.__file__).parent / "include").rglob("*.h")
    return {
        "English (the manual of CMake)": tuple(sorted(help_pages)),
        "C++ (torch's headers)": tuple(sorted(headers)),
        "Python (the standard library)": standard_library(),
    }


@dataclass(frozen=True)
class Loss:
    """Held-out loss in nats a token."""

    variant: str
    seed: int
    mean: float
    """Weighted by the topics' parts."""
    topics: list[float]
    seconds: float


class Corpus:
    """The sequences of all topics: those that are trained on first, topic after topic, in an order by the seed."""

    def __init__(self, seed: int) -> None:
        self.rows: list[NDArray[np.int64]] = []
        self.held_out: list[NDArray[np.int64]] = []
        for parts, paths in zip(PARTS, topics().values(), strict=True):
            config = DataConfig.model_validate(
                {"sequence_length": LENGTH, "held_out_fraction": 0.05, "source": "text", "paths": paths}
            )
            packed = PackedSequences(load_tokens(config, load_tokenizer(config.tokenizer)), LENGTH, 0.05, seed)
            if packed.train_count < parts * PER_PART:
                raise SystemExit(f"{paths[0]} and others have too few sequences: {packed.train_count}")
            self.rows.append(packed.rows([packed.sequence_number(index) for index in range(parts * PER_PART)]))
            chosen = np.random.default_rng(0).permutation(packed.held_out_numbers)[: parts * HELD_OUT]
            self.held_out.append(packed.rows(chosen.tolist()))
        self._settings = ModelConfig.model_validate({"preset": "tiny", "overrides": SIZES["0.4m"]})
        config = DataConfig.model_validate({"sequence_length": LENGTH})
        self._model_config = model_config(self._settings, config, load_tokenizer(config.tokenizer))
        self._seed = seed

    def model(self) -> torch.nn.Module:
        """The same for every run of the seed."""
        return build_model(self._settings, self._model_config, self._seed)

    def lines(self, variant: str) -> list[NDArray[np.int64]]:
        """The rows that each site reads, in their order."""
        each = STEPS * BATCH
        if variant in ("dealt", "per-step"):
            order = np.random.default_rng(self._seed).permutation(len(SITES) * each)
            return list(np.concatenate(self.rows)[order].reshape(len(SITES), each, LENGTH))
        if variant == "own":
            return [np.resize(own, (each, LENGTH)) for own in self.rows]
        rest = np.concatenate([own[each:] for own in self.rows])
        rest = rest[np.random.default_rng(self._seed).permutation(len(rest))]
        lines: list[NDArray[np.int64]] = []
        for own in self.rows:
            lacking = max(0, each - len(own))
            lines.append(np.concatenate([own[:each], rest[:lacking]]))
            rest = rest[lacking:]
        return lines

    @torch.no_grad()
    def loss(self, model: torch.nn.Module) -> list[float]:
        """By topic."""
        model.eval()
        losses: list[float] = []
        for rows in self.held_out:
            total = 0.0
            for first in range(0, len(rows), 64):
                batch = from_numpy(rows[first : first + 64])
                total += len(batch) * float(model(input_ids=batch, labels=batch).loss)
            losses.append(total / len(rows))
        model.train()
        return losses


def run(variant: str, seed: int, rate: float, every: int) -> Loss:
    """Train, with the learning rate of the sites or of per-step training."""
    corpus, began = Corpus(seed), time.monotonic()
    lines = [from_numpy(line) for line in corpus.lines(variant)]
    plan = Plan("0.4m", seed, STEPS, sites=len(SITES), every=every, learning_rate=rate, warmup_steps=100)

    def batch(site: int, step: int) -> torch.Tensor:
        return lines[site][step * BATCH : (step + 1) * BATCH]

    def train(rounds: Rounds | None) -> list[float]:
        model = corpus.model()
        optimizers = make_optimizers(model, plan)
        if rounds is None:
            for step in range(STEPS):
                rows = torch.cat([batch(site, step) for site in range(len(SITES))])
                train_step(model, optimizers, rows, plan, step)
            return corpus.loss(model)
        settings = LocalSettings(every=every, codec="int4", outer=Nesterov(1.0, 0.8))
        handle = local_steps(model, optimizers[0], settings, rounds=rounds)
        site = SITES.index(rounds.site)
        for step in range(STEPS):
            train_step(model, optimizers, batch(site, step), plan, step)
        handle.finish()
        return corpus.loss(model) if site == 0 else []

    losses = train(None) if variant == "per-step" else SimulatedSites(list(SITES), timeout_s=3600).run(train)[0]
    mean = sum(part * loss for part, loss in zip(PARTS, losses, strict=True)) / sum(PARTS)
    return Loss(variant, seed, mean, losses, time.monotonic() - began)


def _page(conditions: Conditions, found: list[Loss], every: int, rate: float) -> str:
    seeds = sorted({one.seed for one in found})
    best = {one.seed: one.mean for one in found if one.variant == "per-step"}

    def row(variant: str) -> str:
        own = [one for one in found if one.variant == variant]
        gaps = {one.seed: 100 * (one.mean / best[one.seed] - 1) for one in own}
        by_topic = [statistics.mean(column) for column in zip(*(one.topics for one in own), strict=True)]
        return (
            f"| {variant} | {', '.join(f'{one.mean:.4f}' for one in own)} | {statistics.mean(gaps.values()):+.2f} % | "
            f"{', '.join(f'{gaps[seed]:+.2f}' for seed in seeds if seed in gaps)} | "
            + " | ".join(f"{loss:.4f}" for loss in by_topic)
            + " |"
        )

    parts = ", ".join(f"{name}, {count_text(part, 'part')}" for name, part in zip(topics(), PARTS, strict=True))
    return page(
        "Loss by what each site reads",
        conditions,
        f"Three simulated sites, {BATCH} sequences of {LENGTH} bytes each a step, {STEPS} steps; 389,520 "
        f"parameters; a round every {every} steps, int4 with error feedback, AdamW at a rate of {rate:g}. Topics: "
        f"{parts}, of {PER_PART * LENGTH:,} bytes a part. Loss: nats a byte, of held-out text, weighted as the "
        f"corpus; by topic the mean of the seeds ({', '.join(map(str, seeds))}).",
        f"| read | loss of each seed | over per-step | each seed | {' | '.join(topics())} |",
        "|---|---|---:|---|---:|---:|---:|",
        *(row(variant) for variant in VARIANTS if any(one.variant == variant for one in found)),
    )


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--seeds", default="1,2", help="by commas (default 1,2)")
    parser.add_argument("--every", type=int, default=30, help="steps of a round (default 30)")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate (default 2e-3)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_data_quality.py", *sys.argv[1:]]))
    found: list[Loss] = []
    for seed in map(int, arguments.seeds.split(",")):
        for variant in VARIANTS:
            found.append(run(variant, seed, arguments.rate, arguments.every))
            print(found[-1], flush=True)
            text = _page(conditions, found, arguments.every, arguments.rate)
            write_pair(arguments.out / "data-quality.md", text, {"runs": [asdict(one) for one in found]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
