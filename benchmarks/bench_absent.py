"""How much of a long delta a round should take: `PYTHONPATH=tests python benchmarks/bench_absent.py`, ten minutes.

Three sites train the model of the elastic soak, a transformer of bytes, in one process. Site 1 and then site 2 are away
for ten cycles: they train on, and no round counts them. Then such a site offers all that it has learned. A row is a
bound: how many cycles of a delta one round takes, and how many cycles it weighs at most. What is left is offered in the
next round. `inf:4`: the whole delta, with a weight of up to four cycles.

Deltas, their parts, averages, outer steps and merges are geocomm's own functions, called as an elastic run calls them,
but without a network, codec or overlap. They are verified first: no step is lost or counted twice. Prints Markdown; a
run stands in benchmarks/results/single-measurements.md.
"""

from __future__ import annotations

import argparse
import copy
import math
import shlex
import statistics
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from geocomm.lab.bench.bench_report import Conditions, load_at_end
from geocomm.sync.local_steps.model.fragments import Tensor, make_fragments
from geocomm.sync.local_steps.outer.anchor import CARRY, AnchoredFragment, merge_local
from geocomm.sync.local_steps.outer.averaging import average_deltas
from geocomm.sync.local_steps.outer.resolved_settings import PRESETS
from geocomm.sync.local_steps.outer.site_weights import MOST_CYCLES, MOST_WEIGHT, SiteWeights, shorten, take_delta
from support.elastic_soak_rank import BATCH, CONTEXT, ByteModel, rows_at

SITES, FRAGMENTS = 3, 2
EVERY = 20
"""Steps of a cycle."""
AWAY = {1: range(600, 800), 2: range(1000, 1200)}
"""The steps in which a site is away."""
STEPS = 1400
AFTER = 5 * EVERY
"""Steps after a return that its loss is the mean of."""
HELD_OUT_EVERY = EVERY // FRAGMENTS
OUTER = PRESETS["pretrain"].outer(SITES)


@dataclass(frozen=True)
class Bound:
    """What one round takes of a delta, in cycles."""

    cycles: float
    weight: float

    @classmethod
    def parse(cls, text: str) -> Bound:
        """Of CYCLES:WEIGHT."""
        cycles, weight = map(float, text.split(":"))
        return cls(cycles, weight)

    def __str__(self) -> str:
        taken = "all" if math.isinf(self.cycles) else f"{self.cycles:g}"
        return f"{taken}, weight {self.weight:g}"


class Site:
    """One that trains by itself."""

    def __init__(self, model: ByteModel) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.counted = [0] * FRAGMENTS
        """The step up to which the steps of each fragment have counted."""

    def weights(self) -> torch.Tensor:
        """A copy, in one piece."""
        return parameters_to_vector(self.model.parameters()).detach().clone()

    def write(self, weights: torch.Tensor) -> None:
        """Have the model hold these."""
        vector_to_parameters(weights, self.model.parameters())


