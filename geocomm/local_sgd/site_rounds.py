"""The rounds of one site: they begin with the site's weights, and their results are merged into these."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.core.place import local_world_size
from geocomm.local_sgd.anchor import AnchoredFragment, digest, least_memory
from geocomm.local_sgd.flight import Flight, OwnersPart
from geocomm.local_sgd.fragments import Fragment, make_fragments
from geocomm.local_sgd.host_memory import available_memory, free_host_memory, require_memory
from geocomm.local_sgd.inner_optimizers import InnerOptimizers
from geocomm.local_sgd.merge import CARRY, merge_local
from geocomm.local_sgd.pace import Pace
from geocomm.local_sgd.parameter_view import ParameterView
from geocomm.local_sgd.resolved_settings import ResolvedSettings
from geocomm.local_sgd.rounds import LAST, Average, Offer, Rounds
from geocomm.local_sgd.schedule import Schedule
from geocomm.local_sgd.site_weights import SiteWeights, take_delta, weights_of


class SiteRounds:
    """What one rank has of its site's rounds: the outer state of its fragments, and rounds that are under way."""

    def __init__(self, view: ParameterView, inner: InnerOptimizers, rounds: Rounds, settings: ResolvedSettings) -> None:
        """Takes no memory yet. Raises InvalidArgumentError where there will be too little."""
        self._view = view
        self._inner = inner
        self._rounds = rounds
        self._ranks = rounds.ranks
        self._settings = settings
        self._schedule = settings.schedule
        self._next_schedule: Schedule | None = None
        self._pace = Pace() if settings.renews else None
        self.fragments: tuple[Fragment, ...] = make_fragments(view.tensors, self._schedule.fragments)
        self.layout = digest([], repr(self.fragments))
        """Of the fragments; equal at every site."""
        owned = [fragment for fragment in self.fragments if self._ranks.owns(fragment.index)]
        self._has = {"momentum": settings.outer.momentum > 0, "residual": not codec_spec(settings.coding.codec).exact}
        keeps_local = settings.merge == CARRY and settings.schedule.overlap > 0
        least = least_memory(owned, **self._has, keeps_local=keeps_local)
        require_memory(least, local_world_size(), available_memory())
        self._state: dict[int, AnchoredFragment] = {}
        self._flights: deque[Flight] = deque()
        self.step = 0
        """Optimizer steps so far."""
        self.weight = 0
        """Steps or tokens so far."""
        self.next_round = 0
        self._weight_at_begin = [0] * len(self.fragments)
        self._step_at_begin = [0] * len(self.fragments)
        self._held_back = 0  # steps for which a round that was due could not begin
        self._counters = {"rounds": 0, "rounds_not_finite": 0, "rounds_void": 0, "wire_bytes": 0}
        self._waited_s = 0.0
        self._norms: dict[str, float | None] = dict.fromkeys(
            ("delta_norm", "mean_norm", "agreement", "outer_step", "residual_norm")
        )

    def take_anchor(self) -> dict[str, str]:
        """Take memory, and copy the model's weights to the anchor; the digests of what this rank has of the model."""
        self._state = {
            fragment.index: AnchoredFragment(fragment, pinned=self._view.on_cuda, **self._has)
            for fragment in self.fragments
            if self._ranks.owns(fragment.index)
        }
        self._ranks.learn_shards(self._view)
        digests = dict(self._view.digests())
        for fragment in self.fragments:
            values = self._ranks.gather(self._view, fragment)
            if values is not None:
                self._state[fragment.index].anchor.copy_(values)
                if self._view.sharded:
                    digests |= {str(part): digest([values[span]]) for part, span in fragment.spans()}
        return digests

    def show_anchor(self) -> None:
        """Write the anchor to the model, at all ranks of the site."""
        for fragment in self.fragments:
            held = self._state.get(fragment.index)
            self._ranks.write(self._view, fragment, None if held is None else held.anchor)

    def count_step(self) -> None:
        """The optimizer has made a step: merge what is there, and begin what is due."""
        self.step += 1
        if self._pace is not None:
            self._pace.count_step()
        if self._settings.given.weights == "steps":
            self.weight += 1
        if self.step == 1:
            self._view.check()
        if self._settings.given.deterministic:
            self.merge_begun_by(self.step - self._schedule.overlap, wait=True)
        else:
            # Results that a line has kept back come all at once; a step merges one more than begin in a step.
            self.merge_begun_by(self.step - self._schedule.overlap, most=1 + self._schedule.most_in_a_step)
        while self.next_round < self._schedule.begun_by(self.step - self._held_back):
            fragment = self._schedule.fragment_of(self.next_round)
            if self._is_in_flight(fragment):
                self._held_back += 1  # the schedule stands still: later rounds come as far apart as ever
                break
            self._begin(fragment)
        if self._schedule.overlap == 0:
            self.merge_all()

    def meet(self) -> None:
        """Wait until all sites have begun as many rounds. Each site calls it as often."""
        if not self._settings.given.deterministic:  # else the number of steps says how many
            self._catch_up()

    def merge_all(self) -> None:
        """Wait for the results of all rounds under way, and merge them."""
        self.merge_begun_by(self.step, wait=True)

    def end(self) -> None:
        """Make the last round of each fragment, and leave the result in the model. All sites have begun as many rounds
        before."""
        self.merge_all()
        for index in range(len(self.fragments)):
            self._begin(index, last=True)
        self.merge_all()
        self.show_anchor()
        free_host_memory()

    def numbers(self) -> dict[str, Any]:
        """The counters, by the names of `geocomm.metrics.schema.LOCAL_STEPS`."""
        return {
            "steps": self.step,
            "every": self._schedule.every,
            **self._counters,
            "waited_seconds": self._waited_s,
            "held_back": self._held_back,
            "in_flight": len(self._flights),
            "oldest_in_flight": self.step - self._flights[0].begun if self._flights else 0,
            **self._norms,
        }

    def state_dict(self) -> dict[str, Any]:
        """Copies. Waits for the results of rounds under way."""
        return {
            "layout": self.layout,
            "step": self.step,
            "next_round": self.next_round,
            "schedule": asdict(self._schedule),
            "next_schedule": None if self._next_schedule is None else asdict(self._next_schedule),
            "held_back": self._held_back,
            "weight": self.weight,
            "weight_at_begin": list(self._weight_at_begin),
            "step_at_begin": list(self._step_at_begin),
            "counters": dict(self._counters),
            "fragments": {index: held.state_dict() for index, held in self._state.items()},
            "in_flight": [flight.state_dict() for flight in self._flights],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of this layout. Raises InvalidArgumentError for one that is damaged, and changes nothing
        then."""
        for name in ("step", "next_round", "held_back", "weight"):
            if int(state[name]) < 0:
                raise InvalidArgumentError(f"this state is damaged: its {name} is {state[name]}; take another one")
        for index, held in self._state.items():
            held.check_state(state["fragments"][index])
        for index, held in self._state.items():
            held.load_state_dict(state["fragments"][index])
        self.step = int(state["step"])
        self.next_round = int(state["next_round"])
        self._schedule = Schedule(**state["schedule"])
        self._next_schedule = None if state["next_schedule"] is None else Schedule(**state["next_schedule"])
        self._held_back = int(state["held_back"])
        self.weight = int(state["weight"])
        self._weight_at_begin = list(state["weight_at_begin"])
        self._step_at_begin = list(state["step_at_begin"])
        self._counters = dict(state["counters"])
        self._flights = deque(Flight.of_state(saved) for saved in state["in_flight"])

    def _begin(self, index: int, *, last: bool = False) -> None:
        """Begin the next round, with this fragment; its last one carries weights in place of deltas."""
        if index == 0 or last:  # once in a cycle: it looks at every parameter
            self._view.check()
        self._inner.check(self._view)
        weight = self.weight - self._weight_at_begin[index]
        if weight < 1 and self.step > self._step_at_begin[index]:
            told = (
                f"weights='tokens': no tokens were counted in the {self.step - self._step_at_begin[index]} steps "
                "before this round; call count_tokens() in every step"
            )
            if not last:
                raise InvalidArgumentError(told)
            logger().warning(f"local steps: {told}. This site does not count in its last round")
        local = weights_of(self._ranks, self._view, self.fragments[index])
        begun = None if local is None else self._offer(self._state[index], local, weight, last=last)
        own, finite = begun or (None, True)
        said = None if begun is None else [int(finite)]
        (finite,) = self._ranks.tell(index, said, 1)
        self._flights.append(Flight(self.next_round, index, self.step, bool(finite), own, last))
        self._weight_at_begin[index] = self.weight
        self._step_at_begin[index] = self.step
        self.next_round += 1
        if not finite:
            self._take_over_anchor()
        self._follow_schedule()

    def merge_begun_by(self, step: int, *, wait: bool = False, most: int | None = None) -> None:
        """Merge results in the order of the rounds, those that are there; `most` of them."""
        merged = 0
        while self._flights and self._flights[0].begun <= step and merged != most:
            if not wait and not self._is_done(self._flights[0]):
                break
            self._merge_next()
            merged += 1

    def _catch_up(self) -> None:
        """Begin the rounds that other sites have begun; without it a site whose results were late has begun fewer.

        A fragment may be due again though no step was taken since it began: the site then has weight 0.
        """
        furthest = self._rounds.furthest(self.next_round)
        while self.next_round < furthest:
            fragment = self._schedule.fragment_of(self.next_round)
            while self._is_in_flight(fragment):
                self._merge_next()
            self._begin(fragment)

    def digests_to_come(self) -> dict[int, str]:
        """The digest of each own fragment after the rounds in flight, which another site may have merged already."""
        coming = copy.deepcopy(self._state)
        for flight in self._flights:
            values = None if flight.own is None else flight.own.reduction.wait().values
            if values is not None:
                coming[flight.fragment].step(self._settings.outer, values, 0)
        return {index: held.digest() for index, held in coming.items()}

    def _is_done(self, flight: Flight) -> bool:
        done = None if flight.own is None else [int(flight.own.reduction.is_done())]
        return bool(self._ranks.tell(flight.fragment, done, 1)[0])

    def _merge_next(self) -> None:
        """It stays the next if it fails."""
        self._merge(self._flights[0])
        self._flights.popleft()

    def _is_in_flight(self, fragment: int) -> bool:
        return any(flight.fragment == fragment for flight in self._flights)

    def _offer(self, held: AnchoredFragment, local: SiteWeights, weight: int, *, last: bool) -> tuple[OwnersPart, bool]:
        """Begin the next round between the sites; whether the site's weights are finite.

        In a last round the site's weights are what crosses, else the delta.
        """
        number, every, squared_norm, local_at_begin = self.next_round, 0, 0.0, None
        if last:
            given = torch.cat(list(local.pieces))
            finite = bool(given.isfinite().all())
        else:
            keeps_local = self._settings.merge == CARRY and self._schedule.overlap > 0
            delta = take_delta(held.anchor, local, keep=keeps_local)
            given, local_at_begin, finite = delta.values, delta.local, delta.squared_norm is not None
            if delta.squared_norm is not None:
                squared_norm = delta.squared_norm
                self._norms["delta_norm"] = math.sqrt(squared_norm)
        if not finite:
            given.zero_()
        if self._pace is not None and held.fragment.index == 0 and not last:
            every = self._pace.wanted(self._schedule.every, self._rounds.line_seconds)
        weight = weight if finite else 0
        offer = Offer(number, held.fragment.index, self.step, held.version, weight, every, squared_norm, last)
        self._rounds.propose(offer)
        coding, residual = (LAST, None) if last else (self._settings.coding, held.residual)
        reduction = self._rounds.reduce(number, held.fragment, given, residual, coding)
        return OwnersPart(local_at_begin, reduction), finite

    def _take_over_anchor(self) -> None:
        """The model has NaN or Inf: begin anew where the sites stand, in all fragments, before it spreads again."""
        self.show_anchor()
        for flight in self._flights:
            if flight.own is not None and flight.own.local_at_begin is not None:
                # What the site changes from here on is carried over to the anchor that comes.
                flight.own.local_at_begin.copy_(self._state[flight.fragment].anchor)
        self._weight_at_begin = [self.weight] * len(self.fragments)
        self._step_at_begin = [self.step] * len(self.fragments)
        healed = self._inner.heal()
        anew = f" and begins its optimizer anew: {'; '.join(healed)}" if healed else ""
        logger().warning(
            f"local steps, round {self.next_round - 1}: the weights of this site have NaN or Inf after {self.step} "
            f"steps. It does not count in this round, takes over the anchor of the sites{anew}"
        )

    def _follow_schedule(self) -> None:
        """Take over the next schedule, if there is one, where it begins."""
        if self._next_schedule is not None and self.next_round == self._next_schedule.first_round:
            self._schedule, self._next_schedule = self._next_schedule, None

    def _merge(self, flight: Flight) -> None:
        """Take the outer step of a round, once its result is there, and merge it into the model."""
        void, every = self._settle(flight)
        self._counters["rounds"] += 1
        self._counters["rounds_void"] += void and not flight.last
        self._counters["rounds_not_finite"] += not flight.finite
        fragment, held = self.fragments[flight.fragment], self._state.get(flight.fragment)
        merged = None if held is None else held.anchor
        written = False
        if flight.begun < self.step:  # else there is nothing of the site's own to keep
            local = weights_of(self._ranks, self._view, fragment)
            if held is not None and local is not None and flight.own is not None:
                merge_local(self._settings.merge, local.pieces, held.anchor, flight.own.local_at_begin)
                merged, written = local.pieces[0], local.of_model
        if not written:
            self._ranks.write(self._view, fragment, merged)
        if every not in (0, self._schedule.every):
            # No site begins that round before it has merged this one, since both have the same fragment.
            self._next_schedule = self._schedule.renewed(flight.number + self._schedule.fragments, every)
            self._follow_schedule()

    def _settle(self, flight: Flight) -> tuple[bool, int]:
        """Wait for the result, and take the outer step where the fragment is owned.

        Returns whether no site counted, and what the sites want `every` to be, or 0. A round that failed raises at all
        ranks of the site.
        """
        start, said = time.monotonic(), None
        if flight.own is not None:
            try:
                average = flight.own.reduction.wait()
                self._step_outside(flight, self._state[flight.fragment], average)
            except Exception as error:
                self._ranks.tell(flight.fragment, [0, 0, 0], 3)
                self._ranks.tell_failure(flight.fragment, error)
                raise
            said = [1, int(average.values is None), average.entry.every]
        ended_well, void, every = self._ranks.tell(flight.fragment, said, 3)
        self._waited_s += time.monotonic() - start
        if not ended_well:
            raise self._ranks.tell_failure(flight.fragment, None)
        return bool(void), every

    def _step_outside(self, flight: Flight, held: AnchoredFragment, average: Average) -> None:
        if flight.last:
            cycle = len(average.entry.members) * self._schedule.every
            held.end(self._settings.outer, average.values, sum(average.entry.steps), cycle)
        elif average.values is not None:
            moved, mean_norm = held.step(self._settings.outer, average.values, sum(average.entry.steps))
            self._norms["mean_norm"] = mean_norm
            self._norms["outer_step"] = moved / mean_norm if mean_norm else None
            self._norms["agreement"] = average.entry.agreement(self._settings.coding.averaging, mean_norm)
            if held.residual is not None and average.residual is not None:
                held.residual = average.residual
                self._norms["residual_norm"] = float(held.residual.norm())
        self._rounds.commit(flight.number, held.digest())
        self._counters["wire_bytes"] += average.wire_bytes
