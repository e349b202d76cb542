"""What one rank has of its site in a run with local steps, for both ways to carry rounds between the sites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from geocomm.codecs.codec_spec import codec_spec
from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.core.place import local_world_size
from geocomm.core.typed_torch import norm
from geocomm.core.units import count_text
from geocomm.data.site_deals import SiteDeals
from geocomm.sync.local_steps.model.fragments import Fragment, digest, make_fragments
from geocomm.sync.local_steps.model.host_memory import available_memory, require_memory
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.outer.anchor import CARRY, AnchoredFragment, least_memory
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.outer.rounds import Entry
from geocomm.sync.local_steps.outer.schedule import Pace
from geocomm.sync.local_steps.outer.site_weights import SiteWeights, weights_of


class SiteState(ABC):
    """The fragments, the outer state of those that this rank owns, and what its site's steps count for.

    Methods are for the thread that calls `optimizer.step()`, and collective over the ranks of the site.
    """

    def __init__(
        self,
        view: ParameterView,
        inner: InnerOptimizers,
        facts: SiteFacts,
        settings: ResolvedSettings,
        begin_step: int = 0,
    ) -> None:
        """begin_step: optimizer steps that the weights have behind them.

        Takes no memory yet. Raises InvalidArgumentError where there will be too little.
        """
        if begin_step < 0:
            raise InvalidArgumentError(f"local steps: begin_step is {begin_step}; it must be 0 or more")
        self._begin_step = begin_step
        self._view = view
        self._inner = inner
        self._settings = settings
        self._schedule = settings.schedule
        self._pace = Pace() if settings.renews else None
        self.site = facts.site
        """The name of this site."""
        self.ranks = facts.ranks
        """The ranks of this site."""
        self.fragments: tuple[Fragment, ...] = make_fragments(view.tensors, self._schedule.fragments)
        """The parts of the model that rounds average, one after the other."""
        self.layout = digest([], repr(self.fragments))
        """The digest of the fragments; equal at every site."""
        self._has = {"momentum": settings.outer.momentum > 0, "residual": not codec_spec(settings.coding.codec).exact}
        self._keeps_local = settings.merge == CARRY and settings.schedule.overlap > 0
        owned = [fragment for fragment in self.fragments if self.ranks.owns(fragment.index)]
        least = least_memory(owned, **self._has, keeps_local=self._keeps_local)
        require_memory(least, local_world_size(), available_memory())
        self._held: dict[int, AnchoredFragment] = {}
        self.step = 0
        """Optimizer steps so far."""
        self.shows_anchor = False
        """The model holds the anchor, and gets the site's own weights back."""
        self._has_stepped = False
        self.weight = 0
        """Steps or tokens so far."""
        self.tokens = 0
        """That the site has read so far, as far as it was told of them."""
        self.deals: SiteDeals | None = None
        """What the leader of an elastic run deals to the site; None: nothing is dealt."""
        self._weight_at_begin = [0] * len(self.fragments)
        self._step_at_begin = [0] * len(self.fragments)
        self._tokens_at_begin = [0] * len(self.fragments)
        self._counters = {"rounds": 0, "rounds_not_finite": 0, "rounds_void": 0, "wire_bytes": 0}
        self._held_back = 0  # how often a round could not begin in time, or closed without the site
        self._waited_s = 0.0
        self._norms: dict[str, float | None] = dict.fromkeys(
            ("delta_norm", "mean_norm", "agreement", "outer_step", "residual_norm")
        )

    @property
    def run_step(self) -> int:
        """Optimizer steps of the run, those before `begin` included."""
        return self._begin_step + self.step

    def terms(self) -> dict[str, str]:
        """What must be the same at every site, by name; the parameters' shapes apart."""
        return self._settings.terms() | {"layout": self.layout} | self._inner.terms()

    @abstractmethod
    def begin(self) -> None:
        """Compare everything with the other sites, and take memory; the model's weights become the first anchor."""

    def count_step(self) -> None:
        """The optimizer has made a step: merge what is there, and begin what is due."""
        self.step += 1
        if self._pace is not None:
            self._pace.count_step()
        if self._settings.given.weights == "steps":
            self.weight += 1
        if not self._has_stepped:
            self._has_stepped = True
            self._check_together(self._view.check)

    def count_tokens(self, tokens: int) -> None:
        """The site has read this many tokens more."""
        self.tokens += tokens
        if self._settings.given.weights == "tokens":
            self.weight += tokens

    @abstractmethod
    def meet(self) -> None:
        """Wait until all sites have the same anchor, and this rank has merged it."""

    @abstractmethod
    def end(self) -> None:
        """End the run between the sites, and leave its result in the model."""

    def numbers(self) -> dict[str, Any]:
        """The counters, by the names of `geocomm.metrics.schema.LOCAL_STEPS`."""
        return {
            "steps": self.step,
            "tokens": self.tokens,
            "every": self._schedule.every,
            **self._counters,
            "waited_seconds": self._waited_s,
            **self._norms,
            "held_back": self._held_back,
            "in_flight": 0,
            "oldest_in_flight": 0,
        }

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copies of what a checkpoint needs."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. Raises InvalidArgumentError for one that is damaged, or of another run."""

    def take_anchor(self) -> dict[str, str]:
        """Take memory, and copy the model's weights to the anchor; the digests of what this rank has of the model."""
        self._held = {
            fragment.index: AnchoredFragment(fragment, pinned=self._view.on_cuda, **self._has)
            for fragment in self.fragments
            if self.ranks.owns(fragment.index)
        }
        self.ranks.learn_shards(self._view)
        digests = dict(self._view.digests())
        for fragment in self.fragments:
            values = self.ranks.gather(self._view, fragment)
            if values is not None:
                self._held[fragment.index].anchor.copy_(values)
                if self._view.sharded:
                    digests |= {str(part): digest([values[span]]) for part, span in fragment.spans()}
        return digests

    def show_anchor(self) -> None:
        """Write the anchor to the model, at all ranks of the site."""
        for fragment in self.fragments:
            held = self._held.get(fragment.index)
            self.ranks.write(self._view, fragment, None if held is None else held.anchor)

    def _weight_of(self, index: int) -> int:
        """What the site's steps since the fragment's last round count. Raises InvalidArgumentError for tokens that
        were never counted."""
        weight = self.weight - self._weight_at_begin[index]
        if weight < 1 and self.step > self._step_at_begin[index]:
            raise InvalidArgumentError(
                f"weights='tokens': no tokens were counted in the "
                f"{count_text(self.step - self._step_at_begin[index], 'step')} "
                "before this round; call count_tokens() in every step"
            )
        return weight

    def _check_together(self, *checks: Callable[[], None]) -> None:
        """Raise at all ranks of the site what is wrong at one of them: the others would wait for it."""
        failure: GeocommError | None = None
        try:
            for check in checks:
                check()
        except GeocommError as error:
            failure = error
        failed = self.ranks.all_reduce([int(failure is not None)])[0]
        if failure is not None:
            raise failure
        if failed:
            raise InvalidArgumentError("local steps: another rank of this site cannot go on; its own log says why")

    def _begin_by_owner(self, index: int, offer: Callable[[SiteWeights], bool], *, looks: bool) -> bool:
        """Begin a round: the fragment's owner offers what the site has learned. Whether the site's weights are finite,
        as `offer` says there.

        looks: at every parameter, whether the model is what it was.
        """
        checks = [*([self._view.check] if looks else []), partial(self._inner.check, self._view)]
        self._check_together(*checks)
        local = weights_of(self.ranks, self._view, self.fragments[index])
        (finite,) = self.ranks.by_owner(index, None if local is None else lambda: [int(offer(local))], 1)
        return bool(finite)

    def _merge_by_owner(
        self, index: int, merge: Callable[[SiteWeights], list[int]] | None, count: int = 0
    ) -> list[int]:
        """Merge a round: the fragment's owner turns the site's weights into those after it, and all ranks of the site
        write these to the model. Returns the `count` numbers that `merge` says there; other ranks may have None."""
        fragment = self.fragments[index]
        local = weights_of(self.ranks, self._view, fragment)
        told = self.ranks.by_owner(index, None if local is None or merge is None else partial(merge, local), count)
        if local is None or not local.of_model:
            self.ranks.write(self._view, fragment, None if local is None else local.pieces[0])
        return told

    def _outer_step(self, held: AnchoredFragment, delta: torch.Tensor, entry: Entry) -> None:
        """Take the outer step of a round with the averaged delta."""
        moved, mean_norm = held.step(self._settings.outer, delta, sum(entry.steps))
        self._norms["mean_norm"] = mean_norm
        self._norms["outer_step"] = moved / mean_norm if mean_norm else None
        self._norms["agreement"] = entry.agreement(self._settings.coding.averaging, mean_norm)

    def _take_residual(self, held: AnchoredFragment, residual: torch.Tensor | None) -> None:
        """A frame of this site counts: what the codec has lost by then takes the place of what it had lost before."""
        if held.residual is not None and residual is not None:
            held.residual = residual
            self._norms["residual_norm"] = norm(held.residual)

    def _wanted_every(self, index: int, line_s: float) -> int:
        """The steps between two rounds that the site wants, said with those of fragment 0; 0: it does not say. line_s:
        for which deltas were coded or on the line so far."""
        return 0 if self._pace is None or index else self._pace.wanted(self._schedule.every, line_s)

    def _take_over_anchor(self, at_begin: Iterable[tuple[int, torch.Tensor | None]], what: str) -> None:
        """The model has NaN or Inf: begin anew where the sites stand, in all fragments, before it spreads again.

        at_begin: of rounds under way, the fragment and the weights that were kept when they began. what: the round, for
        the log.
        """
        self.show_anchor()
        for fragment, values in at_begin:
            if values is not None:
                # What the site changes from here on is carried over to the anchor that comes.
                values.copy_(self._held[fragment].anchor)
        self._weight_at_begin = [self.weight] * len(self.fragments)
        self._step_at_begin = [self.step] * len(self.fragments)
        self._tokens_at_begin = [self.tokens] * len(self.fragments)
        healed = self._inner.heal()
        anew = f" and begins its optimizer anew: {'; '.join(healed)}" if healed else ""
        logger().warning(
            f"local steps, {what}: the weights of this site have NaN or Inf after "
            f"{count_text(self.step, 'step')}. It does not count "
            f"in this round, takes over the anchor of the sites{anew}"
        )
