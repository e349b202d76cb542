"""One call that makes a training loop average every H optimizer steps instead of in every step."""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

import torch

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import GeocommError, InvalidArgumentError, PeerLostError
from geocomm.core.message_log import logger
from geocomm.core.place import local_world_size
from geocomm.local_sgd.anchor import STATE_VERSION, AnchoredFragment, digest, least_memory, take_delta
from geocomm.local_sgd.averaging import Averaging
from geocomm.local_sgd.flight import Flight, OwnersPart
from geocomm.local_sgd.fragments import Fragment, make_fragments
from geocomm.local_sgd.group_rounds import GroupRounds
from geocomm.local_sgd.host_memory import available_memory, require_memory
from geocomm.local_sgd.inner_optimizers import InnerOptimizers
from geocomm.local_sgd.local_settings import Auto, LocalSettings, Weights
from geocomm.local_sgd.merge import CARRY, Merge, merge_local
from geocomm.local_sgd.outer_step import Nesterov
from geocomm.local_sgd.pace import Pace
from geocomm.local_sgd.parameter_view import ParameterView
from geocomm.local_sgd.parameter_views import view_of
from geocomm.local_sgd.rounds import LAST, Average, Offer, Rounds, Terms
from geocomm.local_sgd.schedule import Schedule
from geocomm.metrics.hook_registry import register_handle


def local_steps(
    model: torch.nn.Module,
    optimizer: Any,
    *,
    rounds: Rounds | None = None,
    preset: str = "pretrain",
    every: int | Auto = "auto",
    codec: str | None = None,
    outer: Nesterov | None = None,
    fragments: int | Auto = "auto",
    merge: Merge | Auto = "auto",
    overlap: int | Auto = "auto",
    decay: float | None = None,
    averaging: Averaging = "auto",
    weights: Weights = "steps",
    exact: Sequence[str] = ("norm",),
    exact_below: int = 4096,
    buffers: Literal["refuse", "local"] = "refuse",
    deterministic: bool = False,
) -> LocalSteps:
    """Train with local steps: each site trains by itself, and every `every` optimizer steps the sites average.

    Call it once at every rank, with equal weights, before the first step; then train as ever. `optimizer.step()` is
    the clock: after it, rounds begin and their results are merged. Steps that a GradScaler skips do not count, nor do
    micro-batches. An outer optimizer steps with the average of the sites' deltas (DiLoCo, arXiv 2311.08105), one
    fragment of the model after the other (Streaming DiLoCo, arXiv 2501.18512).

    model: float32 parameters on any device, alone, under DDP or under FSDP2 over the ranks of the site; or a DeepSpeed
    engine (ZeRO 0 to 3) whose data parallel group they are, in fp32, bf16 or fp16. What is averaged is float32: the
    parameters, FSDP2's shards of them, or DeepSpeed's masters.
    optimizer: a torch.optim.Optimizer that has the model's parameters, or `engine.optimizer`.
    rounds: what carries the deltas; default: `GroupRounds`, over the sites of the default process group, and then the
    call is collective. `SimulatedSites.run` makes one for sites in one process.
    preset: "pretrain" (Nesterov with lr 1.0 and momentum 0.8, int4, merge "carry"), "finetune" (lr 0.2, no momentum,
    int4, merge 0.5) or "loco" (SparseLoCo, arXiv 2508.15706: lr 1, no momentum, the codec loco, residuals that decay by
    0.95, merge 0.5). codec, outer, merge and decay replace its own.
    every: optimizer steps between two rounds of a fragment. "auto": 30, and while the run goes the smallest number from
    30 to 300 with which rounds take at most 0.7 of the time, so that a slow line gets fewer of them. The sites measure
    it and change it after the same round; with `deterministic` it stays 30.
    codec: of the deltas, with error feedback; "none" sends float32. int4 has blocks of 128 unless it says otherwise.
    fragments: how many; "auto": as many as have 4 MiB each, at most 24.
    merge: what becomes of the steps that a site took while a result was on the line (`merge_local`). "carry" adds them
    to the new anchor; a number, 0 to below 1, is the weight of the site's own weights.
    overlap: optimizer steps from a round's beginning to its merge, at least. "auto": 1, so a result is merged as soon
    as it is there; with `deterministic` 5, at most `every`. 0: the site waits for the result and takes over the anchor,
    whatever `merge` is.
    deterministic: what becomes of a result that is late. False: the site trains on and merges it when it comes, and
    rounds that are due meanwhile begin later, so that a line that is down holds up no step. True: the step waits, and
    equal runs have equal bits.
    decay: of the residual of error feedback, in each round.
    averaging: "mean", "radial" (`radial_directional`), or "auto": the mean up to four sites, radial beyond.
    weights: what a site's delta counts by: its "steps", or the "tokens" that it says with `count_tokens`.
    exact: regular expressions, searched in the names of parameters whose deltas are not compressed; nor are those of
    one dimension or fewer than `exact_below` elements.
    buffers: "refuse" those that change in training (BatchNorm's statistics); "local": each site keeps its own.

    A site whose weights have NaN or Inf has weight 0 in that round. It takes over the whole anchor at once, and begins
    the optimizer's state anew where that is not finite. Host memory: 12 bytes an element (8 without momentum), which
    the ranks of a site share by fragments, and what rounds in flight hold.
    Raises InvalidArgumentError, UnsupportedError, and ReplicaMismatchError where the sites' weights differ.
    """
    rounds = GroupRounds() if rounds is None else rounds
    try:
        if buffers not in ("refuse", "local"):
            raise InvalidArgumentError(f"buffers is {buffers!r}; it must be 'refuse' or 'local'")
        keep = buffers == "local"
        view = view_of(model, rounds, exact=exact, exact_below=exact_below, keep_buffers_local=keep)
        inner = InnerOptimizers(optimizer)
        inner.check(view)
        settings = LocalSettings.of(
            view.tensors,
            preset=preset,
            every=every,
            codec=codec,
            outer=outer,
            fragments=fragments,
            merge=merge,
            overlap=overlap,
            decay=decay,
            averaging=averaging,
            weights=weights,
            deterministic=deterministic,
        )
        handle = LocalSteps(view, inner, rounds, settings)
    except GeocommError as error:
        rounds.refuse(str(error))
        raise
    handle.begin()
    return handle


