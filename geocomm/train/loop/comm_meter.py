"""What communication cost: counters of this process, and one small all-reduce per step that adds them up by site.

That all-reduce also carries the loss and three votes (save now, stop, something failed here). It starts before
backward and is read after the optimizer step, so that its round trip over the WAN hides behind the computation; the
counters of a step travel with the next step's. With local steps it stays inside the site: see `site_talk`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from geocomm.metrics import schema
from geocomm.metrics.counters import stats
from geocomm.train.runs.step_entry import WAITS

COUNTERS = tuple(schema.names(schema.COUNTERS))
ROW = ("step_seconds", *WAITS, *COUNTERS)


class StepMeter:
    """Deltas of `geocomm.stats()` and wall time over a step. Without the geocomm backend the counters are zeros."""

    def __init__(self, backend: str) -> None:
        self.has_counters = backend == "geocomm"
        self._checkpoint = 0.0
        self.start()

    def _read(self) -> list[float]:
        if not self.has_counters:
            return [0.0] * len(COUNTERS)
        counters = stats()
        return [float(counters[name]) for name in COUNTERS]

    def start(self) -> None:
        """Begin to measure a step."""
        self._begin = time.perf_counter()
        self._input = 0.0
        self._before = self._read()

    @contextmanager
    def input(self) -> Generator[None]:
        """What happens within is waiting for the data of the step."""
        began = time.perf_counter()
        yield
        self._input += time.perf_counter() - began

    def wrote_checkpoint(self, seconds: float) -> None:
        """Before `start`: the row of the step that begins then has it."""
        self._checkpoint += seconds

    def row(self) -> list[float]:
        """Values of `ROW` since `start`."""
        elapsed = time.perf_counter() - self._begin
        checkpoint, self._checkpoint = self._checkpoint, 0.0
        counted = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return [elapsed, self._input, checkpoint, *counted]


@dataclass(frozen=True)
class Wants:
    """What ranks ask of all: a checkpoint, the end of the run; `failed`: a log cannot be written."""

    save: bool = False
    stop: bool = False
    failed: bool = False

    def __bool__(self) -> bool:
        """Whether anything is asked for."""
        return self.save or self.stop or self.failed

    def __or__(self, other: Wants) -> Wants:
        return Wants(self.save or other.save, self.stop or other.stop, self.failed or other.failed)

    def to_row(self) -> list[float]:
        """The wishes as numbers that may be added up over ranks."""
        return [float(self.save), float(self.stop), float(self.failed)]

    @classmethod
    def of_row(cls, row: Sequence[float]) -> Wants:
        """The wishes that a sum of such rows stands for."""
        return cls(*(value > 0 for value in row))


@dataclass(frozen=True)
class StepTotals:
    """The mean of the loss over the ranks and what is to be done after this step; per site the sums of `ROW` of the
    step before."""

    loss: float
    wants: Wants
    rows: dict[str, dict[str, float]]


class StepReducer:
    """The all-reduce of one small fp64 vector per step, over all ranks or those of a group."""

    def __init__(
        self, ranks_of_site: Mapping[str, int], site: str, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> None:
        """ranks_of_site: those of the group, in the same order on all ranks; site: this rank's."""
        self._sites = list(ranks_of_site)
        self._ranks = sum(ranks_of_site.values())
        self._own = self._sites.index(site)
        self._device = device
        self._group = group
        self._vector = torch.empty(0)
        self._work: Any = None  # that adds up the vector, in place
        self.note = 0.0
        """The sum of the notes in what was finished last."""

    def launch(self, step: int, loss: torch.Tensor, row: list[float], wants: Wants, note: float = 0.0) -> None:
        """Begin the exchange of step number `step` (from 1); one at a time, until `finish`.

        `loss` is a scalar on the engine's device; `row` is the step before's `ROW`, zeros if none; `note` is one more
        number that is added up.
        """
        head = torch.tensor([0.0, note, *wants.to_row()], dtype=torch.float64)
        table = torch.zeros(len(self._sites), len(ROW), dtype=torch.float64)
        table[self._own] = torch.tensor(row, dtype=torch.float64)
        self._vector = torch.cat((head, table.flatten())).to(self._device)
        self._vector[0] = loss.detach().to(torch.float64)
        self._work = dist.all_reduce(self._vector, group=self._group, async_op=True)

    def finish(self, *, meets: bool) -> StepTotals:
        """Wait for the exchange that was begun. meets: all sites come together after this step, whatever is asked for:
        here they do in each."""
        self._work.wait()
        loss, self.note, save, stop, failed, *cells = self._vector.tolist()
        rows = {}
        for index, site in enumerate(self._sites):
            values = cells[index * len(ROW) : (index + 1) * len(ROW)]
            rows[site] = dict(zip(ROW, values, strict=True))
        return StepTotals(loss / self._ranks, Wants.of_row([save, stop, failed]), rows)

    def flush(self, row: list[float], wants: Wants) -> StepTotals:
        """The rows of the last step, outside of any step."""
        self.launch(0, torch.zeros(()), row, wants)
        return self.finish(meets=False)
