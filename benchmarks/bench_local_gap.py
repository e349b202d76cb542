"""What local steps cost, by learning rate, batch and number of sites: `python benchmarks/bench_local_gap.py`.

Held-out loss of local steps over per-step training at equal tokens, each at its own best learning rate. Hundreds of
runs train together as rows of one batched model (local_rows.py), on a GPU if there is one: a part takes seconds to a
minute on an H100, hours on two cores. `--check` compares the rows with geocomm's own simulated sites.

Runs are kept one by one in a file of JSON lines beside the report; what is there is not run again. Parts: rates,
trials, second, batch, aggregator, regions, many. Results: benchmarks/results/local-gap.md and .jsonl.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import torch
from local_gap_report import write_report
from local_rows import LENGTH, Recipe, Rows, Run
from local_rows_check import simulated

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT_SEQUENCES = 4096
TEXT_BYTES = 192 << 20
Part = tuple[Recipe, list[Run]]


def sites_of(sites: int, rate: float, seed: int, **changes: object) -> Run:
    """A run with geocomm's defaults: outer momentum 0.5 with two sites, 0.8 with more."""
    base = Run(sites, rate, seed, every=30, outer_momentum=0.5 if sites == 2 else 0.8)
    return replace(base, **changes)  # type: ignore[arg-type]