class LocalSteps:
    """The handle of `geocomm.local_steps`. Not thread-safe; it belongs to the thread that calls optimizer.step()."""

    def __init__(self, view: ParameterView, inner: InnerOptimizers, rounds: Rounds, settings: LocalSettings) -> None:
        """Not begun yet."""
        self._view = view
        self._inner = inner
        self._rounds = rounds
        self._settings = settings
        self._schedule = settings.schedule
        self._next_schedule: Schedule | None = None
        self._pace = Pace() if settings.renews else None
        self._ranks = rounds.ranks
        self.fragments: tuple[Fragment, ...] = make_fragments(view.tensors, self._schedule.fragments)
        """What the rounds average, one after the other."""
        owned = [fragment for fragment in self.fragments if self._ranks.owns(fragment.index)]
        self._has = {"momentum": settings.outer.momentum > 0, "residual": not codec_spec(settings.coding.codec).exact}
        keeps_local = settings.merge == CARRY and settings.schedule.overlap > 0
        least = least_memory(owned, **self._has, keeps_local=keeps_local)
        require_memory(least, local_world_size(), available_memory())
        self._state: dict[int, AnchoredFragment] = {}
        self._layout = digest([], repr(self.fragments))
        self._flights: deque[Flight] = deque()
        self._step = 0
        self._next_round = 0
        self._weight = 0  # steps or tokens so far
        self._weight_at_begin = [0] * len(self.fragments)
        self._step_at_begin = [0] * len(self.fragments)
        self._counters = {"rounds": 0, "rounds_not_finite": 0, "rounds_void": 0, "wire_bytes": 0}
        self._waited_s = 0.0
        self._norms: dict[str, float | None] = dict.fromkeys(
            ("delta_norm", "mean_norm", "agreement", "outer_step", "residual_norm")
        )
        self._shows_anchor = False
        self._held_back = 0  # steps for which a round that was due could not begin
        self._stop_clock: Callable[[], None] | None = None
        self._last_numbers = self._numbers()

    def begin(self) -> None:
        """Compare everything with the other sites, take the model's weights for the first anchor, and count steps from
        now on. `local_steps` has called it."""
        terms = self._settings.terms() | {"layout": self._layout} | self._inner.terms()
        # No rank takes memory before all have looked how much there is.
        self._rounds.agree(Terms(terms, self._view.types(), {}))
        try:
            self._state = {
                fragment.index: AnchoredFragment(fragment, pinned=self._view.on_cuda, **self._has)
                for fragment in self.fragments
                if self._ranks.owns(fragment.index)
            }
            digests = self._take_anchor()
        except GeocommError as error:
            self._rounds.refuse(str(error))
            raise
        self._rounds.agree(Terms({}, {}, digests))
        self._stop_clock = self._inner.start(self._after_step)
        register_handle("local_steps", self)

    def _take_anchor(self) -> dict[str, str]:
        """Copy the model's weights to the anchor; the digests of what this rank has of the model."""
        self._ranks.learn_shards(self._view)
        digests = dict(self._view.digests())
        for fragment in self.fragments:
            values = self._ranks.gather(self._view, fragment)
            if values is not None:
                self._state[fragment.index].anchor.copy_(values)
                if self._view.sharded:
                    digests |= {str(part): digest([values[span]]) for part, span in fragment.spans()}
        return digests

    def count_tokens(self, tokens: int) -> None:
        """With weights="tokens": say how many tokens were trained on since the last call; at the latest before the
        optimizer step that they belong to."""
        if self._settings.weights != "tokens":
            raise InvalidArgumentError("count_tokens is for weights='tokens'; this run counts steps")
        if tokens < 1:
            raise InvalidArgumentError(f"tokens is {tokens}; it must be 1 or more")
        self._weight += tokens

    @torch.no_grad()
    def finish(self) -> None:
        """End the run: merge what is in flight, and leave the mean of the sites' weights in the model, equal at all.

        All sites call it, with `deterministic` after the same step; it waits for them. The mean counts each site by the
        steps, or tokens, since its last round, and crosses exactly: 4 bytes an element. There is no outer step, since
        no step follows that would correct its momentum. The optimizer is an ordinary one afterwards.
        """
        stop_clock = self._require_open("finish()")
        if not self._settings.deterministic:  # a site may be at another step, or in another round
            self._catch_up()
        self._merge_begun_by(self._step, wait=True)
        for index in range(len(self.fragments)):
            self._begin(index, last=True)
        self._merge_begun_by(self._step, wait=True)
        self._show_anchor()
        self._rounds.close()
        self._last_numbers = self._numbers()
        stop_clock()
        self._stop_clock = None

    @contextmanager
    def anchor(self, *, together: bool = False) -> Iterator[None]:
        """Let the model hold the anchor: to evaluate, export or save it.

        All ranks of a site enter and leave it together. The site's own weights come back at the end; changes made
        meanwhile are dropped, and an optimizer step raises.

        together: False: the anchor as this site has it, without a word to the others. It has equal bits at all sites
        that have merged as many `rounds` (`stats`); a site whose results are late has an older one. True: all sites
        call it, and wait for each other and for the results in flight; all then have equal bits.
        """
        self._refuse_in_anchor("anchor()")
        if together:
            self._require_open("anchor(together=True)")
            if not self._settings.deterministic:
                self._catch_up()
            self._merge_begun_by(self._step, wait=True)
        local = [self._ranks.gather(self._view, fragment) for fragment in self.fragments]
        self._shows_anchor = True
        try:
            self._show_anchor()
            yield
        finally:
            for fragment, values in zip(self.fragments, local, strict=True):
                self._ranks.write(self._view, fragment, values)
            self._shows_anchor = False

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything but model and optimizer, whose own states belong into the same checkpoint.

        Every rank calls it, before it takes the state of the model: where results were late, they are merged here.
        Waits for the results of rounds in flight. A rank has the anchor, momentum and residual of the fragments that it
        owns; the first two are equal at every site. torch.load(weights_only=True) reads it.
        """
        self._require_open("state_dict()")
        if not self._settings.deterministic:
            self._catch_up()
        return {
            "version": STATE_VERSION,
            "site": self._rounds.site,
            "rank": self._ranks.text,
            "layout": self._layout,
            "settings": self._settings.terms(),
            "step": self._step,
            "next_round": self._next_round,
            "schedule": asdict(self._schedule),
            "next_schedule": None if self._next_schedule is None else asdict(self._next_schedule),
            "held_back": self._held_back,
            "weight": self._weight,
            "weight_at_begin": list(self._weight_at_begin),
            "step_at_begin": list(self._step_at_begin),
            "counters": dict(self._counters),
            "fragments": {index: held.state_dict() for index, held in self._state.items()},
            "in_flight": [flight.state_dict() for flight in self._flights],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was called, at every rank, each with its own state.

        Call local_steps() with the weights that all sites share, then load model, optimizer and this. Raises
        InvalidArgumentError for the state of another rank or of other settings, for one that is damaged, and where the
        ranks' states do not belong together.
        """
        self._require_open("load_state_dict()")
        if state.get("version") != STATE_VERSION:
            raise InvalidArgumentError(
                f"not a state of local steps of this version ({STATE_VERSION}): {state.get('version')!r}"
            )
        if state["site"] != self._rounds.site:
            raise InvalidArgumentError(
                f"this state is that of site {state['site']!r}, and this is {self._rounds.site!r}; each site loads "
                "its own, which has its residuals"
            )
        here = {"rank of the site": self._ranks.text, "layout": self._layout, **self._settings.terms()}
        saved = {"rank of the site": state["rank"], "layout": state["layout"], **state["settings"]}
        for name, value in here.items():
            if saved.get(name) != value:
                raise InvalidArgumentError(f"{name} was {saved.get(name)} when the state was saved, and is {value}")
        for name in ("step", "next_round", "held_back", "weight"):
            if int(state[name]) < 0:
                raise InvalidArgumentError(f"this state is damaged: its {name} is {state[name]}; take another one")
        for index, held in self._state.items():
            held.check_state(state["fragments"][index])
        for index, held in self._state.items():
            held.load_state_dict(state["fragments"][index])
        self._step = int(state["step"])
        self._next_round = int(state["next_round"])
        self._schedule = Schedule(**state["schedule"])
        self._next_schedule = None if state["next_schedule"] is None else Schedule(**state["next_schedule"])
        self._held_back = int(state["held_back"])
        self._weight = int(state["weight"])
        self._weight_at_begin = list(state["weight_at_begin"])
        self._step_at_begin = list(state["step_at_begin"])
        self._counters = dict(state["counters"])
        self._flights = deque(Flight.of_state(saved) for saved in state["in_flight"])
        digests = {f"the state of fragment {index}": text for index, text in self._digests_to_come().items()}
        self._rounds.agree(Terms({"next round": str(self._next_round)}, {}, digests))

    def stats(self) -> dict[str, Any]:
        """What `geocomm.stats()["local_steps"]` has of this run, as of now (help(geocomm.stats) explains it); the
        settings; the `elements` that are averaged, and what is `left_out`, by name, with the reason."""
        return {
            **self._settings.terms(),
            **self._numbers(),
            "elements": sum(fragment.numel for fragment in self.fragments),
            "left_out": dict(self._view.left_out),
        }

    def last_stats(self) -> dict[str, Any]:
        """The numbers of `stats()` after the last optimizer step; from any thread."""
        return self._last_numbers

    def _numbers(self) -> dict[str, Any]:
        """By the names of `geocomm.metrics.schema.LOCAL_STEPS`."""
        return {
            "steps": self._step,
            "every": self._schedule.every,
            **self._counters,
            "waited_seconds": self._waited_s,
            "held_back": self._held_back,
            "in_flight": len(self._flights),
            "oldest_in_flight": self._step - self._flights[0].begun if self._flights else 0,
            **self._norms,
        }

    @torch.no_grad()
    def _after_step(self) -> None:
        """The optimizer has made a step."""
        self._refuse_in_anchor("an optimizer step")
        self._step += 1
        if self._pace is not None:
            self._pace.count_step()
        if self._settings.weights == "steps":
            self._weight += 1
        if self._step == 1:
            self._view.check()
        if self._settings.deterministic:
            self._merge_begun_by(self._step - self._schedule.overlap, wait=True)
        else:
            # Results that a line has kept back come all at once; a step merges one more than begin in a step.
            self._merge_begun_by(self._step - self._schedule.overlap, most=1 + self._schedule.most_in_a_step)
        while self._next_round < self._schedule.begun_by(self._step - self._held_back):
            fragment = self._schedule.fragment_of(self._next_round)
            if self._is_in_flight(fragment):
                self._held_back += 1  # the schedule stands still: later rounds come as far apart as ever
                break
            self._begin(fragment)
        if self._schedule.overlap == 0:
            self._merge_begun_by(self._step, wait=True)
        self._last_numbers = self._numbers()

    def _merge_begun_by(self, step: int, *, wait: bool = False, most: int | None = None) -> None:
        """In the order of the rounds, as far as results are there; `most` of them."""
        merged = 0
        while self._flights and self._flights[0].begun <= step and merged != most:
            if not wait and not self._is_done(self._flights[0]):
                break
            self._merge_next()
            merged += 1

    def _is_done(self, flight: Flight) -> bool:
        done = None if flight.own is None else [int(flight.own.reduction.is_done())]
        return bool(self._ranks.tell(flight.fragment, done, 1)[0])

    def _merge_next(self) -> None:
        """It stays the next if it fails."""
        self._merge(self._flights[0])
        self._flights.popleft()

    def _is_in_flight(self, fragment: int) -> bool:
        return any(flight.fragment == fragment for flight in self._flights)

    def _catch_up(self) -> None:
        """Begin the rounds that other sites have begun; without it a site whose results were late has begun fewer.

        A fragment may be due again though no step was taken since it began: the site then has weight 0.
        """
        furthest = self._rounds.furthest(self._next_round)
        while self._next_round < furthest:
            fragment = self._schedule.fragment_of(self._next_round)
            while self._is_in_flight(fragment):
                self._merge_next()
            self._begin(fragment)

    def _digests_to_come(self) -> dict[int, str]:
        """Of each own fragment's state once what is in flight is merged: another site may have merged it already."""
        coming = copy.deepcopy(self._state)
        for flight in self._flights:
            values = None if flight.own is None else flight.own.reduction.wait().values
            if values is not None:
                coming[flight.fragment].step(self._settings.outer, values)
        return {index: held.digest() for index, held in coming.items()}

    def _show_anchor(self) -> None:
        for fragment in self.fragments:
            held = self._state.get(fragment.index)
            self._ranks.write(self._view, fragment, None if held is None else held.anchor)

    def _begin(self, index: int, *, last: bool = False) -> None:
        """Begin the next round, with this fragment; its last one carries weights in place of deltas."""
        self._view.check()
        weight = self._weight - self._weight_at_begin[index]
        if weight < 1 and self._step > self._step_at_begin[index]:
            told = (
                f"weights='tokens': no tokens were counted in the {self._step - self._step_at_begin[index]} steps "
                "before this round; call count_tokens() in every step"
            )
            if not last:
                raise InvalidArgumentError(told)
            logger().warning(f"local steps: {told}. This site does not count in its last round")
        local = self._ranks.gather(self._view, self.fragments[index])
        begun = None if local is None else self._offer(self._state[index], local, weight, last=last)
        own, finite = begun or (None, True)
        said = None if begun is None else [int(finite)]
        (finite,) = self._ranks.tell(index, said, 1)
        self._flights.append(Flight(self._next_round, index, self._step, bool(finite), own, last))
        self._weight_at_begin[index] = self._weight
        self._step_at_begin[index] = self._step
        self._next_round += 1
        if not finite:
            self._take_over_anchor()
        self._follow_schedule()

    def _take_over_anchor(self) -> None:
        """The model has NaN or Inf: begin anew where the sites stand, in all fragments, before it spreads again."""
        self._show_anchor()
        for flight in self._flights:
            if flight.own is not None and flight.own.local_at_begin is not None:
                # What the site changes from here on is carried over to the anchor that comes.
                flight.own.local_at_begin.copy_(self._state[flight.fragment].anchor)
        self._weight_at_begin = [self._weight] * len(self.fragments)
        self._step_at_begin = [self._step] * len(self.fragments)
        healed = self._inner.heal()
        anew = f" and begins its optimizer anew: {'; '.join(healed)}" if healed else ""
        logger().warning(
            f"local steps, round {self._next_round - 1}: the weights of this site have NaN or Inf after {self._step} "
            f"steps. It does not count in this round, takes over the anchor of the sites{anew}"
        )

    def _follow_schedule(self) -> None:
        """Take over the next schedule, if there is one, where it begins."""
        if self._next_schedule is not None and self._next_round == self._next_schedule.first_round:
            self._schedule, self._next_schedule = self._next_schedule, None

    def _offer(
        self, held: AnchoredFragment, local: torch.Tensor, weight: int, *, last: bool
    ) -> tuple[OwnersPart, bool]:
        """Begin the next round between the sites; whether the site's weights are finite.

        local: the site's weights. In a last round they are what crosses; else the delta takes their place.
        """
        number, every, squared_norm = self._next_round, 0, 0.0
        keeps_local = self._settings.merge == CARRY and self._schedule.overlap and not last
        local_at_begin = local.clone() if keeps_local else None
        if last:
            finite = bool(local.isfinite().all())
        else:
            finite = take_delta(held.anchor, local)
            squared_norm = float(torch.dot(local, local)) if finite else 0.0
        if not finite:
            local.zero_()
        elif not last:
            self._norms["delta_norm"] = math.sqrt(squared_norm)
        if self._pace is not None and held.fragment.index == 0 and not last:
            every = self._pace.wanted(self._schedule.every, self._rounds.line_seconds)
        weight = weight if finite else 0
        offer = Offer(number, held.fragment.index, self._step, held.version, weight, every, squared_norm, last)
        self._rounds.propose(offer)
        coding, residual = (LAST, None) if last else (self._settings.coding, held.residual)
        reduction = self._rounds.reduce(number, held.fragment, local, residual, coding)
        return OwnersPart(local_at_begin, reduction), finite

    def _merge(self, flight: Flight) -> None:
        """Take the outer step of a round, once its result is there, and merge it into the model."""
        void, every = self._settle(flight)
        self._counters["rounds"] += 1
        self._counters["rounds_void"] += void
        self._counters["rounds_not_finite"] += not flight.finite
        fragment, held = self.fragments[flight.fragment], self._state.get(flight.fragment)
        merged = None if held is None else held.anchor
        if flight.begun < self._step:  # else there is nothing of the site's own to keep
            local = self._ranks.gather(self._view, fragment)
            if held is not None and local is not None and flight.own is not None:
                merge_local(self._settings.merge, local, held.anchor, flight.own.local_at_begin)
                merged = local
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
            except Exception:
                self._ranks.tell(flight.fragment, [0, 0, 0], 3)
                raise
            said = [1, int(average.values is None), average.entry.every]
        ended_well, void, every = self._ranks.tell(flight.fragment, said, 3)
        self._waited_s += time.monotonic() - start
        if not ended_well:
            raise PeerLostError(
                f"local steps: round {flight.number} failed; the rank of this site that exchanged it has the error"
            )
        return bool(void), every

    def _step_outside(self, flight: Flight, held: AnchoredFragment, average: Average) -> None:
        if flight.last:
            held.end(self._settings.outer, average.values)
        elif average.values is not None:
            moved, mean_norm = held.step(self._settings.outer, average.values), float(average.values.norm())
            self._norms["mean_norm"] = mean_norm
            self._norms["outer_step"] = moved / mean_norm if mean_norm else None
            self._norms["agreement"] = average.entry.agreement(self._settings.coding.averaging, mean_norm)
            if held.residual is not None and average.residual is not None:
                held.residual = average.residual
                self._norms["residual_norm"] = float(held.residual.norm())
        self._rounds.commit(flight.number, held.digest())
        self._counters["wire_bytes"] += average.wire_bytes

    def _require_open(self, what: str) -> Callable[[], None]:
        if self._stop_clock is None:
            raise InvalidArgumentError(f"{what}: finish() was called; the run with local steps has ended")
        self._refuse_in_anchor(what)
        return self._stop_clock

    def _refuse_in_anchor(self, what: str) -> None:
        if self._shows_anchor:
            raise InvalidArgumentError(f"{what} while anchor() is entered: leave it first")
