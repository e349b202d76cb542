"""The rounds of one site: they begin with the site's weights, and their results are merged into these."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from typing_extensions import override

from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.sync.local_steps.model.host_memory import free_host_memory
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.outer.anchor import STATE_VERSION, AnchoredFragment, copy_of, merge_local
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.outer.rounds import Average, Entry, Reduction, Rounds, SiteOffer, Terms
from geocomm.sync.local_steps.outer.schedule import Schedule
from geocomm.sync.local_steps.outer.site_state import SiteState
from geocomm.sync.local_steps.outer.site_weights import SiteWeights, take_delta


class SiteRounds(SiteState):
    """The rounds of a run whose sites are fixed: all of them take part in every round, in the same order."""

    def __init__(
        self,
        view: ParameterView,
        inner: InnerOptimizers,
        rounds: Rounds,
        settings: ResolvedSettings,
        begin_step: int = 0,
    ) -> None:
        """Takes no memory yet. Raises InvalidArgumentError where there will be too little."""
        super().__init__(view, inner, rounds, settings, begin_step)
        self._rounds = rounds
        self._next_schedule: Schedule | None = None
        self._flights: deque[Flight] = deque()
        self._next_round = 0

    @override
    def begin(self) -> None:
        # No rank takes memory before all have looked how much there is.
        self._rounds.agree(Terms(self.terms(), self._view.types(), {}))
        try:
            digests = self.take_anchor()
        except GeocommError as error:
            self._rounds.refuse(str(error))
            raise
        self._rounds.agree(Terms({}, {}, digests))

    @override
    def count_step(self) -> None:
        super().count_step()
        if self._settings.given.deterministic:
            self._merge_begun_by(self.step - self._schedule.overlap, wait=True)
        else:
            # Results that a line has kept back come all at once; a step merges one more than begin in a step.
            self._merge_begun_by(self.step - self._schedule.overlap, most=1 + self._schedule.most_in_a_step)
        while self._next_round < self._schedule.begun_by(self.step - self._held_back):
            fragment = self._schedule.fragment_of(self._next_round)
            if fragment in self._held:
                self._rounds.due(self._next_round, fragment)
            if self._is_in_flight(fragment):
                self._held_back += 1  # the schedule stands still: later rounds come as far apart as ever
                break
            self._begin(fragment)
        if self._schedule.overlap == 0:
            self._merge_all()

    @override
    def meet(self) -> None:
        self._catch_up()
        self._merge_all()

    @override
    def end(self) -> None:
        """Makes the last round of each fragment, once all sites have begun as many before."""
        self.meet()
        for index in range(len(self.fragments)):
            self._begin(index, last=True)
        self._merge_all()
        self.show_anchor()
        free_host_memory()
        self._rounds.close()

    @override
    def numbers(self) -> dict[str, Any]:
        oldest = self.step - self._flights[0].begun if self._flights else 0
        return super().numbers() | {"in_flight": len(self._flights), "oldest_in_flight": oldest}

    @override
    def state_dict(self) -> dict[str, Any]:
        """Every rank calls it. Waits for the results of rounds under way; results that were late are merged."""
        self._catch_up()
        return {
            "version": STATE_VERSION,
            "site": self.site,
            "rank": self.ranks.text,
            "settings": self._settings.terms(),
            "layout": self.layout,
            "step": self.step,
            "next_round": self._next_round,
            "schedule": asdict(self._schedule),
            "next_schedule": None if self._next_schedule is None else asdict(self._next_schedule),
            "held_back": self._held_back,
            "weight": self.weight,
            "weight_at_begin": list(self._weight_at_begin),
            "step_at_begin": list(self._step_at_begin),
            "counters": dict(self._counters),
            "fragments": {index: held.state_dict() for index, held in self._held.items()},
            "in_flight": [flight.state_dict() for flight in self._flights],
        }

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("elastic"):
            raise InvalidArgumentError(
                "this state is of an elastic run; a run with fixed sites begins from its anchor: load model and "
                "optimizer before local_steps(), and leave this state out"
            )
        self._check_origin(state)
        for name in ("step", "next_round", "held_back", "weight"):
            if int(state[name]) < 0:
                raise InvalidArgumentError(f"this state is damaged: its {name} is {state[name]}; take another one")
        for index, held in self._held.items():
            held.check_state(state["fragments"][index])
        for index, held in self._held.items():
            held.load_state_dict(state["fragments"][index])
        self.step = int(state["step"])
        self._next_round = int(state["next_round"])
        self._schedule = Schedule(**state["schedule"])
        self._next_schedule = None if state["next_schedule"] is None else Schedule(**state["next_schedule"])
        self._held_back = int(state["held_back"])
        self.weight = int(state["weight"])
        self._weight_at_begin = list(state["weight_at_begin"])
        self._step_at_begin = list(state["step_at_begin"])
        self._counters = dict(state["counters"])
        self._flights = deque(Flight.of_state(saved) for saved in state["in_flight"])
        digests = {f"the state of fragment {index}": text for index, text in self._digests_to_come().items()}
        self._rounds.agree(Terms({"next round": str(self._next_round)}, {}, digests))

    def _check_origin(self, state: Mapping[str, Any]) -> None:
        """Raise InvalidArgumentError for a state of another version, site, rank or run."""
        if state.get("version") != STATE_VERSION:
            raise InvalidArgumentError(
                f"not a state of local steps of this version ({STATE_VERSION}): {state.get('version')!r}"
            )
        if state["site"] != self.site:
            raise InvalidArgumentError(
                f"this state is that of site {state['site']!r}, and this is {self.site!r}; each site loads "
                "its own, which has its residuals"
            )
        here = {"rank of the site": self.ranks.text, "layout": self.layout, **self._settings.terms()}
        for name in ("reduce", "regions"):  # of which the state has nothing
            here.pop(name, None)
        saved = {"rank of the site": state["rank"], "layout": state["layout"], **state["settings"]}
        for name, value in here.items():
            if saved.get(name) != value:
                raise InvalidArgumentError(f"{name} was {saved.get(name)} when the state was saved, and is {value}")

    def _begin(self, index: int, *, last: bool = False) -> None:
        """Begin the next round, with this fragment; its last one carries weights in place of deltas."""
        weight = self._weight_or_none(index) if last else self._weight_of(index)
        reduction: Reduction | None = None
        local_at_begin: torch.Tensor | None = None

        def offer(local: SiteWeights) -> bool:
            nonlocal reduction, local_at_begin
            reduction, local_at_begin, finite = self._offer(self._held[index], local, weight, last=last)
            return finite

        finite = self._begin_by_owner(index, offer, looks=index == 0 or last)
        self._flights.append(Flight(self._next_round, index, self.step, finite, reduction, local_at_begin, last))
        self._weight_at_begin[index] = self.weight
        self._step_at_begin[index] = self.step
        if not finite:
            under_way = ((one.fragment, one.local_at_begin) for one in self._flights)
            self._take_over_anchor(under_way, f"round {self._next_round}")
        self._next_round += 1
        self._follow_schedule()

    def _weight_or_none(self, index: int) -> int:
        """`_weight_of`, at the end of a run, which a site that counted nothing does not stop."""
        try:
            return self._weight_of(index)
        except InvalidArgumentError as error:
            logger().warning(f"local steps: {error}. This site does not count in its last round")
            return 0

    def _merge_all(self) -> None:
        """Wait for the results of all rounds under way, and merge them."""
        self._merge_begun_by(self.step, wait=True)

    def _merge_begun_by(self, step: int, *, wait: bool = False, most: int | None = None) -> None:
        """Merge results in the order of the rounds, those that are there; `most` of them."""
        merged = 0
        while self._flights and self._flights[0].begun <= step and merged != most:
            if not wait and not self._is_done(self._flights[0]):
                break
            self._merge_next()
            merged += 1

    def _catch_up(self) -> None:
        """Begin the rounds that other sites have begun; without it a site whose results were late has begun fewer.

        Each site calls it as often. A fragment may be due again though no step was taken since it began: the site then
        has weight 0.
        """
        if self._settings.given.deterministic:  # the number of steps says how many
            return
        furthest = self._rounds.furthest(self._next_round)
        while self._next_round < furthest:
            fragment = self._schedule.fragment_of(self._next_round)
            while self._is_in_flight(fragment):
                self._merge_next()
            self._begin(fragment)

    def _digests_to_come(self) -> dict[int, str]:
        """The digest of each own fragment after the rounds in flight, which another site may have merged already."""
        coming = copy.deepcopy(self._held)
        for flight in self._flights:
            values = None if flight.reduction is None else flight.reduction.wait().values
            if values is not None:
                coming[flight.fragment].step(self._settings.outer, values, 0)
        return {index: held.digest() for index, held in coming.items()}

    def _is_done(self, flight: Flight) -> bool:
        done = None if flight.reduction is None else [int(flight.reduction.is_done())]
        return bool(self.ranks.broadcast(flight.fragment, done, 1)[0])

    def _merge_next(self) -> None:
        """It stays the next if it fails."""
        self._merge(self._flights[0])
        self._flights.popleft()

    def _is_in_flight(self, fragment: int) -> bool:
        return any(flight.fragment == fragment for flight in self._flights)

    def _offer(
        self, held: AnchoredFragment, local: SiteWeights, weight: int, *, last: bool
    ) -> tuple[Reduction, torch.Tensor | None, bool]:
        """Begin the next round between the sites; also the weights that the merge needs, and whether these are finite.

        In a last round the site's weights are what crosses, else the delta.
        """
        number, squared_norm, local_at_begin = self._next_round, 0.0, None
        if last:
            given = torch.cat(list(local.pieces))
            finite = bool(given.isfinite().all())
        else:
            delta = take_delta(held.anchor, local, keep=self._keeps_local)
            given, local_at_begin, finite = delta.values, delta.local, delta.squared_norm is not None
            if delta.squared_norm is not None:
                squared_norm = delta.squared_norm
                self._norms["delta_norm"] = math.sqrt(squared_norm)
        if not finite:
            given.zero_()
        every = 0 if last else self._wanted_every(held.fragment.index, self._rounds.line_seconds)
        weight = weight if finite else 0
        offer = SiteOffer(number, held.fragment.index, self.step, held.version, weight, every, squared_norm, last)
        coding, residual = self._settings.coding, held.residual
        if last:
            coding, residual = coding.of_last, None
        reduction = self._rounds.reduce(offer, held.fragment, given, residual, coding)
        return reduction, local_at_begin, finite

    def _follow_schedule(self) -> None:
        """Take over the next schedule, if there is one, where it begins."""
        if self._next_schedule is not None and self._next_round == self._next_schedule.first_round:
            self._schedule, self._next_schedule = self._next_schedule, None

    def _merge(self, flight: Flight) -> None:
        """Take the outer step of a round, once its result is there, and merge it into the model."""
        void, every = self._settle(flight)
        self._counters["rounds"] += 1
        self._counters["rounds_void"] += void and not flight.last
        self._counters["rounds_not_finite"] += not flight.finite
        held = self._held.get(flight.fragment)

        def merge(local: SiteWeights) -> list[int]:
            if held is not None:
                merge_local(self._settings.merge, local.pieces, held.anchor, flight.local_at_begin)
            return []

        if flight.begun < self.step:
            self._merge_by_owner(flight.fragment, merge)
        else:  # there is nothing of the site's own to keep
            self.ranks.write(self._view, self.fragments[flight.fragment], None if held is None else held.anchor)
        if every not in (0, self._schedule.every):
            # No site begins that round before it has merged this one, since both have the same fragment.
            self._next_schedule = self._schedule.renewed(flight.number + self._schedule.fragments, every)
            self._follow_schedule()

    def _settle(self, flight: Flight) -> tuple[bool, int]:
        """Wait for the result, and take the outer step where the fragment is owned.

        Returns whether no site counted, and what the sites want `every` to be, or 0. A round that failed raises at all
        ranks of the site.
        """
        start = time.monotonic()

        def settle(reduction: Reduction) -> list[int]:
            average = reduction.wait()
            self._step_outside(flight, self._held[flight.fragment], average)
            return [int(average.values is None), average.entry.every]

        work = None if flight.reduction is None else partial(settle, flight.reduction)
        void, every = self.ranks.by_owner(flight.fragment, work, 2)
        self._waited_s += time.monotonic() - start
        return bool(void), every

    def _step_outside(self, flight: Flight, held: AnchoredFragment, average: Average) -> None:
        if flight.last:
            cycle = len(average.entry.members) * self._schedule.every
            held.end(self._settings.outer, average.values, sum(average.entry.steps), cycle)
        elif average.values is not None:
            self._outer_step(held, average.values, average.entry)
            self._take_residual(held, average.residual)
        self._rounds.commit(flight.number, held.digest())
        self._counters["wire_bytes"] += average.wire_bytes


@dataclass(frozen=True)
class Flight:
    """A round that is under way, at one rank."""

    number: int
    fragment: int
    begun: int
    """The optimizer step after which it began."""
    finite: bool
    """Whether the site's weights were."""
    reduction: Reduction | None
    """None at ranks that do not own the fragment."""
    local_at_begin: torch.Tensor | None
    """The weights that the delta was taken of, at the owner, where the merge needs them."""
    last: bool = False
    """Whether it is the fragment's last one, of `finish`."""

    def state_dict(self) -> dict[str, Any]:
        """Copies. Waits for the result."""
        state: dict[str, Any] = {
            "number": self.number,
            "fragment": self.fragment,
            "begun": self.begun,
            "finite": self.finite,
            "own": None,
        }
        if self.reduction is not None:
            average = self.reduction.wait()
            state["own"] = {
                "local_at_begin": copy_of(self.local_at_begin),
                "entry": dict(vars(average.entry)),
                "values": copy_of(average.values),
                "residual": copy_of(average.residual),
                "wire_bytes": average.wire_bytes,
            }
        return state

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> Flight:
        """What was saved; its result is there."""
        own, reduction, local_at_begin = state["own"], None, None
        if own is not None:
            average = Average(
                Entry(**own["entry"]), copy_of(own["values"]), copy_of(own["residual"]), own["wire_bytes"]
            )
            reduction, local_at_begin = _Arrived(average), copy_of(own["local_at_begin"])
        return cls(state["number"], state["fragment"], state["begun"], state["finite"], reduction, local_at_begin)


@dataclass(frozen=True)
class _Arrived:
    """The reduction of a round whose result came before a state was saved."""

    average: Average

    def is_done(self) -> bool:
        return True

    def wait(self) -> Average:
        return self.average
