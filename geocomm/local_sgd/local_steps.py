"""One call that makes a training loop average every H optimizer steps instead of in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.local_sgd.anchor import STATE_VERSION
from geocomm.local_sgd.averaging import Averaging
from geocomm.local_sgd.fragments import Fragment
from geocomm.local_sgd.group_rounds import GroupRounds
from geocomm.local_sgd.inner_optimizers import InnerOptimizers
from geocomm.local_sgd.local_settings import Auto, LocalSettings, Weights
from geocomm.local_sgd.merge import Merge
from geocomm.local_sgd.outer_step import Nesterov
from geocomm.local_sgd.parameter_view import ParameterView
from geocomm.local_sgd.parameter_views import view_of
from geocomm.local_sgd.rounds import Rounds, Terms
from geocomm.local_sgd.site_rounds import SiteRounds
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
    optimizer: a torch.optim.Optimizer that has the model's parameters, or `engine.optimizer`; or a list of the former,
    such as [muon, adamw], each of which steps once in every step of the training, always in the same order.
    rounds: what carries the deltas; default: `GroupRounds`, over the sites of the default process group, and then the
    call is collective. `SimulatedSites.run` makes one for sites in one process.
    preset: "pretrain" (Nesterov with lr 1.0 and momentum 0.5 for two sites, 0.8 for more; int4, merge "carry"),
    "finetune" (lr 0.2, no momentum, int4, merge 0.5) or "loco" (SparseLoCo, arXiv 2508.15706: lr 1, no momentum, the
    codec loco, residuals that decay by 0.95, merge 0.5). codec, outer, merge and decay replace its own.
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
            sites=rounds.site_count,
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
        self._own = SiteRounds(view, inner, rounds, settings)
        self._shows_anchor = False
        self._stop_clock: Callable[[], None] | None = None
        self._last_numbers = self._own.numbers()

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """What the rounds average, one after the other."""
        return self._own.fragments

    def begin(self) -> None:
        """Compare everything with the other sites, take the model's weights for the first anchor, and count steps from
        now on. `local_steps` has called it."""
        terms = self._settings.terms() | {"layout": self._own.layout} | self._inner.terms()
        # No rank takes memory before all have looked how much there is.
        self._rounds.agree(Terms(terms, self._view.types(), {}))
        try:
            digests = self._own.take_anchor()
        except GeocommError as error:
            self._rounds.refuse(str(error))
            raise
        self._rounds.agree(Terms({}, {}, digests))
        self._stop_clock = self._inner.start(self._after_step)
        register_handle("local_steps", self)

    def count_tokens(self, tokens: int) -> None:
        """With weights="tokens": say how many tokens were trained on since the last call; at the latest before the
        optimizer step that they belong to."""
        if self._settings.weights != "tokens":
            raise InvalidArgumentError("count_tokens is for weights='tokens'; this run counts steps")
        if tokens < 1:
            raise InvalidArgumentError(f"tokens is {tokens}; it must be 1 or more")
        self._own.weight += tokens

    @torch.no_grad()
    def finish(self) -> None:
        """End the run: merge what is in flight, and leave the mean of the sites' weights in the model, equal at all.

        All sites call it, with `deterministic` after the same step; it waits for them. The mean counts each site by the
        steps, or tokens, since its last round, and crosses exactly: 4 bytes an element. There is no outer step, since
        no step follows that would correct its momentum; of the last one's momentum the end takes back what was not
        corrected (`AnchoredFragment.end`). The optimizer is an ordinary one afterwards.
        """
        stop_clock = self._require_open("finish()")
        self._own.meet()
        self._own.end()
        self._rounds.close()
        self._last_numbers = self._own.numbers()
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
            self._own.meet()
            self._own.merge_all()
        ranks = self._rounds.ranks
        local = [ranks.gather(self._view, fragment) for fragment in self.fragments]
        self._shows_anchor = True
        try:
            self._own.show_anchor()
            yield
        finally:
            for fragment, values in zip(self.fragments, local, strict=True):
                ranks.write(self._view, fragment, values)
            self._shows_anchor = False

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything but model and optimizer, whose own states belong into the same checkpoint.

        Every rank calls it, before it takes the state of the model: where results were late, they are merged here.
        Waits for the results of rounds in flight. A rank has the anchor, momentum and residual of the fragments that it
        owns; the first two are equal at every site. torch.load(weights_only=True) reads it.
        """
        self._require_open("state_dict()")
        self._own.meet()
        return {
            "version": STATE_VERSION,
            "site": self._rounds.site,
            "rank": self._rounds.ranks.text,
            "settings": self._settings.terms(),
            **self._own.state_dict(),
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
        here = {"rank of the site": self._rounds.ranks.text, "layout": self._own.layout, **self._settings.terms()}
        saved = {"rank of the site": state["rank"], "layout": state["layout"], **state["settings"]}
        for name, value in here.items():
            if saved.get(name) != value:
                raise InvalidArgumentError(f"{name} was {saved.get(name)} when the state was saved, and is {value}")
        self._own.load_state_dict(state)
        digests = {f"the state of fragment {index}": text for index, text in self._own.digests_to_come().items()}
        self._rounds.agree(Terms({"next round": str(self._own.next_round)}, {}, digests))

    def stats(self) -> dict[str, Any]:
        """What `geocomm.stats()["local_steps"]` has of this run, as of now (help(geocomm.stats) explains it); the
        settings; the `elements` that are averaged, and what is `left_out`, by name, with the reason."""
        return {
            **self._settings.terms(),
            **self._own.numbers(),
            "elements": sum(fragment.numel for fragment in self.fragments),
            "left_out": dict(self._view.left_out),
        }

    def last_stats(self) -> dict[str, Any]:
        """The numbers of `stats()` after the last optimizer step; from any thread."""
        return self._last_numbers

    @torch.no_grad()
    def _after_step(self) -> None:
        """The optimizer has made a step."""
        self._refuse_in_anchor("an optimizer step")
        self._own.count_step()
        self._last_numbers = self._own.numbers()

    def _require_open(self, what: str) -> Callable[[], None]:
        if self._stop_clock is None:
            raise InvalidArgumentError(f"{what}: finish() was called; the run with local steps has ended")
        self._refuse_in_anchor(what)
        return self._stop_clock

    def _refuse_in_anchor(self, what: str) -> None:
        if self._shows_anchor:
            raise InvalidArgumentError(f"{what} while anchor() is entered: leave it first")
