"""A site of bench_averages.py: `python averages_worker.py PLAN OUT`.

Averages equal tensors by turns: by geocomm's all-reduce, by a round of its local steps, and by hivemind, whose peer of
this site is a process of another Python. Into folder OUT goes a line of JSON for each (rank-N.jsonl).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from hivemind_peer import brought, nmse, wanted

import geocomm
from geocomm.core.options import Options
from geocomm.core.place import node_and_nodes, rank_variables
from geocomm.group.membership.own_address import own_address
from geocomm.lab.emulator.emulated_wan import CONTROL_VARIABLE, WanControl

PEER = Path(__file__).resolve().parent / "hivemind_peer.py"
HIVEMIND = "hivemind"
REDUCE = "all-reduce"
ROUND = "round"
SETTLE_S = 0.5
COLUMNS = 1024


@dataclass(frozen=True)
class Plan:
    """What each site does."""

    elements: int
    cases: tuple[tuple[str, str, str], ...]
    """Who (HIVEMIND, REDUCE, ROUND), codec, and of a round where deltas are averaged."""
    repeats: int
    hivemind: str
    """A Python that has it."""


class HivemindPeer:
    """The process of hivemind at this site."""

    def __init__(self, plan: Plan, codecs: list[str]) -> None:
        self._rank = dist.get_rank()
        order = {"rank": self._rank, "sites": dist.get_world_size(), "elements": plan.elements}
        order |= {"address": own_address(), "codecs": codecs}
        # torch would load geocomm, which that Python lacks.
        environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        self._process = subprocess.Popen(
            [plan.hivemind, str(PEER), json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        said: list[Any] = [None]
        if self._rank == 0:
            said = [self.ask("join", [])["addresses"]]
        dist.broadcast_object_list(said, 0)
        if self._rank > 0:
            self.ask("join", said[0])

    def ask(self, *words: Any) -> dict[str, Any]:
        """Its answer. RuntimeError: it failed."""
        to, answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)
        to.write(json.dumps(words) + "\n")
        to.flush()
        for line in answers:
            if line.startswith("{"):  # it logs there too
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"hivemind at rank {self._rank} ended with {self._process.wait()}")

    def close(self) -> None:
        """End it."""
        cast("IO[str]", self._process.stdin).close()
        self._process.wait(60)


class Rounds:
    """Local steps, with a round of all fragments after each step: the mean of what the sites add. As many fragments as
    sites, so that each is an aggregator once."""

    def __init__(self, elements: int, codec: str, reduce: str) -> None:
        sites = dist.get_world_size()
        # Matrices: vectors travel in float32.
        parts = [torch.nn.Parameter(torch.zeros(elements // sites // COLUMNS, COLUMNS)) for _ in range(sites)]
        self._model = torch.nn.ParameterList(parts)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1.0)
        settings = geocomm.LocalSettings.model_validate(
            {
                "every": 1,
                "overlap": 0,
                "fragments": sites,
                "codec": codec,
                "reduce": reduce,
                "outer": geocomm.Nesterov(lr=1.0, momentum=0.0),
            }
        )
        self._handle = geocomm.local_steps(self._model, self._optimizer, settings)

    def prepare(self, own: torch.Tensor) -> torch.Tensor:
        """Before the round; what the weights were."""
        for weights, part in zip(self._model, own.split(own.numel() // len(self._model)), strict=True):
            weights.grad = -part.view_as(weights)
        return self._flat()

    def run(self) -> None:
        """A step, and its round."""
        self._optimizer.step()

    def added(self, before: torch.Tensor) -> torch.Tensor:
        """What the round added to the weights."""
        return self._flat() - before

    def _flat(self) -> torch.Tensor:
        return torch.cat([weights.detach().flatten() for weights in self._model])

    def close(self) -> None:
        """Collective."""
        self._handle.finish()


class Site:
    """Runs the plan; collective."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self._plan = plan
        self._rank, self._sites = dist.get_rank(), dist.get_world_size()
        self._out = out / f"rank-{self._rank}.jsonl"
        self._control = WanControl(os.environ[CONTROL_VARIABLE])
        codecs = [codec for who, codec, _ in plan.cases if who == HIVEMIND]
        self._peer = HivemindPeer(plan, codecs) if codecs else None
        self._groups = {
            codec: dist.new_group(backend="geocomm", pg_options=Options(codec=codec))
            for who, codec, _ in plan.cases
            if who == REDUCE
        }
        self._number = 0

    def run(self) -> None:
        """All cases by turns, but rounds, of which each has its own turn beside hivemind's."""
        rounds = [case for case in self._plan.cases if case[0] == ROUND]
        others = [case for case in self._plan.cases if case[0] != ROUND]
        for attempt in range(self._plan.repeats + 1):
            if attempt == 1:
                for group in self._groups.values():
                    geocomm.refresh_links(group)  # by what the first ones showed
            turn = attempt % len(others)
            for who, codec, _ in others[turn:] + others[:turn]:
                self._number += 1
                measured = self._hivemind(codec) if who == HIVEMIND else self._reduce(codec)
                self._write(measured | {"who": who, "codec": codec, "reduce": "", "warmup": attempt == 0})
        for _, codec, reduce in rounds:
            steps = Rounds(self._plan.elements, codec, reduce)
            for attempt in range(self._plan.repeats + 1):
                self._number += 1
                measured = self._round(steps)
                self._write(measured | {"who": ROUND, "codec": codec, "reduce": reduce, "warmup": attempt == 0})
            steps.close()

    def close(self) -> None:
        """Let go of all."""
        if self._peer is not None:
            self._peer.close()
        dist.barrier()
        dist.destroy_process_group()

    def _write(self, line: dict[str, Any]) -> None:
        with self._out.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    def _links(self) -> dict[str, Any]:
        """What all links have carried, as one site of them knows."""
        if self._rank > 0:
            return {}
        report = self._control.stats()
        return {"bytes": sum(link.bytes for link in report.links), "late": report.late_packets}

    def _meet(self) -> None:
        dist.barrier()
        time.sleep(SETTLE_S)

    def _hivemind(self, codec: str) -> dict[str, Any]:
        assert self._peer is not None
        before = self._links()
        self._meet()
        matched = self._peer.ask("match", codec, self._number)
        self._meet()
        averaged = self._peer.ask("average")
        self._meet()
        return averaged | {
            "matched_start": matched["start"],
            "matched_end": matched["end"],
            "links": [before, self._links()],
        }

    def _reduce(self, codec: str) -> dict[str, Any]:
        tensor = brought(self._rank, self._number, self._plan.elements)
        before = self._links()
        self._meet()
        begun = time.monotonic()
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=self._groups[codec])
        end = time.monotonic()
        self._meet()
        after = self._links()
        error = nmse(tensor, wanted(self._sites, self._number, self._plan.elements))
        return {"start": begun, "end": end, "nmse": error, "links": [before, after]}

    def _round(self, steps: Rounds) -> dict[str, Any]:
        weights = steps.prepare(brought(self._rank, self._number, self._plan.elements))
        before = self._links()
        self._meet()
        begun = time.monotonic()
        steps.run()
        end = time.monotonic()
        self._meet()
        after = self._links()
        error = nmse(steps.added(weights), wanted(self._sites, self._number, self._plan.elements))
        return {"start": begun, "end": end, "nmse": error, "links": [before, after]}


def write_plan(plan: Plan, path: Path) -> None:
    """For the sites."""
    path.write_text(json.dumps(asdict(plan)), encoding="utf-8")


def main() -> int:
    """Meet at the hub, and run."""
    torch.set_num_threads(1)
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    plan = Plan(**given | {"cases": tuple(tuple(case) for case in given["cases"])})
    node, nodes = node_and_nodes()
    os.environ.update(rank_variables(node, nodes, 0, 1))
    dist.init_process_group("geocomm", init_method=f"geocomm://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}")
    site = Site(plan, Path(sys.argv[2]))
    site.run()
    site.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
