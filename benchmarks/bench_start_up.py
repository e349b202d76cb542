"""How long local steps take to begin over a long line: `python benchmarks/bench_start_up.py`, three minutes.

Two sites of 1, 2 and 4 ranks over an emulated line of 200 Mbit/s and 300 ms, without keys. All ranks leave a barrier
and call `local_steps()`. A row has the seconds of the slowest rank, the median of some runs:

- init: `init_process_group`;
- begin: `local_steps()`, with the process group of the site, which nobody has asked for before;
- end: `finish()` after one step, with the last round of a model of 33 k parameters.

A run stands in benchmarks/results/local-line.md.
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

ROOT = Path(__file__).resolve().parent.parent
RATE_BPS, RTT_S = 2e8, 0.3
BEFORE = {1: (12.8, "16674df"), 2: (18.0, "436d975"), 4: (20.1, "436d975")}
"""Seconds of `local_steps()` when it made five process groups, by ranks of a site, and the commit."""
PORT = 29541


@dataclass(frozen=True)
class Row:
    """Seconds of the slowest rank."""

    ranks: int
    """Of a site."""
    init: float
    begin: float
    end: float


def run(ranks: int) -> Row:
    """One job."""
    from geocomm.lab.emulator.emulated_keys import site_environment
    from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
    from geocomm.lab.emulator.emulated_wan import WanRun
    from geocomm.lab.emulator.local_job import bare_environment

    with tempfile.TemporaryDirectory(prefix="geocomm-start-") as folder, tempfile.TemporaryFile("w+") as log:
        environment = site_environment(bare_environment(), None) | {"PYTHONPATH": str(ROOT)}
        with WanRun(
            EmulatedWan.uniform(2, EmulatedLink(rate_bps=RATE_BPS, delay_s=RTT_S / 2)),
            [sys.executable, __file__, "--site", folder, "--ranks", str(ranks)],
            environment=environment,
            stdout=log,
            stderr=log,
            master_port=PORT,
        ) as job:
            status = job.wait(240)
        if status != 0:
            log.seek(0)
            raise SystemExit(f"the job ended with {status}:\n{''.join(log.readlines()[-25:])}")
        found = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).iterdir()]
    assert len(found) == 2 * ranks
    return Row(ranks, *(max(one[name] for one in found) for name in ("init", "begin", "end")))


def site_program(folder: Path, ranks: int) -> int:
    """At each site: all its ranks."""
    from geocomm.core.place import node_and_nodes, rank_variables

    node, nodes = node_and_nodes()
    command = [sys.executable, __file__, "--rank", str(folder)]
    started = [
        subprocess.Popen(command, env=os.environ | rank_variables(node * ranks + local, nodes * ranks, local, ranks))
        for local in range(ranks)
    ]
    return max(process.wait() for process in started)


def rank_program(folder: Path) -> int:
    """At each rank."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    times: dict[str, float] = {}
    begun = time.perf_counter()
    dist.init_process_group("geocomm")
    times["init"] = time.perf_counter() - begun
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Tanh(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    dist.barrier()
    begun = time.perf_counter()
    outer = geocomm.local_steps(model, optimizer)
    times["begin"] = time.perf_counter() - begun
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()
    begun = time.perf_counter()
    outer.finish()
    times["end"] = time.perf_counter() - begun
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(times), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="1,2,4", help="of a site, by commas")
    parser.add_argument("--runs", type=int, default=3, help="a row is their median")
    parser.add_argument("--out", type=Path, help="a Markdown file to write")
    parser.add_argument("--site", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        return rank_program(arguments.rank)
    if arguments.site is not None:
        return site_program(arguments.site, int(arguments.ranks))

    from geocomm.lab.bench.bench_report import Conditions, write_pair

    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    rows = []
    for ranks in map(int, arguments.ranks.split(",")):
        runs = [run(ranks) for _ in range(arguments.runs)]
        rows.append(
            Row(ranks, *(statistics.median(getattr(one, name) for one in runs) for name in ("init", "begin", "end")))
        )
        print(rows[-1], flush=True)
    lines = [
        "# How long local steps take to begin",
        "",
        *conditions.lines(),
        f"- two sites on one machine, a line of {RATE_BPS / 1e6:.0f} Mbit/s and {1000 * RTT_S:.0f} ms round trip, "
        f"no keys; median of {arguments.runs} run(s), seconds of the slowest rank",
        "",
        "| ranks a site | `init_process_group` | `local_steps()` | before | round trips | `finish()` |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        before = "{:.1f} ({})".format(*BEFORE[row.ranks]) if row.ranks in BEFORE else ""
        lines.append(
            f"| {row.ranks} | {row.init:.1f} | {row.begin:.1f} | {before} | {row.begin / RTT_S:.1f} | {row.end:.1f} |"
        )
    lines += [
        "",
        "`local_steps()` compares settings and weights through the job's store, which is at site 0. By count these are "
        "two comparisons of three round trips each, and more where a rank comes late. With several ranks a site, "
        "Gloo's addresses take three more. The rest was not looked into. The last round of "
        "`finish()` sends 134 KB exactly.",
        "",
    ]
    print("\n".join(lines))
    if arguments.out is not None:
        write_pair(arguments.out, "\n".join(lines), {"rows": list(map(asdict, rows))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
