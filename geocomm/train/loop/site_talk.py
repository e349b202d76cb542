"""What the ranks tell one another with local steps: inside the site in every step, between the sites now and then.

Between the sites one small all-reduce of their first ranks is under way at a time. It carries where each site stands
and what its ranks ask for (a checkpoint, the end of the run). No step waits for it, so a line that is down holds up
none. What is asked for has to happen after the same step everywhere: a site that reads that a rank asks for something
goes into the next exchange at once and waits, and the furthest step of that exchange is the one.

Where the sites are in lockstep anyway (`LocalSync.in_lockstep`), they begin and read exchanges at fixed steps: a site
that waits inside of a round for another one comes to no exchange before that one goes on.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from geocomm.group.backend.sites import Sites
from geocomm.train.loop.comm_meter import ROW, StepReducer, StepTotals, Wants
from geocomm.train.loop.local_sync import LocalSync

_EVERY_STEPS = 5
"""From one exchange to the next."""
_EVERY_S = 1.0
"""The same in seconds, where steps are long: machines are given back half a minute after a signal."""
ROUNDS = ("rounds", "held_back", "rounds_not_finite")
"""What the sites tell of their rounds: some of `LocalSync.summary`."""
_SUMS = ("steps", *ROW)
_COLUMNS = ("save", "stop", "failed", "arrived", "step", "loss", *ROUNDS, *_SUMS)


@dataclass(frozen=True)
class SiteReport:
    """Where the sites stood in an exchange: numbers by name of `_COLUMNS`, by site. The last of them, from `steps` on,
    are sums over the steps and ranks since the site's exchange before."""

    sites: dict[str, dict[str, float]]

    @property
    def wants(self) -> Wants:
        """What ranks of any site ask for."""
        return Wants.of_row([sum(row[name] for row in self.sites.values()) for name in ("save", "stop", "failed")])

    @property
    def all_arrived(self) -> bool:
        """Whether all sites wait after the same step."""
        return all(row["arrived"] for row in self.sites.values())

    @property
    def furthest(self) -> int:
        """The largest step that a site is at."""
        return max(int(row["step"]) for row in self.sites.values())


class SiteTalk:
    """The exchanges of a run with local steps; methods as of `StepReducer`."""

    def __init__(self, local: LocalSync, site: str, device: torch.device) -> None:
        self._local = local
        self._sites = local.sites
        self._site = site
        self._inside = StepReducer({site: len(self._sites.own)}, site, device, self._sites.inside)
        self._between = _Exchanges(self._sites)
        self._step = 0
        self._until = 0  # the step after which what was asked for happens; 0: nothing was

    def launch(self, step: int, loss: torch.Tensor, row: list[float], wants: Wants) -> None:
        self._step = step
        until = self._turn(step) if self._sites.is_first else 0
        self._inside.launch(step, loss, row, wants, note=float(until))

    def finish(self, *, meets: bool) -> StepTotals:
        """The totals of this site's ranks; what all ranks ask for, where the sites come together after this step."""
        totals = self._inside.finish(meets=meets)
        self._until = int(self._inside.note)
        summary = self._local.summary()
        self._between.standing = {"loss": totals.loss, **{name: summary[name] or 0 for name in ROUNDS}}
        totals = self._note(totals)
        return replace(totals, wants=self._meet(self._step)) if meets or self._step == self._until else totals

    def flush(self, row: list[float], wants: Wants) -> StepTotals:
        """The other sites hear later what is asked for."""
        return self._note(self._inside.flush(row, wants))

    def take_reports(self) -> list[SiteReport]:
        """What the sites told since the last call. Only at first ranks."""
        taken, self._between.reports = self._between.reports, []
        return taken

    def _note(self, totals: StepTotals) -> StepTotals:
        """Keep for the next exchange what the site's ranks said; without what they ask for."""
        self._between.wants |= totals.wants
        self._between.add(totals.rows[self._site])
        return replace(totals, wants=Wants())

    def _turn(self, step: int) -> int:
        """During this step: begin or read an exchange, if it is time. The step to come together after, or 0."""
        between = self._between
        if self._until:
            return self._until
        if self._local.in_lockstep:
            if step % _EVERY_STEPS:
                return 0
            if between.read():
                return step
            between.begin(step)
            return 0
        if not between.may_be_read():
            return 0
        if between.read():
            between.begin(step)
            between.read()
            return between.last_step()
        if between.wants or between.is_due(step):
            between.begin(step)
        return 0

    def _meet(self, step: int) -> Wants:
        """Wait for all sites after this step; what their ranks ask for."""
        between = self._between
        if self._sites.is_first:
            between.read()
            while not self._local.in_lockstep and not between.all_arrived():
                between.begin(step, arrived=True)
                between.read()
        self._until = 0
        wants = torch.tensor(between.end_meeting().to_row())
        dist.broadcast(wants, self._sites.own[0], group=self._sites.inside)
        return Wants.of_row(wants.tolist())


