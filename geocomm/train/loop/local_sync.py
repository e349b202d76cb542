"""Local steps of a DeepSpeed engine: the one place where a model and its optimizer become those of `local_steps`, and
its first steps, in which the sites stay equal.

Imports torch and deepspeed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

# DDP shares its first weights with it.
from torch.distributed.utils import _sync_module_states  # pyright: ignore[reportPrivateUsage]

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import GeocommError
from geocomm.group.backend.sites import Sites
from geocomm.integrations.deepspeed_seams import (
    follow_masters,
    give_back_reduction,
    load_optimizer_state,
    masters,
    optimizer_state,
    reduce_over,
    reduce_shards_over,
    take_over_reduction,
)
from geocomm.metrics import schema
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings

_BROADCAST_BYTES = 64 << 20


class JointSteps:
    """Averages an engine's gradients over all ranks.

    ZeRO 0: where DeepSpeed would reduce them. ZeRO 1 and 2, at sites of equal size: over the ranks that hold the same
    shard, after DeepSpeed has reduced it inside the site. To make one is collective.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine, sites: Sites) -> None:
        self._engine = engine
        world: Any = dist.group.WORLD
        self._is_sharded = engine.zero_optimization_stage() > 0
        self._replicas = _same_place_group(sites) if self._is_sharded else world
        """The ranks that hold the same masters."""
        self._source = next(iter(sites.same_place.values())) if self._is_sharded else 0
        """The one of them that is at rank 0's site."""
        if not self._is_sharded:
            take_over_reduction(engine, lambda: reduce_over(engine, world))

    def before_update(self) -> None:
        """Reduce shards; called between the last backward of an accumulation and `engine.step()`."""
        if self._is_sharded:
            reduce_shards_over(self._engine, self._replicas)

    def end(self) -> None:
        """Give all sites the weights and masters of rank 0's. Collective over all ranks.

        Equal gradients leave unequal last bits where sites have other hardware, or clip over other numbers of ranks.
        """
        under_way: list[Any] = [
            dist.broadcast(one, self._source, group=self._replicas, async_op=True) for one in masters(self._engine)
        ]
        for each in under_way:
            each.wait()
        if self._is_sharded:
            follow_masters(self._engine)
        else:
            give_back_reduction(self._engine)
            share_weights(self._engine.module)


def _same_place_group(sites: Sites) -> dist.ProcessGroup:
    """A new group of the ranks at this rank's place, where all sites have the same number of ranks. Collective over all
    ranks."""
    groups: list[Any] = [dist.new_group(list(ranks)) for ranks in zip(*sites.ranks, strict=True)]
    return groups[sites.place]


def share_weights(model: Any) -> None:
    """Give all ranks the whole parameters and the buffers of rank 0. Collective over all ranks."""
    world: Any = dist.group.WORLD
    _sync_module_states(model, world, _BROADCAST_BYTES, 0, ())


_NUMBERS = schema.names(schema.LOCAL_STEPS)


class LocalSync:
    """An engine whose gradients are averaged inside the site, and whose weights local steps average between the sites.

    In the first steps (`joint_steps`) gradients are averaged over all ranks, and the sites stay equal. A site of an
    elastic run has none: `begin` is called before its first step.
    """

    def __init__(
        self,
        engine: deepspeed.DeepSpeedEngine,
        settings: LocalSettings,
        sites: Sites,
        *,
        joint_steps: int,
        tokens_per_rank: int,
    ) -> None:
        """tokens_per_rank: that a rank trains on in an optimizer step."""
        self.sites = sites
        self.is_finished = False
        self._engine = engine
        self._settings = settings
        self._joint_steps = joint_steps
        self._tokens = tokens_per_rank * len(sites.own)
        self._handle: LocalSteps | None = None
        self._joint = JointSteps(engine, sites) if joint_steps else None

    @property
    def is_joint(self) -> bool:
        """Whether gradients are averaged over all ranks now."""
        return self._handle is None and not self.is_finished

    @property
    def in_lockstep(self) -> bool:
        """Whether no site can be far from the others: each waits for them at steps that are the same for all."""
        return self.is_joint or self._settings.deterministic or self._settings.overlap == 0

    @property
    def replicas(self) -> list[int]:
        """The ranks that have the same part of the anchor as this one, where their sites have as many ranks."""
        return list(self.sites.same_place.values())

    def before_step(self, steps_done: int) -> None:
        """Collective over all ranks at the end of the joint steps. Raises BadInput there, on all ranks."""
        if self.is_joint and steps_done >= self._joint_steps:
            self.begin()

    def before_update(self) -> None:
        """Called between the last backward of an accumulation and `engine.step()`; collective in joint steps. What was
        read counts from here on: a site may wait for its data, and offer what it has learned before, until then."""
        if self._joint is not None:
            self._joint.before_update()
        if self._handle is not None:
            self._handle.count_tokens(self._tokens)

    @property
    def run_step(self) -> int:
        """Steps of the run: in an elastic one those of the site that has most."""
        return 0 if self._handle is None else self._handle.run_step

    def begin(self, step: int = 0) -> LocalSteps:
        """Train with local steps from now on, the weights being those of this step. Collective over all ranks."""
        if self._joint is not None:
            self._joint.end()
            self._joint = None
        optimizer: Any = self._engine.optimizer
        try:
            self._handle = local_steps(self._engine, optimizer, self._settings, begin_step=step)
        except GeocommError as error:
            raise BadInput(f"sync.mode local: {str(error).removeprefix('local steps: ')}") from error
        return self._handle

    def finish(self) -> None:
        """The last round; the model then holds the anchor. Collective over all ranks."""
        if self._handle is not None:
            self._handle.finish()
        self._handle, self.is_finished = None, True

    @contextmanager
    def anchor(self) -> Generator[None]:
        """Let the model hold what all sites share."""
        if self._handle is None:
            yield
        else:
            with self._handle.anchor():
                yield

    def summary(self) -> dict[str, Any]:
        """What the log has of the rounds of this site."""
        stats = {} if self._handle is None else self._handle.last_stats()
        return {"joint": self.is_joint, **{name: stats.get(name) for name in _NUMBERS}}

    def outer_state(self) -> dict[str, Any] | None:
        """The state of the handle, if any; take it before `site_state` and the model. Collective over all ranks."""
        return None if self._handle is None else self._handle.state_dict()

    def site_state(self) -> dict[str, Any]:
        """The site's own weights, as far as they do not follow from the masters of ZeRO, and the state of this rank's
        optimizer: references, not copies."""
        return {"weights": self._weights(), "optimizer": optimizer_state(self._engine)}

    def load_state_dict(self, site: Mapping[str, Any], outer: Mapping[str, Any] | None) -> None:
        """Take over both states, `outer` after `begin`. Collective over all ranks. Raises GeocommError."""
        for name, parameter in self._weights().items():
            parameter.copy_(site["weights"][name])
        load_optimizer_state(self._engine, site["optimizer"])
        if self._handle is not None and outer is not None:
            self._handle.load_state_dict(outer)

    def _weights(self) -> dict[str, torch.Tensor]:
        if self._engine.zero_optimization():
            return {}
        model: Any = self._engine.module
        return {name: parameter.detach() for name, parameter in model.named_parameters()}
