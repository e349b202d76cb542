"""Many runs of local steps at once: every site of every run is a row of one batched model.

A model of 0.1 M parameters keeps no GPU busy, and a question such as "which learning rate?" needs hundreds of runs.
Here a site's weights are one row of a matrix, each layer is one batched product for all rows, and a step of all runs
is one CUDA graph. Learning rates, outer optimizers and seeds are numbers of a row; what a round does is geocomm's
arithmetic (geocomm/sync/local_steps/outer) written for rows: int4 of 128 elements with error feedback, Nesterov,
merge "carry" after one step, `finish`. `bench_local_gap.py --check` compares it with geocomm's own simulated sites.

Per-step runs are rows too: the gradients of a run's rows are averaged in every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

LENGTH = 64
"""Bytes of a sequence; a token is a byte."""
VOCABULARY = 256
BETA2 = 0.95
WEIGHT_DECAY = 0.1
CLIP_NORM = 1.0
WARMUP_STEPS = 40
FINAL_RATE = 0.1
BLOCK = 128
"""Elements of int4 that share a scale."""
TOKENS_AT_ONCE = 1 << 19
"""Of all rows whose activations are in memory together."""


@dataclass(frozen=True)
class Size:
    """A decoder with learned positions."""

    width: int
    layers: int
    heads: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all tensors: matrices first, since only these are compressed."""
        d = self.width
        matrices: dict[str, tuple[int, ...]] = {"embed": (VOCABULARY, d), "place": (LENGTH, d), "head": (d, VOCABULARY)}
        gains: dict[str, tuple[int, ...]] = {"norm": (d,)}
        for i in range(self.layers):
            matrices |= {f"qkv{i}": (d, 3 * d), f"out{i}": (d, d), f"up{i}": (d, 4 * d), f"down{i}": (4 * d, d)}
            gains |= {f"norm_a{i}": (d,), f"norm_b{i}": (d,)}
        return matrices | gains

    @property
    def matrix_elements(self) -> int:
        """Of all matrices."""
        return sum(math.prod(shape) for shape in self.shapes().values() if len(shape) > 1)

    @property
    def elements(self) -> int:
        """Parameters."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    def spans(self) -> Iterator[tuple[str, tuple[int, ...], slice]]:
        """Where each tensor lies in a row."""
        begin = 0
        for name, shape in self.shapes().items():
            yield name, shape, slice(begin, begin + math.prod(shape))
            begin += math.prod(shape)


SIZES = {"0.1m": Size(64, 2, 4), "0.7m": Size(128, 3, 4), "2.5m": Size(224, 4, 7)}


@dataclass(frozen=True)
class Run:
    """A training run of some sites."""

    sites: int
    rate: float
    seed: int
    every: int = 0
    """Steps between two rounds; 0: per-step."""
    outer_lr: float = 1.0
    outer_momentum: float = 0.8
    codec: str = "int4"
    """Or none."""
    beta: float = 0.9
    """AdamW's first."""
    slow_part: float = 1.0
    """Of the first moment in a step; the rest is the gradient itself (quasi-hyperbolic, arXiv 1810.06801)."""
    averages_moments: bool = False
    """First moments are averaged in each round, exactly (MT-DAO, arXiv 2510.05361)."""
    shrinks: bool = False
    """Each element of the mean delta times its signal over signal and noise, each tensor's length kept."""
    momentum_ends: bool = False
    """Outer momentum falls to 0 over the last fifth of the rounds."""
    averaging: str = "mean"
    """Or radial."""
    pair_every: int = 0
    """Steps between two averages inside of each pair of neighbouring sites, besides the rounds of all; 0: none."""
    aggregates: bool = False
    """The mean is compressed once more, without error feedback, as an aggregator does."""
    region_sites: int = 0
    """Sites of a region: the mean of each but the aggregator's own is compressed first. 0: there are no regions."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Runs of one kind are treated by the same code."""
        return (
            self.sites,
            self.every,
            self.codec,
            self.averages_moments,
            self.shrinks,
            self.momentum_ends,
            self.averaging,
            self.pair_every,
            self.aggregates,
            self.region_sites,
        )


@dataclass(frozen=True)
class Recipe:
    """What all runs of a batch have in common."""

    size: str
    steps: int
    batch: int
    """Sequences of a site and step."""
    joint_steps: int = 100
    """First steps that are per-step."""

    def rate_share(self, step: int) -> float:
        """Of a run's learning rate in a step: it rises over the warm-up, and falls linearly to a tenth."""
        done = max(0.0, step - WARMUP_STEPS) / (self.steps - WARMUP_STEPS)
        return min(1.0, (step + 1) / WARMUP_STEPS) * (1 - (1 - FINAL_RATE) * done)