class Run:
    """All sites, and the anchor that they share."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.seed, self.step = seed, 0
        shared = ByteModel()
        self.sites = [Site(copy.deepcopy(shared)) for _ in range(SITES)]
        weights = self.sites[0].weights()
        half = len(weights) // FRAGMENTS
        self.spans = [slice(0, half), slice(half, len(weights))]
        self.held: list[AnchoredFragment] = []
        for span in self.spans:
            (fragment,) = make_fragments([Tensor("weights", len(weights[span]))], 1)
            held = AnchoredFragment(fragment, momentum=True, residual=False, pinned=False)
            held.anchor.copy_(weights[span])
            self.held.append(held)

    @property
    def anchor(self) -> torch.Tensor:
        """A copy of all of it."""
        return torch.cat([held.anchor for held in self.held])

    def train(self, text: torch.Tensor) -> None:
        """A step of every site, on text of its own."""
        self.step += 1
        for place, site in enumerate(self.sites):
            chance = torch.Generator().manual_seed((self.seed * SITES + place) * 1_000_000 + self.step)
            site.optimizer.zero_grad()
            site.model(rows_at(text, torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=chance))).backward()
            site.optimizer.step()

    def round(self, index: int, here: Collection[int], bound: Bound) -> None:
        """A round of a fragment, in which the sites that are `here` count."""
        held, span = self.held[index], self.spans[index]
        before = held.anchor.clone()
        weights = [site.weights() for site in self.sites]
        deltas = {
            place: take_delta(before, SiteWeights([weights[place][span].clone()], of_model=False), keep=True)
            for place in here
        }
        counts: list[float] = []
        for place, delta in deltas.items():
            steps = self.step - self.sites[place].counted[index]
            counted = int(min(steps, bound.cycles * EVERY))
            shorten(delta, before, counted / steps)
            counts.append(min(counted, bound.weight * EVERY))
            self.sites[place].counted[index] += counted
        mean = average_deltas("mean", held.fragment, [delta.values for delta in deltas.values()], counts)
        held.step(OUTER, mean, 0)
        for place, site in enumerate(self.sites):
            begun = deltas[place].local if place in deltas else before
            merge_local(CARRY, weights[place][span], held.anchor, begun)
            site.write(weights[place])


def verify() -> None:
    """Raise AssertionError where steps are lost or counted twice."""
    run, text = Run(0), torch.arange(1 << 10, dtype=torch.uint8)
    bound = Bound(MOST_CYCLES, MOST_WEIGHT)
    for _ in range(2 * EVERY):
        run.train(text)
    span, site = run.spans[0], run.sites[1]
    own = site.weights()[span] - run.held[0].anchor
    assert own.any()
    run.round(0, [0, 2], bound)
    torch.testing.assert_close(site.weights()[span] - run.held[0].anchor, own, rtol=1e-4, atol=1e-6)
    assert torch.equal(run.sites[0].weights()[span], run.held[0].anchor)
    assert torch.equal(run.sites[2].weights()[span], run.held[0].anchor)
    run.step = 12 * EVERY  # as if the steps of site 1 had taken so long
    run.sites[0].counted[0] = run.sites[2].counted[0] = run.step - EVERY
    for left in (7, 2, 0):
        own = site.weights()[span] - run.held[0].anchor
        run.round(0, [0, 1, 2], bound)
        assert site.counted[0] == run.step - left * EVERY
        rest = site.weights()[span] - run.held[0].anchor
        torch.testing.assert_close(rest, own * left / min(12, left + MOST_CYCLES), rtol=1e-4, atol=1e-6)
        run.sites[0].counted[0] = run.sites[2].counted[0] = run.step - EVERY


@dataclass(frozen=True)
class Losses:
    """Held-out losses of the anchor by step."""

    by_step: dict[int, float]

    @property
    def after_return(self) -> float:
        """Mean of the AFTER steps from each return on."""
        return statistics.mean(
            loss for step, loss in self.by_step.items() if any(0 < step - away.stop <= AFTER for away in AWAY.values())
        )

    @property
    def rise(self) -> float:
        """The most within a cycle."""
        return max(loss - self.by_step.get(step - EVERY, loss) for step, loss in self.by_step.items())

    @property
    def end(self) -> float:
        """Mean of the last cycles."""
        return statistics.mean(loss for step, loss in self.by_step.items() if step > STEPS - AFTER)

    def __str__(self) -> str:
        return f"{self.after_return:.3f} after a return, rose by {self.rise:.3f}, {self.end:.3f} at the end"


def go_on(run: Run, steps: int, bound: Bound, *, away: bool, texts: tuple[torch.Tensor, torch.Tensor]) -> Losses:
    """Train up to a step, with or without sites that are away."""
    train, held_out = texts
    rows = rows_at(held_out, torch.linspace(0, len(held_out) - CONTEXT - 2, 64).long())
    looks, found = copy.deepcopy(run.sites[0].model), dict[int, float]()
    while run.step < steps:
        run.train(train)
        for index in range(FRAGMENTS):
            if run.step % EVERY == index * EVERY // FRAGMENTS:
                gone = [place for place, steps_away in AWAY.items() if away and run.step in steps_away]
                run.round(index, [place for place in range(SITES) if place not in gone], bound)
        if run.step % HELD_OUT_EVERY == 0:
            with torch.no_grad():
                vector_to_parameters(run.anchor, looks.parameters())
                found[run.step] = looks(rows).item()
    return Losses(found)


def rows_of(bounds: Sequence[Bound], seeds: Sequence[int]) -> list[str]:
    """The table's: without anybody away, then each bound."""
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    cut = len(text) * 19 // 20
    texts = text[:cut], text[cut:]
    cases: list[tuple[str, Bound, bool]] = [
        ("no site away", bounds[0], False),
        *((str(bound), bound, True) for bound in bounds),
    ]
    found: dict[str, list[Losses]] = {name: [] for name, *_ in cases}
    for seed in seeds:
        begun = Run(seed)
        go_on(begun, AWAY[1].start - 1, bounds[0], away=False, texts=texts)
        for name, bound, away in cases:
            found[name].append(go_on(copy.deepcopy(begun), STEPS, bound, away=away, texts=texts))
            print(f"seed {seed}, {name}: {found[name][-1]}", file=sys.stderr, flush=True)
    return [
        f"| {name} | {_mean(one.after_return for one in losses)} | "
        f"{', '.join(f'{one.after_return:.3f}' for one in losses)} | "
        f"{max(one.rise for one in losses):.3f} | {_mean(one.end for one in losses)} |"
        for name, losses in found.items()
    ]


def _mean(values: Iterable[float]) -> str:
    return f"{statistics.mean(values):.3f}"


def main() -> int:
    """Verify, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = f"{MOST_CYCLES}:{MOST_WEIGHT}"
    parser.add_argument("--bounds", default=f"inf:4,inf:1,{chosen},5:1,2:2", help="CYCLES:WEIGHT, by commas")
    parser.add_argument("--seeds", default="1,2", help="by commas")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    verify()
    rows = rows_of(list(map(Bound.parse, arguments.bounds.split(","))), list(map(int, arguments.seeds.split(","))))
    print(
        *conditions.lines(),
        load_at_end(),
        "",
        f"| cycles that a round takes | loss in {AFTER} steps after a return | by seed | most it rose | at the end |",
        "|---|---:|---|---:|---:|",
        *rows,
        sep="\n",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
