"""One call that makes a training loop average every H optimizer steps instead of in every step."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.local_sgd.anchor import STATE_VERSION, AnchoredFragment, copy_of, digest, take_delta
from geocomm.local_sgd.averaging import Averaging
from geocomm.local_sgd.fragments import Fragment, make_fragments
from geocomm.local_sgd.group_rounds import GroupRounds
from geocomm.local_sgd.local_settings import Auto, LocalSettings, Weights
from geocomm.local_sgd.merge import CARRY, Merge, merge_local
from geocomm.local_sgd.outer_step import Nesterov
from geocomm.local_sgd.parameter_view import ParameterView, PlainParameters, read_fragment, write_fragment
from geocomm.local_sgd.rounds import Average, Entry, Offer, Reduction, Rounds, Terms

_IN_USE: WeakSet[torch.optim.Optimizer] = WeakSet()
"""Optimizers that are the clock of a run: with two handles every step would count for both."""


def local_steps(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    rounds: Rounds | None = None,
    preset: str = "pretrain",
    every: int | Auto = "auto",
    codec: str | None = None,
    outer: Nesterov | None = None,
    fragments: int | Auto = "auto",
    merge: Merge = 0.5,
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

    Call it once at every site, with equal weights, before the first step; then train as ever. `optimizer.step()` is
    the clock: after it, rounds begin and their results are merged. Steps that a GradScaler skips do not count, nor do
    micro-batches. An outer optimizer steps with the average of the sites' deltas (DiLoCo, arXiv 2311.08105), one
    fragment of the model after the other (Streaming DiLoCo, arXiv 2501.18512).

    model: whole parameters in float32, on any device; not FSDP or ZeRO-3. Inside a site DDP may train it.
    rounds: what carries the deltas; default: `GroupRounds`, over the sites of the default process group, and then the
    call is collective. `SimulatedSites.run` makes one for sites in one process.
    preset: "pretrain" (Nesterov with lr 0.6 and momentum 0.9, int4), "finetune" (lr 0.2, no momentum, int4) or "loco"
    (SparseLoCo, arXiv 2508.15706: lr 1, no momentum, the codec loco, residuals that decay by 0.95). codec, outer and
    decay replace its own.
    every: optimizer steps between two rounds of a fragment; "auto": 30.
    codec: of the deltas, with error feedback; "none" sends float32. int4 has blocks of 128 unless it says otherwise.
    fragments: how many; "auto": as many as have 4 MiB each, at most 24.
    merge: the weight of the site's own weights when a result arrives, 0 to below 1, or "carry" (`merge_local`).
    overlap: optimizer steps from a round's beginning to its merge; "auto": 5, at most `every`. 0: the site waits for
    the result and takes over the anchor, whatever `merge` is.
    deterministic: what becomes of a result that is late. False: the site trains on and merges it when it comes, and
    rounds that are due meanwhile begin later, so that a line that is down holds up no step. True: the step waits, and
    equal runs have equal bits.
    decay: of the residual of error feedback, in each round.
    averaging: "mean", "radial" (`radial_directional`), or "auto": the mean up to four sites, radial beyond.
    weights: what a site's delta counts by: its "steps", or the "tokens" that it says with `count_tokens`.
    exact: regular expressions, searched in the names of parameters whose deltas are not compressed; nor are those of
    one dimension or fewer than `exact_below` elements.
    buffers: "refuse" those that change in training (BatchNorm's statistics); "local": each site keeps its own.

    A site whose delta is not finite has weight 0 in that round, and takes over the anchor. Memory: 12 bytes an element
    (8 without momentum), and what rounds in flight hold.
    Raises InvalidArgumentError, UnsupportedError, and ReplicaMismatchError where the sites' weights differ.
    """
    rounds = GroupRounds() if rounds is None else rounds
    try:
        if buffers not in ("refuse", "local"):
            raise InvalidArgumentError(f"buffers is {buffers!r}; it must be 'refuse' or 'local'")
        whole = model
        if isinstance(model, DistributedDataParallel):
            rounds.check_inside_site(model.process_group)
            whole = model.module
        view = PlainParameters(whole, exact=exact, exact_below=exact_below, keep_buffers_local=buffers == "local")
        view.check_optimizer(optimizer)
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
        handle = LocalSteps(view, optimizer, rounds, settings)
    except GeocommError as error:
        rounds.refuse(str(error))
        raise
    handle.begin()
    return handle