@dataclass
class Group:
    """Runs of one kind: their rows lie together."""

    runs: list[Run]
    rows: slice

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """[runs, sites, …] of what has a line for each row."""
        return values[self.rows].view(len(self.runs), -1, *values.shape[1:])


class Rows:
    """Trains all runs of a batch together, and says the held-out loss of each."""

    def __init__(self, recipe: Recipe, runs: list[Run], text: torch.Tensor, held_out: torch.Tensor) -> None:
        """text, held_out: uint8, 1-D, on the device that trains."""
        self._recipe, self.size = recipe, SIZES[recipe.size]
        self._text, self._held_out = text, held_out
        self._device = text.device
        self.runs = sorted(runs, key=lambda run: (run.every > 0, run.kind))
        self._groups: list[Group] = []
        first = 0
        for kind in dict.fromkeys(run.kind for run in self.runs):
            members = [run for run in self.runs if run.kind == kind]
            count = len(members) * members[0].sites
            self._groups.append(Group(members, slice(first, first + count)))
            first += count
        self._count = first
        sites = [(run, site) for run in self.runs for site in range(run.sites)]
        self._rate = self._column([run.rate for run, _ in sites])
        self._beta = self._column([run.beta for run, _ in sites])
        self._slow = self._column([run.slow_part for run, _ in sites])
        seeds = sorted({run.seed for run in runs})
        self._draw = torch.tensor([[seeds.index(run.seed), site] for run, site in sites], device=self._device).T
        self._draws = (len(seeds), max(run.sites for run in runs), recipe.batch)
        self._generator = torch.Generator(self._device).manual_seed(1000 + recipe.batch)

        self._weights = torch.empty(self._count, self.size.elements, device=self._device)
        self._gradients = torch.zeros_like(self._weights)
        self._first = torch.zeros_like(self._weights)
        self._second = torch.zeros_like(self._weights)
        self._begin = {seed: self.first_weights(seed) for seed in seeds}
        self._chunks = list(self._parameters())
        self._places = torch.zeros(self._count, recipe.batch, dtype=torch.long, device=self._device)
        self._share = torch.ones((), device=self._device)
        """Of the learning rate."""
        self._one_minus = torch.ones(2, self._count, 1, device=self._device)
        """1 - beta^t of both moments."""
        self._span = torch.arange(LENGTH + 1, device=self._device)
        self._update = torch.compile(_update) if self._device.type == "cuda" else _update

    def _column(self, values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device).unsqueeze(1)

    def first_weights(self, seed: int) -> torch.Tensor:
        """One row, the same for every run of the seed."""
        generator = torch.Generator().manual_seed(seed)
        row = torch.empty(self.size.elements)
        for name, shape, span in self.size.spans():
            if len(shape) == 1:
                row[span] = 1.0
                continue
            deviation = 0.02 if name in ("embed", "place") else shape[0] ** -0.5
            if name.startswith(("out", "down")):
                deviation /= math.sqrt(2 * self.size.layers)
            row[span] = torch.randn(math.prod(shape), generator=generator) * deviation
        return row.to(self._device)

    def _parameters(self) -> Iterator[tuple[slice, dict[str, torch.Tensor]]]:
        """Leaves of autograd whose memory, and whose gradients', are those of some rows."""
        at_once = max(1, TOKENS_AT_ONCE // (self._recipe.batch * LENGTH))
        for first in range(0, self._count, at_once):
            rows = slice(first, min(first + at_once, self._count))
            leaves = {}
            for name, shape, span in self.size.spans():
                leaf = self._weights[rows, span].unflatten(1, shape).detach().requires_grad_()
                leaf.grad = self._gradients[rows, span].unflatten(1, shape)
                leaves[name] = leaf
            yield rows, leaves

    def train(self) -> dict[Run, float]:
        """The held-out loss of each run, in nats a token."""
        recipe = self._recipe
        joint = self._recorded(range(len(self._groups)))
        local = self._recorded([i for i, group in enumerate(self._groups) if not group.runs[0].every])
        row = 0
        for run in self.runs:
            self._weights[row : row + run.sites] = self._begin[run.seed]
            row += run.sites
        self._first.zero_()
        self._second.zero_()
        outer: list[_Outer] = []
        for step in range(recipe.steps):
            if step == recipe.joint_steps:
                outer = [_Outer(group, self.size, self._weights) for group in self._groups if group.runs[0].every]
            self._prepare(step)
            joint() if step < recipe.joint_steps else local()
            for each in outer:
                each.after_step(step + 1 - recipe.joint_steps, recipe.steps - recipe.joint_steps, self._first)
        ends = {id(each.group): each.end(recipe.steps - recipe.joint_steps) for each in outer}
        losses: dict[Run, float] = {}
        for group in self._groups:
            weights = ends[id(group)] if id(group) in ends else group.of(self._weights)[:, 0]
            losses |= dict(zip(group.runs, self.held_out_losses(weights), strict=True))
        return losses

    def _prepare(self, step: int) -> None:
        """What a recorded step reads."""
        drawn = torch.randint(len(self._text) - LENGTH - 1, self._draws, generator=self._generator, device=self._device)
        self._places.copy_(drawn[self._draw[0], self._draw[1]])
        self._share.fill_(self._recipe.rate_share(step))
        self._one_minus[0] = 1 - self._beta ** (step + 1)
        self._one_minus[1] = 1 - BETA2 ** (step + 1)

    def _recorded(self, averaged: Sequence[int]) -> Callable[[], None]:
        """A step in which the gradients of these groups are averaged over their sites, as one CUDA graph."""
        groups = [self._groups[i] for i in averaged]

        def step() -> None:
            self._gradients.zero_()
            for rows, leaves in self._chunks:
                tokens = self._text[self._places[rows].unsqueeze(2) + self._span].long()
                loss_sum(self.size, leaves, tokens).div(self._recipe.batch * LENGTH).backward()
            with torch.no_grad():
                for group in groups:
                    each = group.of(self._gradients)
                    each.copy_(each.mean(1, keepdim=True).expand_as(each))
                norm = torch.linalg.vector_norm(self._gradients, dim=1, keepdim=True)
                scale = (CLIP_NORM / (norm + 1e-6)).clamp(max=1.0)
                self._update(
                    self._weights,
                    self._gradients,
                    self._first,
                    self._second,
                    scale,
                    self._rate * self._share,
                    self._beta,
                    self._slow,
                    self._one_minus[0],
                    self._one_minus[1],
                )

        if self._device.type != "cuda":
            return step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            step()
        return graph.replay

    def leaves(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of a row."""
        return {name: row[span].unflatten(0, shape) for name, shape, span in self.size.spans()}

    def batches(self) -> Iterator[torch.Tensor]:
        """What the rows read in each step of a training: [rows, sequences, LENGTH + 1]."""
        for step in range(self._recipe.steps):
            self._prepare(step)
            yield self._text[self._places.unsqueeze(2) + self._span].long()

    @torch.no_grad()
    def held_out_losses(self, weights: torch.Tensor) -> list[float]:
        """weights: [runs, elements]."""
        sequences = self._held_out[: len(self._held_out) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1).long()
        losses = []
        for row in weights:
            leaves = {name: value.unsqueeze(0) for name, value in self.leaves(row).items()}
            total = sum(
                float(loss_sum(self.size, leaves, part.unsqueeze(0)))
                for part in sequences.split(TOKENS_AT_ONCE // LENGTH)
            )
            losses.append(total / (sequences.shape[0] * LENGTH))
        return losses


def loss_sum(size: Size, leaves: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """The sum of the losses of all tokens of all rows; tokens: [rows, sequences, LENGTH + 1]."""
    rows, batch = tokens.shape[:2]
    d = size.width
    ids = tokens[..., :-1].reshape(rows, batch * LENGTH)
    hot = (ids.unsqueeze(2) == torch.arange(VOCABULARY, device=ids.device)).to(leaves["embed"].dtype)
    x = torch.bmm(hot, leaves["embed"])
    x = (x.view(rows, batch, LENGTH, d) + leaves["place"].unsqueeze(1)).view(rows, batch * LENGTH, d)

    def norm(x: torch.Tensor, gain: str) -> torch.Tensor:
        return functional.rms_norm(x, (d,)) * leaves[gain].unsqueeze(1)

    for i in range(size.layers):
        qkv = torch.bmm(norm(x, f"norm_a{i}"), leaves[f"qkv{i}"])
        q, k, v = qkv.view(rows * batch, LENGTH, 3, size.heads, d // size.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + torch.bmm(mixed.transpose(1, 2).reshape(rows, batch * LENGTH, d), leaves[f"out{i}"])
        x = x + torch.bmm(functional.gelu(torch.bmm(norm(x, f"norm_b{i}"), leaves[f"up{i}"])), leaves[f"down{i}"])
    logits = torch.bmm(norm(x, "norm"), leaves["head"])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[..., 1:].reshape(-1), reduction="sum")


def _update(
    weights: torch.Tensor,
    gradients: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    scale: torch.Tensor,
    rate: torch.Tensor,
    beta: torch.Tensor,
    slow: torch.Tensor,
    one_minus_first: torch.Tensor,
    one_minus_second: torch.Tensor,
) -> None:
    """AdamW for all rows, in place."""
    gradient = gradients * scale
    moment = first * beta + gradient * (1 - beta)
    square = second * BETA2 + gradient * gradient * (1 - BETA2)
    direction = slow * (moment / one_minus_first) + (1 - slow) * gradient
    step = direction / ((square / one_minus_second).sqrt() + 1e-8)
    weights.copy_(weights * (1 - rate * WEIGHT_DECAY) - rate * step)
    first.copy_(moment)
    second.copy_(square)


class _Outer:
    """Anchors, momenta and residuals of a group's runs."""

    def __init__(self, group: Group, size: Size, weights: torch.Tensor) -> None:
        self.group, self._size = group, size
        self._local = group.of(weights)
        run = group.runs[0]
        self._every, self._sites = run.every, run.sites
        self._anchor = self._local[:, 0].clone()
        self._momentum = torch.zeros_like(self._anchor)
        self._residual = torch.zeros_like(self._local[..., : size.matrix_elements]) if run.codec != "none" else None
        self._at_begin = torch.empty_like(self._local)
        self._last_step = 0
        self._last_mu = torch.zeros(len(group.runs), 1, device=weights.device)
        self._lr = torch.tensor([[run.outer_lr] for run in group.runs], device=weights.device)
        self._mu = torch.tensor([[run.outer_momentum] for run in group.runs], device=weights.device)

    @torch.no_grad()
    def after_step(self, step: int, steps: int, first: torch.Tensor) -> None:
        """A round begins after every `every` steps, and is merged after the next one."""
        run = self.group.runs[0]
        if step > 1 and step % self._every == 1:
            self._local.sub_(self._at_begin).add_(self._anchor.unsqueeze(1))
        if run.pair_every and step % run.pair_every == 0 and step % self._every:
            pairs = self._local.unflatten(1, (-1, 2))
            pairs.copy_(pairs.mean(2, keepdim=True).expand_as(pairs))
        if step % self._every:
            return
        self._at_begin.copy_(self._local)
        delta = self._anchor.unsqueeze(1) - self._local
        if self._residual is not None:
            matrices = delta[..., : self._size.matrix_elements]
            matrices += self._residual
            coded = int4(matrices)
            torch.sub(matrices, coded, out=self._residual)
            matrices.copy_(coded)
        if run.region_sites:
            delta = delta.view(len(delta), -1, run.region_sites, delta.shape[-1]).mean(2)
            others = [region for region in range(delta.shape[1]) if region != step // run.every % delta.shape[1]]
            delta[:, others, : self._size.matrix_elements] = int4(delta[:, others, : self._size.matrix_elements])
        mean = self._mean(delta)
        if run.aggregates:
            mean[..., : self._size.matrix_elements] = int4(mean[..., : self._size.matrix_elements])
        if run.averages_moments:
            moments = self.group.of(first)
            moments.copy_(moments.mean(1, keepdim=True).expand_as(moments))
        mu = self._mu
        if run.momentum_ends:
            mu = mu * min(1.0, max(0.0, (steps - step) / (0.2 * steps)))
        self._momentum.mul_(mu).add_(mean)
        self._anchor.sub_(self._lr * (mu * self._momentum + mean))
        self._last_step, self._last_mu = step, mu

    def _mean(self, delta: torch.Tensor) -> torch.Tensor:
        """Of the sites; radial averages leave out the embeddings, as geocomm's do."""
        mean = delta.mean(1)
        if self.group.runs[0].shrinks:
            noise = delta.var(1, unbiased=True) / self._sites
            shrunk = mean * (mean * mean) / (mean * mean + noise + 1e-30)
            for _, _, span in self._size.spans():
                length = mean[:, span].norm(dim=1, keepdim=True)
                shrunk[:, span] *= length / (shrunk[:, span].norm(dim=1, keepdim=True) + 1e-30)
            mean = shrunk
        if self.group.runs[0].averaging == "radial":
            for name, _, span in self._size.spans():
                if name in ("embed", "head"):
                    continue
                lengths = delta[..., span].norm(dim=2, keepdim=True)
                direction = (delta[..., span] / (lengths + 1e-30)).mean(1)
                mean[:, span] = direction * lengths.mean(1) / (direction.norm(dim=1, keepdim=True) + 1e-30)
        return mean

    @torch.no_grad()
    def end(self, step: int) -> torch.Tensor:
        """What `finish` leaves: the mean of the sites, and a part of the last momentum taken back."""
        if step % self._every == 0:  # the last round is merged first
            self._local.sub_(self._at_begin).add_(self._anchor.unsqueeze(1))
        corrected = min(1.0, (step - self._last_step) / self._every)
        return self._local.mean(1) + (1 - corrected) * self._lr * self._last_mu * self._momentum


def int4(values: torch.Tensor) -> torch.Tensor:
    """What arrives of int4 with blocks of 128: multiples of a seventh of each block's largest value."""
    count = values.shape[-1]
    padded = functional.pad(values, (0, -count % BLOCK)).unflatten(-1, (-1, BLOCK))
    scale = padded.abs().amax(-1, keepdim=True) / 7
    return ((padded / (scale + 1e-30)).round() * scale).flatten(-2)[..., :count]