def compared(sites: tuple[int, ...], rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[Run]:
    """Per-step and with the defaults."""
    runs = []
    for count, rate, seed in product(sites, rates, seeds):
        runs += [Run(count, rate, seed), sites_of(count, rate, seed)]
    return runs


LOW = (0.0016, 0.0025, 0.004, 0.0063, 0.01, 0.016)
HIGH = (0.0025, 0.004, 0.0063, 0.01, 0.016, 0.025)


def trials(rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[Run]:
    """Four sites: what might close the gap."""
    runs = []
    for rate, seed in product(rates, seeds):
        runs += [Run(4, rate, seed), sites_of(4, rate, seed), sites_of(4, rate, seed, codec="none")]
        runs += [
            sites_of(4, rate, seed, outer_lr=lr, outer_momentum=mu)
            for lr, mu in ((1.0, 0.0), (1.0, 0.5), (1.0, 0.9), (0.5, 0.9), (0.7, 0.8), (0.5, 0.8), (1.5, 0.7))
        ]
        runs += [sites_of(4, rate, seed, momentum_ends=True), sites_of(4, rate, seed, shrinks=True)]
        runs += [sites_of(4, rate, seed, shrinks=True, outer_momentum=mu) for mu in (0.0, 0.5)]
        runs += [sites_of(4, rate, seed, pair_every=10), sites_of(4, rate, seed, every=10)]
        for beta, part in product((0.99, 0.995, 0.999), (0.8, 0.95)):
            slow = {"beta": beta, "slow_part": part}
            runs.append(replace(Run(4, rate, seed), **slow))  # type: ignore[arg-type]
            runs += [
                sites_of(4, rate, seed, averages_moments=True, outer_momentum=mu, **slow) for mu in (0.0, 0.5, 0.8)
            ]
    return runs


def outer_trials(rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[Run]:
    """Averages of eight sites, pairs of near sites, other rounds and outer optimizers, a little slow momentum."""
    runs = []
    for rate, seed in product(rates, seeds):
        runs += [sites_of(8, rate, seed, outer_momentum=mu) for mu in (0.5, 0.9)]
        runs += [sites_of(8, rate, seed, averaging="radial", outer_momentum=mu) for mu in (0.5, 0.7, 0.8)]
        runs += [sites_of(2, rate, seed, outer_momentum=mu) for mu in (0.3, 0.6, 0.7, 0.8)]
        runs += [sites_of(4, rate, seed, pair_every=every) for every in (3, 5, 10, 15)]
        runs += [
            sites_of(4, rate, seed, every=every, outer_momentum=mu)
            for every, mu in ((10, 0.5), (10, 0.7), (15, 0.7), (15, 0.8), (60, 0.7), (60, 0.8))
        ]
        runs += [sites_of(4, rate, seed, outer_lr=lr, outer_momentum=mu) for lr, mu in ((0.9, 0.8), (0.8, 0.85))]
        runs += [sites_of(4, rate, seed, outer_momentum=0.7)]
        slow: dict[str, object] = {"beta": 0.99, "slow_part": 0.5}
        runs.append(replace(Run(4, 2 * rate, seed), **slow))  # type: ignore[arg-type]
        runs += [
            sites_of(4, 2 * rate, seed, averages_moments=True, outer_momentum=mu, **slow) for mu in (0.0, 0.5, 0.8)
        ]
    return runs


def confirmed(sites: tuple[int, ...], rates: tuple[float, ...], seeds: tuple[int, ...]) -> list[Run]:
    """As `compared`, with what gained in trials."""
    runs = compared(sites, rates, seeds)
    for count, rate, seed in product(sites, rates, seeds):
        if count == 4:
            runs.append(sites_of(4, rate, seed, pair_every=10))
        if count == 8:
            runs.append(sites_of(8, rate, seed, averaging="radial"))
    return runs


def aggregated(sites: tuple[int, ...], rate: float, seeds: tuple[int, ...]) -> list[Run]:
    """As `compared`, with an aggregator."""
    runs = compared(sites, (rate,), seeds)
    return runs + [sites_of(count, rate, seed, aggregates=True) for count, seed in product(sites, seeds)]


def in_regions(rate: float, seeds: tuple[int, ...]) -> list[Run]:
    """Eight sites as `aggregated`, and in regions of two and of four."""
    found = product((2, 4), seeds)
    regions = [sites_of(8, rate, seed, aggregates=True, region_sites=sites) for sites, seed in found]
    return aggregated((8,), rate, seeds) + regions


def against_all(sites: int, rate: float, seed: int) -> list[Run]:
    """Frames from all to all, and with an aggregator; without per-step training."""
    return [sites_of(sites, rate, seed, aggregates=aggregates) for aggregates in (False, True)]


MIDDLE = (0.0025, 0.004, 0.0063)
PARTS: dict[str, list[Part]] = {
    "aggregator": [(Recipe("0.1m", 800, 8), aggregated((count,), 0.004, (1, 2))) for count in (4, 8)],
    "regions": [(Recipe("0.1m", 800, 8), in_regions(0.004, (1, 2)))],
    "many": [(Recipe("0.1m", 300, 64, joint_steps=60), against_all(count, 0.016, 1)) for count in (8, 16)],
    "rates": [(Recipe("0.1m", 2000, 8), compared((2, 4, 8), LOW, (1, 2, 3)))],
    "trials": [
        (Recipe("0.1m", 2000, 8), trials(MIDDLE, (1, 2))),
        (Recipe("0.1m", 2000, 8), outer_trials(MIDDLE, (1, 2, 3))),
    ],
    "second": [(Recipe("0.7m", 2000, 8), confirmed((2, 4, 8), (0.0016, 0.0025, 0.004), (1, 2)))],
    "batch": [
        (Recipe("0.1m", 1000, 8), compared((2, 4, 8), LOW, (1, 2))),
        (Recipe("0.1m", 1000, 32), compared((2, 4, 8), HIGH, (1, 2))),
        (Recipe("0.1m", 1000, 64), confirmed((2, 4, 8), HIGH[2:], (1, 2))),
        (Recipe("0.1m", 1000, 128), confirmed((2, 4, 8), HIGH[3:], (1,))),
        (Recipe("0.1m", 1000, 512), compared((2, 4), HIGH[3:], (1,))),
    ],
}


def read_text(device: str) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Python sources of this interpreter, trained and held out, and a line that says what they are.

    The files of the standard library and of the packages, by path, up to 192 MiB; a twentieth of the end is held out.
    """
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    content = bytearray()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            if root == roots[0] and "site-packages" in path.parts:
                continue
            content += path.read_bytes()
            if len(content) >= TEXT_BYTES:
                break
    content = content[:TEXT_BYTES]
    digest = hashlib.sha256(content).hexdigest()[:16]
    text = torch.frombuffer(content, dtype=torch.uint8).to(device)
    split = len(text) * 19 // 20
    places = torch.linspace(split, len(text) - LENGTH - 1, HELD_OUT_SEQUENCES, dtype=torch.float64)
    held_out = text[places.long().to(device).unsqueeze(1) + torch.arange(LENGTH + 1, device=device)].flatten()
    return text[:split], held_out, f"{len(content) / 2**20:.0f} MiB of Python sources, sha256 {digest}"


def missing(path: Path, parts: list[Part]) -> Iterator[Part]:
    """What has not been run."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(Recipe(**row["recipe"]), Run(**row["run"])) for row in rows}
    for recipe, runs in parts:
        if left := [run for run in dict.fromkeys(runs) if (recipe, run) not in done]:
            yield recipe, left


def main() -> None:
    """Run what is missing, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="by commas (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no batch of runs after so long")
    parser.add_argument("--most", type=int, default=1 << 21, help="tokens of a step of all runs of a batch")
    parser.add_argument("--steps", type=int, help="in place of the part's")
    parser.add_argument("--report", action="store_true", help="only write the report of what has been run")
    parser.add_argument("--check", action="store_true", help="compare the rows with geocomm's simulated sites")
    arguments = parser.parse_args()
    path = arguments.out / "local-gap.jsonl"
    if not arguments.report:
        run_parts(arguments, path)
    write_report(path)


def run_parts(arguments: argparse.Namespace, path: Path) -> None:
    """Run what is missing."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    begin = time.monotonic()
    text, held_out, about = read_text(device)
    print(f"bench_local_gap: {device}, {about}, read in {time.monotonic() - begin:.0f} s", flush=True)
    if arguments.check:
        check(text, held_out)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    for part in arguments.parts.split(","):
        for recipe, runs in missing(path, PARTS[part]):
            if arguments.steps:
                recipe = replace(recipe, steps=arguments.steps)
            for some in dealt(runs, arguments.most // (recipe.batch * LENGTH)):
                if time.monotonic() - begin > arguments.seconds:
                    print("bench_local_gap: out of time", flush=True)
                    return
                start = time.monotonic()
                losses = Rows(recipe, some, text, held_out).train()
                seconds = time.monotonic() - start
                with path.open("a", encoding="utf-8") as file:
                    for run, loss in losses.items():
                        row = {"recipe": asdict(recipe), "run": asdict(run), "loss": loss, "text": about}
                        file.write(json.dumps(row) + "\n")
                rows = sum(run.sites for run in some)
                rate = rows * recipe.batch * LENGTH * recipe.steps / seconds / 1e6
                print(f"bench_local_gap: {recipe}: {rows} rows, {seconds:.1f} s, {rate:.1f} M tokens/s", flush=True)
                if device == "cuda":
                    torch.cuda.empty_cache()


def check(text: torch.Tensor, held_out: torch.Tensor) -> None:
    """Two, four and five sites by rows, and by geocomm's own handle: losses that differ by rounding alone."""
    for sites in (2, 4):
        recipe = Recipe("0.1m", 275, 4, joint_steps=100)
        run = sites_of(sites, 0.004, 1)
        rows = Rows(recipe, [run], text, held_out)
        by_rows, by_geocomm = rows.train()[run], simulated(recipe, run, text, held_out)
        away = abs(by_rows / by_geocomm - 1)
        print(f"bench_local_gap: {sites} sites: rows {by_rows:.5f}, geocomm {by_geocomm:.5f}, {100 * away:.3f} % apart")
        if not away < 0.002:
            raise SystemExit("bench_local_gap: the rows do not train as geocomm does")


def dealt(runs: list[Run], rows: int) -> Iterator[list[Run]]:
    """Runs in order, so that at most this many rows train together."""
    some: list[Run] = []
    for run in runs:
        if some and sum(each.sites for each in some) + run.sites > rows:
            yield some
            some = []
        some.append(run)
    if some:
        yield some


if __name__ == "__main__":
    main()
