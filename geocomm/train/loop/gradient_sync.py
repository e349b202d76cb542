"""Gradients between the sites with error feedback, in place of DeepSpeed's reduction. Imports torch and deepspeed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import deepspeed
import torch
import torch.distributed as dist

from geocomm.group.backend.sites import device_mesh
from geocomm.integrations.deepspeed import SiteParallel
from geocomm.integrations.deepspeed_seams import partitioned_gradients, take_over_reduction
from geocomm.metrics.sources import worst_nmse
from geocomm.sync.gradients.gradient_hook import GradientHook
from geocomm.sync.gradients.hook_settings import GradientShard, HookSettings, ReductionPlan
from geocomm.sync.gradients.named_values import Slice

_BUCKET_ELEMS = 16 << 20
_BUCKETS_IN_FLIGHT = 4
_Named = tuple[str, torch.Tensor]


class SiteShards(SiteParallel):
    """The gradients' way for ZeRO 1 and 2 with shards inside a site.

    Parameters then never cross the WAN; what crosses is each rank's shard of the gradients (`GradientSync`). To make
    one is collective.
    """

    def __init__(self) -> None:
        mesh = device_mesh("cpu")  # for its groups alone, which take tensors of any device
        super().__init__(mesh.get_group("local"))
        self.replicas: dist.ProcessGroup = mesh.get_group("site")


class GradientSync:
    """Reduces an engine's gradients at the end of each accumulation. `hook` keeps what the codec loses.

    ZeRO 0: over all ranks, where DeepSpeed would. ZeRO 1 and 2, with `SiteShards`: over the ranks that hold the same
    shard, after DeepSpeed has reduced it inside the site.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine, settings: HookSettings, shards: SiteShards | None) -> None:
        self._engine = engine
        self._shards = shards
        module: Any = engine.module
        named = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self._parameters = {name: parameter for name, parameter in named.items() if parameter.numel()}
        self._name_of = {id(parameter): name for name, parameter in named.items()}
        plan = ReductionPlan.of(settings)
        if shards is None:
            world: Any = dist.group.WORLD
            self.hook = GradientHook("driver", world, named, plan)
            take_over_reduction(engine, self._reduce_whole)
        else:
            site = shards.site
            shard = GradientShard(site.rank(), site.size(), site) if site.size() > 1 else GradientShard()
            self.hook = GradientHook("driver", shards.replicas, named, plan, shard)

    @property
    def replicas(self) -> list[int]:
        """The ranks that hold the same optimizer state as this one."""
        group = dist.group.WORLD if self._shards is None else self._shards.replicas
        return dist.get_process_group_ranks(group)

    def before_step(self) -> None:
        """Reduce shards; called between the last backward of an accumulation and `engine.step()`."""
        if self._shards is not None:
            parts = partitioned_gradients(self._engine)
            self._reduce([(self._name_of[id(parameter)], part) for parameter, part in parts])

    def after_step(self, *, skipped: bool, scale_factor: float) -> None:
        """After `engine.step()`, where it was one of the optimizer. scale_factor: new by old loss scale."""
        if skipped:
            self.hook.undo_step()
        if scale_factor != 1:
            self.hook.rescale(scale_factor)

    def _reduce_whole(self) -> None:
        self._reduce([(name, one.grad) for name, one in reversed(self._parameters.items()) if one.grad is not None])

    def _reduce(self, named: Sequence[_Named]) -> None:
        self.hook.begin_step()
        under_way: deque[tuple[torch.futures.Future[torch.Tensor], Sequence[_Named]]] = deque()
        for index, bucket in enumerate(_buckets(named)):
            buffer = torch.cat([gradient.detach().reshape(-1) for _, gradient in bucket])
            slices, offset = [], 0
            for name, gradient in bucket:
                slices.append(Slice(name, offset, gradient.numel(), self.hook.is_exact(name)))
                offset += gradient.numel()
            under_way.append((self.hook.reduce(index, buffer, tuple(slices)), bucket))
            if len(under_way) == _BUCKETS_IN_FLIGHT:
                _finish(*under_way.popleft())
        while under_way:
            _finish(*under_way.popleft())
        self.hook.end_step()

    def summary(self) -> dict[str, Any]:
        """What the log has of the last step: codec, NMSE of what was encoded here (None: nothing), counts."""
        stats = self.hook.stats()
        return {
            "codec": stats["codec"],
            "nmse": worst_nmse(stats),
            "skipped_steps": stats["skipped_steps"],
            "fallbacks": len(stats["fallbacks"]),
        }


def _buckets(named: Sequence[_Named]) -> Iterator[Sequence[_Named]]:
    bucket: list[_Named] = []
    numel = 0
    for name, gradient in named:
        if bucket and (numel + gradient.numel() > _BUCKET_ELEMS or gradient.dtype != bucket[0][1].dtype):
            yield bucket
            bucket, numel = [], 0
        bucket.append((name, gradient))
        numel += gradient.numel()
    if bucket:
        yield bucket


def _finish(future: torch.futures.Future[torch.Tensor], bucket: Sequence[_Named]) -> None:
    parts = future.wait().split([gradient.numel() for _, gradient in bucket])
    for (_, gradient), part in zip(bucket, parts, strict=True):
        gradient.detach().copy_(part.view_as(gradient))
