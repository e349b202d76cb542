"""The private parts of DeepSpeed that the driver stands on, and nothing else of geocomm: who reduces gradients, and who
writes which file of a checkpoint. Imports deepspeed only when it is used."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from geocomm.core.bad_input import BadInput

if TYPE_CHECKING:
    import deepspeed
    import torch
    import torch.distributed as dist

CHECKED_DEEPSPEED = ("0.19",)
"""The minor versions of DeepSpeed whose private parts were looked at and run (0.19.8)."""


def require_checked_deepspeed(version: str | None = None) -> None:
    """Raise BadInput for a DeepSpeed whose private parts may be others; version: default the installed one."""
    try:
        found = version or importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        raise BadInput("DeepSpeed is not installed; pip install 'geocomm[train]'") from None
    if ".".join(found.split(".")[:2]) in CHECKED_DEEPSPEED:
        return
    known = ", ".join(CHECKED_DEEPSPEED)
    raise BadInput(
        f"geocomm train uses private parts of DeepSpeed, which were checked with DeepSpeed {known}; this is DeepSpeed "
        f"{found}: install one that was checked (pip install 'deepspeed~={CHECKED_DEEPSPEED[-1]}.0'). Whoever checks "
        "this one (make ecosystem) adds it to CHECKED_DEEPSPEED in geocomm/train/deepspeed_seams.py"
    )


def take_over_reduction(engine: deepspeed.DeepSpeedEngine, reduce: Callable[[], None]) -> None:
    """Have the engine call `reduce` where, at ZeRO 0, it would reduce the parameters' gradients over all ranks."""

    def instead(grads: Any = None, elements_per_buffer: int = 0) -> None:
        engine._get_gradients_for_reduction()  # makes zeros where a parameter was not reached
        reduce()

    engine.buffered_allreduce_fallback = instead


def give_back_reduction(engine: deepspeed.DeepSpeedEngine) -> None:
    """Undo `take_over_reduction`."""
    engine.__dict__.pop("buffered_allreduce_fallback", None)


def reduce_over(engine: deepspeed.DeepSpeedEngine, group: dist.ProcessGroup) -> None:
    """Average the parameters' gradients over a group, as DeepSpeed does at ZeRO 0 over its own."""
    dense, _ = engine._get_gradients_for_reduction()
    engine.allreduce_no_retain(dense, dp_group=group, dp_world_size=group.size())


def partitioned_gradients(engine: deepspeed.DeepSpeedEngine) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """What this rank's optimizer of ZeRO 1 or 2 is about to use: its part of each parameter's gradient, not padding."""
    optimizer: Any = engine.optimizer
    for group, parameters in enumerate(optimizer.params_in_partition):
        parts = [one for one in optimizer.averaged_gradients[group] if not getattr(one, "_zero_padding", False)]
        # Where the shard is longer than what is in it, one more is padding too.
        yield from zip(parameters, parts, strict=False)


class Writer(Protocol):
    """What writes an engine's files."""

    error: str | None
    """The first write that failed since this was set to None."""


def defer_write_errors(engine: deepspeed.DeepSpeedEngine) -> Writer:
    """Have the engine keep a failed write in `error` of what is returned, in place of raising it.

    DeepSpeed's save is collective: a rank that left it by an exception would leave the others waiting.
    """
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    from geocomm.membership.collective_verdict import attempt

    class DeferringEngine(TorchCheckpointEngine):
        def __init__(self, zipfile_serialization: bool) -> None:
            super().__init__()
            self.zipfile_serialization = zipfile_serialization
            self.error: str | None = None

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            self._keep(attempt(lambda: super(DeferringEngine, self).makedirs(path, exist_ok=exist_ok)))

        def save(self, state_dict: Any, path: str) -> None:
            self._keep(attempt(lambda: super(DeferringEngine, self).save(state_dict, path)))

        def _keep(self, error: str | None) -> None:
            self.error = self.error or error

    plain: Any = engine.checkpoint_engine
    writer = DeferringEngine(plain.zipfile_serialization)
    engine.checkpoint_engine = writer
    # Not needed (`python -m deepspeed.utils.zero_to_fp32` is the same script), and its failure would hang the rest.
    engine._copy_recovery_script = lambda save_path: None
    return writer


def choose_writers(engine: deepspeed.DeepSpeedEngine, *, is_disk_leader: bool, writes_shard: bool) -> None:
    """Have one rank of each disk write what several hold alike.

    is_disk_leader: it writes what every rank reads on resume; writes_shard: of its replicas on this disk, it writes
    their shard of the optimizer's state.
    """
    if not engine.zero_optimization_partition_weights():
        engine.save_non_zero_checkpoint = is_disk_leader
    if engine.save_zero_checkpoint:
        engine.save_zero_checkpoint = writes_shard
