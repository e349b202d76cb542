"""One call that makes a training loop average every H optimizer steps instead of in every step."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from geocomm.core.environment import agent_socket
from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.core.place import own_rank
from geocomm.data.site_deals import SiteDeals
from geocomm.group.planning.regions import regions_text
from geocomm.integrations.zero_seams import engine_of
from geocomm.metrics.sources import register_handle
from geocomm.sync.local_steps.elastic.elastic_site import ElasticSite
from geocomm.sync.local_steps.elastic.member_site_rounds import MemberSiteRounds
from geocomm.sync.local_steps.fixed.group_rounds import GroupRounds
from geocomm.sync.local_steps.fixed.site_rounds import SiteRounds
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.living_wrappers import require_ddp_in_site, require_no_fsdp1
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.model.parameter_views_torch import PlainParameters, ShardedParameters
from geocomm.sync.local_steps.model.parameter_views_zero import engine_view
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings
from geocomm.sync.local_steps.outer.rounds import Rounds
from geocomm.sync.local_steps.outer.site_state import SiteState
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


def local_steps(
    model: torch.nn.Module,
    optimizer: Any,
    settings: LocalSettings | None = None,
    *,
    begin_step: int = 0,
    rounds: Rounds | None = None,
) -> LocalSteps:
    """Train with local steps: each site trains by itself, and the sites average every H optimizer steps.

    Call it once at every rank, with equal weights, before the first step; then train as ever. `optimizer.step()` is
    the clock: after it, rounds begin and their results are merged. Steps that a GradScaler skips do not count, nor do
    micro-batches. An outer optimizer steps with the average of the sites' deltas (DiLoCo, arXiv 2311.08105), one
    fragment of the model after the other (Streaming DiLoCo, arXiv 2501.18512).

    A site whose weights have NaN or Inf has weight 0 in that round. It takes over the whole anchor at once, and begins
    the optimizer's state anew where that is not finite. Host memory: 12 bytes an element (8 without momentum), which
    the ranks of a site share by fragments, and what rounds in flight hold.

    Args:
        model: With float32 parameters on any device, alone, under DDP or under FSDP2 over the ranks of the site. Or a
            DeepSpeed engine (ZeRO 0 to 3) whose data parallel group they are, in fp32, bf16 or fp16. What is averaged
            is float32: the parameters, FSDP2's shards of them, or DeepSpeed's masters.
        optimizer: A torch.optim.Optimizer that has the model's parameters, or `engine.optimizer`. Or a list of the
            former, such as [muon, adamw], each of which steps once in every step of the training, in the same order.
        settings: When and how the sites average; equal at all of them. Default: `LocalSettings()`.
        begin_step: Optimizer steps that the weights have behind them, such as those of a checkpoint: where `run_step`
            begins. An elastic run has it of the site that begins the run.
        rounds: What carries the deltas. Default: the sites of the default process group, and the call is collective.
            `SimulatedSites.run` makes one for sites in one process.

    Returns:
        The handle, whose `finish` ends the run.

    Raises:
        InvalidArgumentError: The settings do not fit the model or each other, or differ between sites; or gradients of
            the model are reduced between sites.
        UnsupportedError: A parameter has another dtype, or the model is wrapped in something that was not checked.
        ReplicaMismatchError: The sites' weights differ.

    Example:
        Sites that average every 100 optimizer steps:

            handle = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=100))
            for batch in batches:
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            handle.finish()
    """
    given = LocalSettings() if settings is None else settings
    if rounds is None and (agent := agent_socket()) is not None:
        handle = _handle(model, optimizer, given, ElasticSite(agent), begin_step)
        handle.begin()
        return handle
    rounds = GroupRounds() if rounds is None else rounds
    try:
        handle = _handle(model, optimizer, given, rounds, begin_step)
    except GeocommError as error:
        rounds.refuse(str(error))
        raise
    handle.begin()
    if rounds.site_count is not None and rounds.site_count > 2 and own_rank() in (0, None):
        logger().info(
            f"local steps of {rounds.site_count} sites: the best inner learning rate is about 0.6 times that of "
            "per-step training (docs/how-to/use-local-steps.md, the learning rate)"
        )
    return handle


def _handle(
    model: torch.nn.Module, optimizer: Any, settings: LocalSettings, sites: Rounds | ElasticSite, begin_step: int
) -> LocalSteps:
    """The handle of a site, which has not begun."""
    view = view_of(model, sites, settings)
    inner = InnerOptimizers(optimizer)
    inner.check(view)
    resolved = ResolvedSettings.of(settings, view.tensors, sites.site_count, sites.links)
    if resolved.choice is not None and own_rank() in (0, None):
        logger().info(f"local steps: reduce='auto' is {resolved.choice}")
    if resolved.coding.regions and own_rank() in (0, None):
        logger().info(f"local steps: between regions goes one frame of each: {regions_text(resolved.coding.regions)}")
    if isinstance(sites, ElasticSite):
        rounds_of = partial(sites.rounds, coding=resolved.coding)
        keeps = sites.keeps_moments(sharded=view.sharded)
        own = MemberSiteRounds(view, inner, sites, resolved, rounds_of, begin_step, sites.run_dir, keeps_moments=keeps)
    else:
        own = SiteRounds(view, inner, sites, resolved, begin_step)
    return LocalSteps(view, inner, resolved, own)


class LocalSteps:
    """The handle of a run with local steps: what `geocomm.local_steps` returns.

    The run goes from that call to `finish`. Until then the model holds the site's own weights, which differ between
    sites; inside of `anchor` it holds what the sites share. A handle is not thread-safe: it belongs to the thread that
    calls `optimizer.step()`.
    """

    def __init__(self, view: ParameterView, inner: InnerOptimizers, settings: ResolvedSettings, own: SiteState) -> None:
        """Not begun yet."""
        self._view = view
        self._inner = inner
        self._settings = settings
        self._own = own
        self._stop_clock: Callable[[], None] | None = None
        self._last_numbers = self._own.numbers()

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The parts of the model that rounds average, one after the other."""
        return self._own.fragments

    @property
    def run_step(self) -> int:
        """Optimizer steps of the run, `begin_step` included; in an elastic run those of the site that has most."""
        return self._own.run_step

    @property
    def site_tokens(self) -> int:
        """Tokens that `count_tokens` has told of: where this site is in its data.

        A site that returns to an elastic run begins with those that its last frame that counted had read.
        """
        return self._own.tokens

    @property
    def deals(self) -> SiteDeals | None:
        """What the leader of an elastic run deals to this site, for `SiteDataset`; None where no data is dealt."""
        return self._own.deals

    def begin(self) -> None:
        """Compare everything with the other sites, and begin: `local_steps` calls it.

        The model's weights become the first anchor, and steps count from now on.
        """
        self._own.begin()
        self._stop_clock = self._inner.start(self._after_step)
        register_handle("local_steps", self)

    def count_tokens(self, tokens: int) -> None:
        """Say how many tokens were trained on since the last call.

        Call it at the latest before the optimizer step that they belong to. With `LocalSettings(weights="tokens")` the
        site counts by them. In an elastic run the journal has them, so that `site_tokens` outlives this process.

        Args:
            tokens: Of the whole site, 1 or more; the same number at each of its ranks.

        Raises:
            InvalidArgumentError: `tokens` is below 1, or no whole number of the sequences that the run deals.
        """
        if tokens < 1:
            raise InvalidArgumentError(f"tokens is {tokens}; it must be 1 or more")
        self._own.count_tokens(tokens)

    @torch.no_grad()
    def finish(self) -> None:
        """End the run: merge what is in flight, and leave the mean of the sites' weights in the model, equal at all.

        All sites call it, with `deterministic` after the same step; it waits for them. The mean counts each site by the
        steps, or tokens, since its last round, and crosses exactly: 4 bytes an element. There is no outer step, since
        no step follows that would correct its momentum; of the last one's momentum the end takes back what was not
        corrected. The optimizer is an ordinary one afterwards.

        Raises:
            InvalidArgumentError: It was called before, or inside of `anchor`.
            PeerLostError: A rank of the run is gone.
        """
        stop_clock = self._require_open("finish()")
        self._own.end()
        self._last_numbers = self._own.numbers()
        stop_clock()
        self._stop_clock = None

    @contextmanager
    def anchor(self, *, together: bool = False) -> Generator[None]:
        """Let the model hold the anchor: to evaluate, export or save it.

        All ranks of a site enter and leave it together. The site's own weights come back at the end; changes made
        meanwhile are dropped, and an optimizer step raises.

        Args:
            together: False: the anchor as this site has it, without a word to the others. It has equal bits at all
                sites that have merged as many `rounds` (`stats`); a site whose results are late has an older one.
                True: all sites call it, and wait for each other and for the results in flight; all then have equal
                bits.

        Yields:
            Nothing: the model is what holds the anchor.

        Raises:
            InvalidArgumentError: It is entered already, or `together` after `finish`.

        Example:
            The loss of what the sites share:

                with handle.anchor(), torch.no_grad():
                    loss = model(batch).square().mean()
        """
        self._refuse_in_anchor("anchor()")
        if together:
            self._require_open("anchor(together=True)")
            self._own.meet()
        ranks = self._own.ranks
        local = [ranks.gather(self._view, fragment) for fragment in self.fragments]
        self._own.shows_anchor = True
        try:
            self._own.show_anchor()
            yield
        finally:
            for fragment, values in zip(self.fragments, local, strict=True):
                ranks.write(self._view, fragment, values)
            self._own.shows_anchor = False

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything but model and optimizer, whose own states belong into the same checkpoint.

        Every rank calls it, before it takes the state of the model: where results were late, they are merged here.
        Waits for the results of rounds in flight. A rank has the anchor, momentum and residual of the fragments that it
        owns; the first two are equal at every site.

        Returns:
            Plain values and tensors, which torch.load(weights_only=True) reads.

        Raises:
            InvalidArgumentError: After `finish`, or inside of `anchor`.
        """
        self._require_open("state_dict()")
        return self._own.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. Collective: each rank has its own state.

        Call `local_steps` with the weights that all sites share, then load model, optimizer and this.

        Args:
            state: What `state_dict` returned at this rank.

        Raises:
            InvalidArgumentError: The state is of another rank, of other settings or of another version; it is damaged;
                or the ranks' states do not belong together.
        """
        self._require_open("load_state_dict()")
        self._own.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """What is known of the run, as of now.

        Returns:
            What `geocomm.stats()["local_steps"]` has of it (docs/reference/metrics.md); the settings, as text, by the
            names of `LocalSettings`; the `elements` that are averaged; and what is `left_out`, by name, with the
            reason.
        """
        return {
            **self._settings.terms(),
            **self._own.numbers(),
            "elements": sum(fragment.numel for fragment in self.fragments),
            "left_out": dict(self._view.left_out),
        }

    def last_stats(self) -> dict[str, Any]:
        """The numbers of `stats` after the last optimizer step; from any thread.

        Returns:
            Those of `geocomm.stats()["local_steps"]`, without the settings.
        """
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
        if self._own.shows_anchor:
            raise InvalidArgumentError(f"{what} while anchor() is entered: leave it first")


def view_of(model: torch.nn.Module, facts: SiteFacts, settings: LocalSettings) -> ParameterView:
    """The view of a model.

    Raises InvalidArgumentError for DDP, FSDP2 or DeepSpeed over ranks of several sites, UnsupportedError for FSDP1.
    """
    if isinstance(model, DistributedDataParallel):
        require_ddp_in_site(model, facts)
        model = cast(torch.nn.Module, cast(Any, model).module)
    elif (engine := engine_of(model)) is not None:
        return engine_view(engine, facts, settings)
    modules = list(model.modules())
    require_no_fsdp1(modules)
    if any(isinstance(module, FSDPModule) for module in modules):
        return ShardedParameters(model, facts, settings)
    return PlainParameters(model, facts, settings)
