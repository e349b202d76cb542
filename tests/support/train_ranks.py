"""Starts the ranks of a training run as processes of their own, without a launcher, so that each exit code is seen.

They are forked from a process that has imported DeepSpeed and Transformers (warm_python.py), but for those that are
to be started under another command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.json_lines import lines_of
from support.local_jobs import free_port
from support.warm_python import WarmProcess
from support.warm_ranks import warm_training

TIMEOUT_SECONDS = 150
SMALL_MODEL = (
    "model.overrides={num_hidden_layers: 2, hidden_size: 64, intermediate_size: 64, moe_intermediate_size: 32}"
)
SMALL_RUN = (
    SMALL_MODEL,
    "distributed.backend=gloo",
    "distributed.timeout_seconds=60",
    "distributed.startup_timeout_seconds=60",
    "training.micro_batch_size=2",
    "data.sequence_length=64",
    "evaluation.max_sequences=6",
    "schedule.warmup_steps=2",
    "schedule.decay_steps=6",
    "logging.trackers=[]",
    "logging.every_steps=1",
    "export.format=none",
)


@dataclass(frozen=True)
class Ended:
    """How one rank ended."""

    code: int
    out: str
    err: str


Process = subprocess.Popen[str] | WarmProcess


def start_ranks(
    folder: Path,
    assignments: list[str],
    *,
    ranks: int = 2,
    sites: Sequence[str] = (),
    per_rank: dict[int, list[str]] | None = None,
    most_file_bytes: dict[int, int] | None = None,
    command: Callable[[int], list[str]] = lambda rank: [],
) -> list[Process]:
    """Processes of a run in `folder`/run, rank r being the only one of site r, or of those `sites`.

    `per_rank`: more assignments for single ranks; `most_file_bytes`: of all that single ranks write; `command`: what to
    put in front of a rank's command line.
    """
    port = free_port()
    names = list(sites) or [f"site{rank}" for rank in range(ranks)]
    processes: list[Process] = []
    for rank, site in enumerate(names):
        environment = os.environ | {
            "NNODES": str(len(names)),
            "NODE_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GEOCOMM_SITE": site,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])),
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            environment.pop(name, None)
        settings = [
            *SMALL_RUN,
            f"output_dir={folder / 'run'}",
            f"data.cache_dir={folder / 'tokens'}",
            *assignments,
            *(per_rank or {}).get(rank, []),
        ]
        arguments = [argument for setting in settings for argument in ("--set", setting)]
        prefix = command(rank)
        if not prefix:
            most = (most_file_bytes or {}).get(rank)
            processes.append(warm_training().start("geocomm.train", arguments, environment, most_file_bytes=most))
            continue
        processes.append(
            subprocess.Popen(
                [*prefix, *warm_training().command("geocomm.train"), *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def finish(processes: list[Process]) -> list[Ended]:
    """Wait for all; kills them and fails if they take too long."""
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
            ended.append(Ended(process.returncode, out, err))
    finally:
        for process in processes:
            process.kill()
    return ended


def run_ranks(folder: Path, assignments: list[str], **more: Any) -> list[Ended]:
    """`start_ranks` and `finish`."""
    return finish(start_ranks(folder, assignments, **more))


def entries(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Entries of `kind` in the metrics of `folder`/run."""
    path = folder / "run" / "metrics.jsonl"
    assert path.exists(), f"{path} is not there"
    return [entry for entry in lines_of(path) if entry["kind"] == kind]


def losses(folder: Path) -> dict[int, float]:
    """Loss by step; of a step that ran twice, the later one."""
    return {entry["step"]: entry["loss"] for entry in entries(folder, "step")}


def copy_checkpoint(source: Path, target: Path, step: int) -> None:
    """A new run folder under `target` that holds nothing but one checkpoint of the run under `source`."""
    name = f"checkpoints/step-{step:08d}"
    shutil.copytree(source / "run" / name, target / "run" / name)


def told_user(err: str) -> list[str]:
    """Its lines for a user, but those on a wait for DeepSpeed's operator, which other ranks of the machine may load."""
    lines = [line for line in err.splitlines() if line.startswith("geocomm train: ")]
    return [line for line in lines if "builds DeepSpeed's operator" not in line]


def require_success(ended: list[Ended]) -> None:
    for rank, each in enumerate(ended):
        assert each.code == 0, f"rank {rank}: {each.err}"


def require_refusal(ended: list[Ended], *mentions: str) -> None:
    """Every rank left with code 2; each, alone on its machine, after one line that says why."""
    for each in ended:
        assert each.code == 2, each.err
        lines = told_user(each.err)
        assert len(lines) == 1, each.err
        assert "Traceback" not in each.err
        for mention in mentions:
            assert mention in lines[0]
