"""CPU time that local steps take of a training step: `python benchmarks/bench_local_cpu.py --before CLONE`.

Two sites of one rank over loopback, without the emulator. The model is that of bench_local_line.py (23 M parameters),
but its step is plain SGD with gradients that stay: it reads and writes all parameters, as a training step does to the
caches, and then sleeps, so that steps are STEP_S apart and results come in time.

hook: CPU time of the trainer's thread from the beginning to the end of the hook after optimizer.step(). threads: CPU
time of all other threads of the process, of which those of rounds, and of the transport, are named. Each is the mean
of a step, over whole cycles of rounds. Runs of two trees are made by turns; a row is the median of its runs. --cpu
limits the codecs (GEOCOMM_CPU) and torch (ATEN_CPU_CAPABILITY).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVERY = 30
UNTIMED_CYCLES, TIMED_CYCLES = 2, 4
STEP_S = 0.18
NO_ROUNDS = 100_000
"""Steps between rounds, to measure what threads take without any."""
# glibc takes and returns large blocks by mmap until it has seen some freed: equal for both trees from the first one.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(2**31 - 1), "MALLOC_TRIM_THRESHOLD_": str(2**32 - 1)}
TORCH_LEVELS = {"scalar": "default", "avx2": "avx2", "avx512": "avx512"}


@dataclass(frozen=True)
class Cpu:
    """Milliseconds of CPU time of a step, mean of the two sites."""

    hook: float
    rounds_threads: float
    transport_threads: float

    @property
    def threads(self) -> float:
        return self.rounds_threads + self.transport_threads

    @property
    def total(self) -> float:
        return self.hook + self.threads

    @classmethod
    def median(cls, runs: list[Cpu]) -> Cpu:
        return cls(*(statistics.median(getattr(run, name) for run in runs) for name in cls.__annotations__))

    def cells(self) -> str:
        values = (self.hook, self.rounds_threads, self.transport_threads, self.threads, self.total)
        return " | ".join(f"{value:.2f}" for value in values)


def work(out: Path, every: int, step_s: float) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from bench_train import TIMED

    import geocomm
    from geocomm.data.corpus.data_settings import DataConfig
    from geocomm.data.corpus.text_tokenizer import load_tokenizer
    from geocomm.train.models.model_factory import build_model, model_config
    from geocomm.train.models.model_presets import ModelConfig

    torch.set_num_threads(1)
    dist.init_process_group("geocomm")
    data = DataConfig(sequence_length=TIMED.sequence_length, held_out_fraction=0.05)
    settings = ModelConfig(preset="tiny", overrides=TIMED.overrides)
    model = build_model(settings, model_config(settings, data, load_tokenizer(data.tokenizer)), 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    hook_s, hook_began = 0.0, 0.0

    def begin_hook(*_: Any) -> None:
        nonlocal hook_began
        hook_began = time.thread_time()

    def end_hook(*_: Any) -> None:
        nonlocal hook_s
        hook_s += time.thread_time() - hook_began

    optimizer.register_step_post_hook(begin_hook)
    handle = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=every, codec="int4"))
    optimizer.register_step_post_hook(end_hook)
    before: dict[str, float] = {}
    for step in range((UNTIMED_CYCLES + TIMED_CYCLES) * EVERY):
        if step == UNTIMED_CYCLES * EVERY:
            hook_s, before = 0.0, thread_seconds()
        began = time.monotonic()
        optimizer.step()
        time.sleep(max(0.0, began + step_s - time.monotonic()))
    after, steps = thread_seconds(), TIMED_CYCLES * EVERY
    spent = {name: 1e3 * (after[name] - before.get(name, 0.0)) / steps for name in after}
    rounds = sum(value for name, value in spent.items() if name.startswith("rounds"))
    found = {"hook": 1e3 * hook_s / steps, "rounds_threads": rounds, "transport_threads": sum(spent.values()) - rounds}
    stats = handle.stats()
    facts = {name: stats[name] for name in ("rounds", "held_back", "merge", "elements", "waited_seconds", "wire_bytes")}
    dist.barrier()
    handle.finish()
    document = {"cpu": found, "threads": spent, "tree": str(Path(geocomm.__file__).parent.parent), **facts}
    out.with_suffix(f".{dist.get_rank()}").write_text(json.dumps(document), encoding="utf-8")
    os._exit(0)  # what threads do at the end of an interpreter is not measured here


def thread_seconds() -> dict[str, float]:
    """CPU seconds of all threads but this one, by their names; those of rounds have the name `rounds`."""
    import threading

    own = threading.get_native_id()
    rounds = {thread.native_id for thread in threading.enumerate() if thread.native_id not in (None, own)}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        tid = int(task.name)
        if tid == own:
            continue
        name = "rounds" if tid in rounds else (task / "comm").read_text().strip()
        found[name] = found.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def run(tree: Path, cpu: str, every: int, step_s: float) -> tuple[Cpu, dict[str, Any]]:
    """Two ranks with the package of this tree."""
    from geocomm.lab.emulator.local_job import run_local_ranks

    levels = {"GEOCOMM_CPU": cpu, "ATEN_CPU_CAPABILITY": TORCH_LEVELS[cpu]}
    os.environ |= KEEP_MEMORY | levels | {"PYTHONPATH": str(tree)}
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as log:
        out = Path(scratch) / "out"
        command = [sys.executable, __file__, "--work", str(out), "--every", str(every), "--step-s", str(step_s)]
        if any(run_local_ranks(command, ["site0", "site1"], log)):
            log.seek(0)
            raise SystemExit("".join(log.readlines()[-25:]))
        ranks = [json.loads(out.with_suffix(f".{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    assert all(Path(rank["tree"]) == tree for rank in ranks), ranks
    cpus = [Cpu(**rank["cpu"]) for rank in ranks]
    return Cpu(*(statistics.mean(getattr(one, name) for one in cpus) for name in Cpu.__annotations__)), ranks[0]


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another tree with a built module, to measure by turns")
    parser.add_argument("--runs", type=int, default=3, help="of each tree and level (default 3)")
    parser.add_argument("--cpu", default="avx512,avx2", help="levels, by commas")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree that is measured")
    parser.add_argument("--step-s", type=float, default=STEP_S, help=f"seconds from step to step (default {STEP_S})")
    parser.add_argument("--every", type=int, default=EVERY, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work is not None:
        work(arguments.work, arguments.every, arguments.step_s)
        return 0
    from geocomm.lab.bench.bench_report import Conditions, write_pair

    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    trees = {"after": (arguments.tree.resolve(), EVERY)}
    if arguments.before is not None:
        before = arguments.before.resolve()
        trees = {"before": (before, EVERY), **trees, "after, no rounds": (arguments.tree.resolve(), NO_ROUNDS)}
    rows, raw = [], []
    for cpu in arguments.cpu.split(","):
        found: dict[str, list[Cpu]] = {name: [] for name in trees}
        for turn in range(arguments.runs):
            for name, (tree, every) in trees.items():
                if every == NO_ROUNDS and (turn or raw[0]["level"] != cpu):
                    continue
                one, facts = run(tree, cpu, every, arguments.step_s)
                found[name].append(one)
                raw.append({"row": name, "level": cpu, **asdict(one), "rank0": facts})
                print(name, cpu, one.cells(), facts["threads"], facts["rounds"], facts["held_back"], flush=True)
        for name, runs in found.items():
            if not runs:
                continue
            commit = subprocess.run(
                ["git", "-C", str(trees[name][0]), "rev-parse", "--short=12", "HEAD"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.strip()
            low, high = min(one.total for one in runs), max(one.total for one in runs)
            rows.append(f"| {name} | {commit} | {cpu} | {Cpu.median(runs).cells()} | {low:.2f} to {high:.2f} |")
    lines = [
        "| tree | commit | level | hook | rounds' threads | transport's threads | all threads | in all | runs |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
        *rows,
    ]
    print("\n".join(lines))
    if arguments.out is not None:
        head = ["# CPU time of local steps", "", *conditions.lines(), ""]
        write_pair(arguments.out, "\n".join([*head, *lines]) + "\n", {"conditions": asdict(conditions), "runs": raw})
    return 0


if __name__ == "__main__":
    sys.exit(main())