@dataclass
class _Flight:
    """A round whose result is not merged yet."""

    number: int
    fragment: int
    begun: int
    counts: bool
    local_at_begin: torch.Tensor | None
    reduction: Reduction


@dataclass(frozen=True)
class _Arrived:
    """The reduction of a round whose result came before a state was saved."""

    average: Average

    def is_done(self) -> bool:
        return True

    def wait(self) -> Average:
        return self.average


class LocalSteps:
    """The handle of `geocomm.local_steps`. Not thread-safe; it belongs to the thread that calls optimizer.step()."""

    def __init__(
        self, view: ParameterView, optimizer: torch.optim.Optimizer, rounds: Rounds, settings: LocalSettings
    ) -> None:
        """Not begun yet."""
        if optimizer in _IN_USE:
            raise InvalidArgumentError("local_steps() was called for this optimizer before; call finish() of that run")
        self._view = view
        self._optimizer = optimizer
        self._rounds = rounds
        self._settings = settings
        self._schedule = settings.schedule
        fragments = make_fragments(view.tensors, self._schedule.fragments)
        with_residual = not codec_spec(settings.coding.codec).exact
        self._state = [
            AnchoredFragment(fragment, momentum=settings.outer.momentum > 0, residual=with_residual)
            for fragment in fragments
        ]
        self._layout = digest([], repr(fragments))
        self._flights: deque[_Flight] = deque()
        self._step = 0
        self._next_round = 0
        self._weight = 0  # steps or tokens so far
        self._weight_at_begin = [0] * len(fragments)
        self._step_at_begin = [0] * len(fragments)
        self._counters = {"rounds": 0, "rounds_not_finite": 0, "rounds_void": 0, "wire_bytes": 0}
        self._waited_s = 0.0
        self._shows_anchor = False
        self._held_back = 0  # steps for which a round that was due could not begin
        self._hook: RemovableHandle | None = None

    def begin(self) -> None:
        """Compare everything with the other sites, take the model's weights for the first anchor, and count steps from
        now on. `local_steps` has called it."""
        terms = self._settings.terms() | {"layout": self._layout} | _optimizer_terms(self._optimizer)
        self._rounds.agree(Terms(terms, self._view.digests()))
        for held in self._state:
            held.anchor.copy_(read_fragment(self._view, held.fragment))
        self._hook = self._optimizer.register_step_post_hook(self._after_step)
        _IN_USE.add(self._optimizer)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """What the rounds average, one after the other."""
        return tuple(held.fragment for held in self._state)

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
        """End the run: merge what is in flight, average what was learned since, and leave the anchor in the model.

        All sites call it, with `deterministic` after the same step. The optimizer is an ordinary one afterwards.
        """
        hook = self._require_open()
        due = [index for index in range(len(self._state)) if self._step > self._step_at_begin[index]]
        if not self._settings.deterministic:  # a site may be at another step, or in another round
            self._catch_up()
            number = self._next_round + bool(due)
            due = [*range(len(self._state))] if self._rounds.furthest(number) > self._next_round else []
        self._merge_begun_by(self._step, wait=True)
        for fragment in due:
            self._begin(fragment, last=True)
        self._merge_begun_by(self._step, wait=True)
        self._rounds.close()
        for held in self._state:
            write_fragment(self._view, held.fragment, held.anchor)
        hook.remove()
        self._hook = None
        _IN_USE.discard(self._optimizer)

    @contextmanager
    def anchor(self) -> Iterator[None]:
        """Let the model hold the anchor, which is equal at every site: to evaluate, export or save it.

        The site's own weights come back at the end; changes made meanwhile are dropped, and an optimizer step raises.
        """
        if self._shows_anchor:
            raise InvalidArgumentError("anchor() is entered already")
        local = [read_fragment(self._view, held.fragment) for held in self._state]
        self._shows_anchor = True
        try:
            for held in self._state:
                write_fragment(self._view, held.fragment, held.anchor)
            yield
        finally:
            for held, values in zip(self._state, local, strict=True):
                write_fragment(self._view, held.fragment, values)
            self._shows_anchor = False

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything but model and optimizer, whose own states belong into the same checkpoint.

        Every site calls it, before it takes the state of the model: where results were late, they are merged here.
        Waits for the results of rounds in flight. Anchor and momentum are equal at every site; the residual is this
        site's. torch.load(weights_only=True) reads it.
        """
        self._require_open()
        if not self._settings.deterministic:
            self._catch_up()
        return {
            "version": STATE_VERSION,
            "site": self._rounds.site,
            "layout": self._layout,
            "settings": self._settings.terms(),
            "step": self._step,
            "next_round": self._next_round,
            "held_back": self._held_back,
            "weight": self._weight,
            "weight_at_begin": list(self._weight_at_begin),
            "step_at_begin": list(self._step_at_begin),
            "counters": dict(self._counters),
            "fragments": [held.state_dict() for held in self._state],
            "in_flight": [_flight_state(flight) for flight in self._flights],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was called, at every site, each with its own state.

        Call local_steps() with the weights that all sites share, then load model, optimizer and this. Raises
        InvalidArgumentError for the state of another site or of other settings, and where the sites' states do not
        belong together.
        """
        self._require_open()
        if state.get("version") != STATE_VERSION:
            raise InvalidArgumentError(
                f"not a state of local steps of this version ({STATE_VERSION}): {state.get('version')!r}"
            )
        if state["site"] != self._rounds.site:
            raise InvalidArgumentError(
                f"this state is that of site {state['site']!r}, and this is {self._rounds.site!r}; each site loads "
                "its own, which has its residuals"
            )
        for name, here in {"layout": self._layout, **self._settings.terms()}.items():
            saved = {"layout": state["layout"], **state["settings"]}.get(name)
            if saved != here:
                raise InvalidArgumentError(f"{name} was {saved} when the state was saved, and is {here}")
        for held, saved in zip(self._state, state["fragments"], strict=True):
            held.check_state(saved)
        for held, saved in zip(self._state, state["fragments"], strict=True):
            held.load_state_dict(saved)
        self._step = int(state["step"])
        self._next_round = int(state["next_round"])
        self._held_back = int(state["held_back"])
        self._weight = int(state["weight"])
        self._weight_at_begin = list(state["weight_at_begin"])
        self._step_at_begin = list(state["step_at_begin"])
        self._counters = dict(state["counters"])
        self._flights = deque(_flight_of(saved) for saved in state["in_flight"])
        terms = {"next round": str(self._next_round)}
        terms |= {f"state of fragment {index}": text for index, text in enumerate(self._digests_to_come())}
        self._rounds.agree(Terms(terms, {}))

    def stats(self) -> dict[str, Any]:
        """What has happened here: optimizer steps (`step`), `rounds` merged, those in which this site's delta was not
        finite (`rounds_not_finite`) or nobody's was (`rounds_void`), compressed bytes of this site's deltas
        (`wire_bytes`), seconds for which steps waited for results (`waited_s`), steps for which a round that was due
        could not begin since its fragment's last result was late (`held_back`), rounds `in_flight`; the settings; the
        `elements` that are averaged, and what is `left_out`, by name, with the reason."""
        return {
            **self._settings.terms(),
            "step": self._step,
            **self._counters,
            "waited_s": self._waited_s,
            "held_back": self._held_back,
            "in_flight": len(self._flights),
            "elements": sum(held.fragment.numel for held in self._state),
            "left_out": dict(self._view.left_out),
        }

    @torch.no_grad()
    def _after_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """The optimizer's hook."""
        if _was_skipped(optimizer):
            return
        if self._shows_anchor:
            raise InvalidArgumentError("an optimizer step while anchor() is entered would be lost; leave it first")
        self._step += 1
        if self._settings.weights == "steps":
            self._weight += 1
        if self._step == 1:
            self._view.check()
        self._merge_begun_by(self._step - self._schedule.overlap, wait=self._settings.deterministic)
        while self._next_round < self._schedule.begun_by(self._step - self._held_back):
            fragment = self._schedule.fragment_of(self._next_round)
            if self._is_in_flight(fragment):
                self._held_back += 1  # the schedule stands still: later rounds come as far apart as ever
                break
            self._begin(fragment)
        if self._schedule.overlap == 0:
            self._merge_begun_by(self._step, wait=True)

    def _merge_begun_by(self, step: int, *, wait: bool) -> None:
        """In the order of the rounds, as far as results are there."""
        while self._flights and self._flights[0].begun <= step:
            if not wait and not self._flights[0].reduction.is_done():
                break
            self._merge_next()

    def _merge_next(self) -> None:
        """It stays the next if it fails."""
        self._merge(self._flights[0])
        self._flights.popleft()

    def _is_in_flight(self, fragment: int) -> bool:
        return any(flight.fragment == fragment for flight in self._flights)

    def _catch_up(self) -> None:
        """Begin the rounds that other sites have begun; without it a site whose results were late has begun fewer."""
        furthest = self._rounds.furthest(self._next_round)
        while self._next_round < furthest:
            fragment = self._schedule.fragment_of(self._next_round)
            while self._is_in_flight(fragment):
                self._merge_next()
            self._begin(fragment)

    def _digests_to_come(self) -> list[str]:
        """Of each fragment's state once what is in flight is merged: another site may have merged it already."""
        coming = copy.deepcopy(self._state)
        for flight in self._flights:
            values = flight.reduction.wait().values
            if values is not None:
                coming[flight.fragment].step(self._settings.outer, values)
        return [held.digest() for held in coming]

    def _begin(self, index: int, *, last: bool = False) -> None:
        """Begin the next round, with this fragment. last: a site may have taken no step since the one before."""
        self._view.check()
        held, number = self._state[index], self._next_round
        weight = self._weight - self._weight_at_begin[index]
        if weight < 1 and not last:
            raise InvalidArgumentError(
                "weights='tokens': no tokens were counted for this round; call count_tokens() in every step"
            )
        delta = read_fragment(self._view, held.fragment)
        keeps_local = self._settings.merge == CARRY and self._schedule.overlap
        local = delta.clone() if keeps_local else None
        finite = take_delta(held.anchor, delta)
        if not finite:
            logger().warning(
                f"local steps, round {number}: the weights of this site have NaN or Inf after {self._step} steps; "
                "it does not count in this round and takes over the other sites' result"
            )
            self._counters["rounds_not_finite"] += 1
            delta.zero_()
        offer = Offer(number, index, self._step, held.version, weight if finite else 0)
        self._rounds.propose(offer)
        reduction = self._rounds.reduce(number, held.fragment, delta, held.residual, self._settings.coding)
        self._flights.append(_Flight(number, index, self._step, finite, local, reduction))
        self._weight_at_begin[index] = self._weight
        self._step_at_begin[index] = self._step
        self._next_round = number + 1

    def _merge(self, flight: _Flight) -> None:
        """Take the outer step of a round, once its result is there, and merge it into the model."""
        start = time.monotonic()
        average = flight.reduction.wait()
        self._waited_s += time.monotonic() - start
        held = self._state[flight.fragment]
        if average.values is None:
            self._counters["rounds_void"] += 1
        else:
            held.step(self._settings.outer, average.values)
            if held.residual is not None and average.residual is not None:
                held.residual = average.residual
        self._rounds.commit(flight.number, held.digest())
        self._counters["rounds"] += 1
        self._counters["wire_bytes"] += average.wire_bytes
        if flight.begun == self._step or not flight.counts:  # nothing of the site's own to keep
            merged = held.anchor
        else:
            merged = read_fragment(self._view, held.fragment)
            merge_local(self._settings.merge, merged, held.anchor, flight.local_at_begin)
        write_fragment(self._view, held.fragment, merged)

    def _require_open(self) -> RemovableHandle:
        if self._hook is None:
            raise InvalidArgumentError("finish() was called; the run with local steps has ended")
        return self._hook


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler made this step one that does nothing: fused optimizers are called even then."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())


