"""What communication cost: counters of this process, and one small all-reduce per step that adds them up by site.

That all-reduce also carries the loss and three votes (save now, stop, something failed here). It starts before
backward and is read after the optimizer step, so that its round trip over the WAN hides behind the computation; the
counters of a step travel with the next step's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from geocomm.metrics import schema
from geocomm.metrics.counters import stats

ROW = ("step_seconds", *schema.names(schema.COUNTERS))


class StepMeter:
    """Deltas of `geocomm.stats()` and wall time over a step. Without the geocomm backend the counters are zeros."""

    def __init__(self, backend: str) -> None:
        self.has_counters = backend == "geocomm"
        self._begin = time.perf_counter()
        self._before = self._read()

    def _read(self) -> list[float]:
        if not self.has_counters:
            return [0.0] * (len(ROW) - 1)
        counters = stats()
        return [float(counters[name]) for name in ROW[1:]]

    def start(self) -> None:
        """Begin to measure a step."""
        self._begin = time.perf_counter()
        self._before = self._read()

    def row(self) -> list[float]:
        """Values of `ROW` since `start`."""
        elapsed = time.perf_counter() - self._begin
        return [elapsed, *(now - before for now, before in zip(self._read(), self._before, strict=True))]


@dataclass(frozen=True)
class StepTotals:
    """Sums over all ranks: loss and votes of this step, and per site the `ROW` of the step before."""

    loss_sum: float
    save: bool
    stop: bool
    failed: bool
    rows: dict[str, dict[str, float]]


class StepReducer:
    """Makes the all-reduce of one small fp64 vector per step."""

    def __init__(self, sites: list[str], site: str, device: torch.device) -> None:
        """`sites`: all site names, in the same order on all ranks; `site`: this rank's."""
        self._sites = sites
        self._own = sites.index(site)
        self._device = device

    def launch(
        self, loss: torch.Tensor, row: list[float], *, save: bool = False, stop: bool = False, failed: bool = False
    ) -> StepSum:
        """Start the sum; one at a time.

        `loss` is a scalar on the reducer's device; `row` is the step before's, zeros if none.
        """
        head = torch.tensor([0.0, float(save), float(stop), float(failed)], dtype=torch.float64)
        table = torch.zeros(len(self._sites), len(ROW), dtype=torch.float64)
        table[self._own] = torch.tensor(row, dtype=torch.float64)
        vector = torch.cat((head, table.flatten())).to(self._device)
        vector[0] = loss.detach().to(torch.float64)
        work: Any = dist.all_reduce(vector, async_op=True)
        return StepSum(self._sites, vector, work)


class StepSum:
    """A sum that is under way."""

    def __init__(self, sites: list[str], vector: torch.Tensor, work: dist.Work) -> None:
        """vector: what `work` adds up, in place."""
        self._sites = sites
        self._vector = vector
        self._work = work

    def finish(self) -> StepTotals:
        """Wait for it; once."""
        self._work.wait()
        loss, save, stop, failed, *cells = self._vector.tolist()
        rows = {}
        for index, site in enumerate(self._sites):
            values = cells[index * len(ROW) : (index + 1) * len(ROW)]
            rows[site] = dict(zip(ROW, values, strict=True))
        return StepTotals(loss, save > 0, stop > 0, failed > 0, rows)