class _Exchanges:
    """The exchanges between the sites, one after the other, and what this site has to say in the next one."""

    def __init__(self, sites: Sites) -> None:
        """Collective over all ranks. Those that are not the first of their sites exchange nothing."""
        self._sites = sites
        made: Any = dist.new_group(list(sites.firsts))
        self._group: dist.ProcessGroup | None = made if sites.is_first else None
        self._pending: tuple[torch.Tensor, Any] | None = None
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._asked = Wants()  # by any site, in what was read since the last meeting
        self._last: SiteReport | None = None
        self.wants = Wants()
        """What ranks of this site ask for."""
        self.standing: dict[str, float] = {}
        """Loss, and counters of rounds."""
        self._begun = 0, time.monotonic()
        self.reports: list[SiteReport] = []

    def add(self, row: dict[str, float]) -> None:
        """Count a step."""
        if row["step_seconds"]:
            self._sums["steps"] += 1
            for name, value in row.items():
                self._sums[name] += value

    def may_be_read(self) -> bool:
        """Whether `read` would not wait."""
        return self._pending is None or self._pending[1].is_completed()

    def is_due(self, step: int) -> bool:
        """Whether the last exchange began long ago."""
        before, when = self._begun
        return step >= before + _EVERY_STEPS or time.monotonic() >= when + _EVERY_S

    def begin(self, step: int, *, arrived: bool = False) -> None:
        """Tell the other sites where this one is."""
        values = {**self.standing, **self._sums, "arrived": arrived, "step": step}
        values |= dict(zip(("save", "stop", "failed"), self.wants.to_row(), strict=True))
        table = torch.zeros(len(self._sites.names), len(_COLUMNS), dtype=torch.float64)
        table[self._sites.index] = torch.tensor([float(values.get(name, 0)) for name in _COLUMNS], dtype=torch.float64)
        self._pending = table, dist.all_reduce(table, group=self._group, async_op=True)
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._begun = step, time.monotonic()

    def read(self) -> bool:
        """Wait for the exchange that is under way, if one is; whether a rank asks for something in it."""
        if self._pending is None:
            return False
        table, work = self._pending
        work.wait()
        self._pending = None
        rows = [dict(zip(_COLUMNS, row, strict=True)) for row in table.tolist()]
        self._last = SiteReport(dict(zip(self._sites.names, rows, strict=True)))
        self.reports.append(self._last)
        self._asked |= self._last.wants
        return bool(self._last.wants)

    def last_step(self) -> int:
        """The furthest step of the exchange that was read last."""
        return 0 if self._last is None else self._last.furthest

    def all_arrived(self) -> bool:
        """Whether all sites wait after this step, as far as this one has read."""
        return self._last is not None and self._last.all_arrived

    def end_meeting(self) -> Wants:
        """What was asked for since the last meeting; begins anew."""
        asked = self._asked
        self._asked, self.wants, self._last = Wants(), Wants(), None
        return asked