def _optimizer_terms(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """The optimizer's class and the settings of its groups, by name."""
    terms = {"optimizer": type(optimizer).__name__, "optimizer groups": str(len(optimizer.param_groups))}
    for index, group in enumerate(optimizer.param_groups):
        for name, value in sorted(group.items()):
            if name != "params":
                text = str(value.tolist()) if isinstance(value, torch.Tensor) else str(value)
                terms[f"optimizer {name} (group {index})"] = text
    return terms


def _flight_state(flight: _Flight) -> dict[str, Any]:
    average = flight.reduction.wait()
    return {
        "number": flight.number,
        "fragment": flight.fragment,
        "begun": flight.begun,
        "counts": flight.counts,
        "local_at_begin": copy_of(flight.local_at_begin),
        "entry": dict(vars(average.entry)),
        "values": copy_of(average.values),
        "residual": copy_of(average.residual),
        "wire_bytes": average.wire_bytes,
    }


def _flight_of(state: Mapping[str, Any]) -> _Flight:
    entry = Entry(**state["entry"])
    average = Average(entry, copy_of(state["values"]), copy_of(state["residual"]), state["wire_bytes"])
    return _Flight(
        state["number"],
        state["fragment"],
        state["begun"],
        state["counts"],
        copy_of(state["local_at_begin"]),
        _Arrived(average),
    )
