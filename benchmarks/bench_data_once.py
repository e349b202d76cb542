"""Which sequences a reader misses or repeats when its run goes on with other sites: a minute for each reader.

Four ranks, a node each, read a third of a pass over 3,840 sequences; three go on from the saved state, then five read
the rest. As many are read as there are, so whatever is read twice stands for one that is never read. geocomm, and as
peers litData, MosaicML Streaming and Hugging Face datasets, each as its documentation says to save and go on:

    python -m venv peers && peers/bin/pip install torch torchvision litdata mosaicml-streaming datasets
    python benchmarks/bench_data_once.py --peers peers/bin/python

Needs root: each rank has a /dev/shm of its own, as on a node of its own. Results: benchmarks/results/data-once.md. Exit
status 1: geocomm missed or repeated a sequence, or a reader failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from data_reader import BATCH, READERS, SEQUENCES, SHARDS, numbers_read

from geocomm.core.addresses import free_port
from geocomm.lab.bench.bench_report import Conditions, page, write_pair

ROOT = Path(__file__).resolve().parent.parent
RUNS = (4, 3, 5)
BATCHES = SEQUENCES // (BATCH * sum(RUNS))
_NODE = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "node"]
NAMES = {
    "geocomm": "geocomm",
    "litdata": "litData",
    "streaming": "MosaicML Streaming",
    "datasets": "Hugging Face datasets",
}


@dataclass
class Sample:
    """Of the sequences of one pass, by number."""

    reader: str
    version: str
    missed: int
    repeated: int


def sample(reader: str, python: str, folder: Path) -> Sample:
    """Have a reader write the data set, and read it in all runs."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    if reader == "geocomm":
        environment["PYTHONPATH"] = str(ROOT)
    else:  # the peers' environment may have torch's entry points of a geocomm that is not there
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    command = [python, str(ROOT / "benchmarks/data_reader.py"), reader, str(folder / "set")]
    written = subprocess.run(
        [*command, "write", "0", "-"], env=environment, check=True, text=True, capture_output=True, cwd=folder
    )
    version = written.stdout.splitlines()[-1]
    states, counts = "-", Counter[int]()
    for ranks in RUNS:
        environment |= {"WORLD_SIZE": str(ranks), "MASTER_PORT": str(free_port())}
        out = f"{folder}/{ranks}-{{}}"
        processes = [
            subprocess.Popen(
                [*_NODE, *command, out, str(BATCHES), states],
                env=environment | {"RANK": str(rank)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
            )
            for rank in range(ranks)
        ]
        errors = [process.communicate(timeout=300)[1] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"{reader}, {ranks} ranks: {max(errors, key=len)[-2000:]}")
        for rank in range(ranks):
            counts.update(numbers_read(Path(out.format(rank))))
        states = f"{out}.state"
    missed = sum(number not in counts for number in range(SEQUENCES))
    return Sample(reader, version, missed, sum(counts.values()) - len(counts))


def _page(conditions: Conditions, samples: list[Sample]) -> str:
    rows = [f"| {NAMES.get(one.reader, one.reader)} {one.version} | {one.missed} | {one.repeated} |" for one in samples]
    return page(
        "Data: a run goes on with other sites",
        conditions,
        f"A pass over {SEQUENCES:,} sequences in {SHARDS} shards, shuffled, {BATCH} a batch and rank: "
        f"{', then '.join(f'{ranks} ranks' for ranks in RUNS)} read a number of batches that is together one pass. "
        "Each run goes on from the state that the one before has saved, as the reader's documentation says: "
        "rank 0's state, with Hugging Face each rank's own.",
        "| reader | missed | repeated |",
        "|---|---:|---:|",
        *rows,
    )


def main() -> int:
    """Run, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else "")
    parser.add_argument("--peers", help="the Python that has the peers; without, geocomm alone")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    arguments = parser.parse_args()
    conditions = Conditions.here(shlex.join(["python", "benchmarks/bench_data_once.py", *sys.argv[1:]]))
    samples: list[Sample] = []
    for reader in READERS:
        python = sys.executable if reader == "geocomm" else arguments.peers
        if python:
            with tempfile.TemporaryDirectory() as folder:
                samples.append(sample(reader, python, Path(folder)))
            print(samples[-1], flush=True)
    write_pair(
        arguments.out / "data-once.md", _page(conditions, samples), {"samples": [asdict(one) for one in samples]}
    )
    return int(samples[0].missed + samples[0].repeated > 0)


if __name__ == "__main__":
    sys.exit(main())
