"""The private parts of DeepSpeed that the driver uses, and nothing else of geocomm: who reduces gradients, what an
optimizer's state is, who writes which file of a checkpoint, and with which versions of it this was checked. Imports
deepspeed only when it is used."""

# DeepSpeed's parts have hardly any types.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from geocomm.core.installation import install_command

if TYPE_CHECKING:
    import deepspeed
    import torch
    import torch.distributed as dist


def take_over_reduction(engine: deepspeed.DeepSpeedEngine, reduce: Callable[[], None]) -> None:
    """Have the engine call `reduce` where, at ZeRO 0, it would reduce the parameters' gradients over all ranks."""

    def instead(grads: Any = None, elements_per_buffer: int = 0) -> None:
        # Makes zeros where a parameter was not reached.
        engine._get_gradients_for_reduction()  # pyright: ignore[reportPrivateUsage]
        reduce()

    engine.buffered_allreduce_fallback = instead


def give_back_reduction(engine: deepspeed.DeepSpeedEngine) -> None:
    """Undo `take_over_reduction`."""
    engine.__dict__.pop("buffered_allreduce_fallback", None)


def reduce_over(engine: deepspeed.DeepSpeedEngine, group: dist.ProcessGroup) -> None:
    """Average the parameters' gradients over a group, as DeepSpeed does at ZeRO 0 over its own."""
    dense, _ = engine._get_gradients_for_reduction()  # pyright: ignore[reportPrivateUsage]
    engine.allreduce_no_retain(dense, dp_group=group, dp_world_size=group.size())


def partitioned_gradients(engine: deepspeed.DeepSpeedEngine) -> Iterator[tuple[torch.nn.Parameter, torch.Tensor]]:
    """What this rank's optimizer of ZeRO 1 or 2 is about to use: its part of each parameter's gradient, not padding."""
    optimizer: Any = engine.optimizer
    for group, parameters in enumerate(optimizer.params_in_partition):
        parts = [one for one in optimizer.averaged_gradients[group] if not getattr(one, "_zero_padding", False)]
        # Where the shard is longer than what is in it, one more is padding too.
        yield from zip(parameters, parts, strict=False)


def reduce_shards_over(engine: deepspeed.DeepSpeedEngine, group: dist.ProcessGroup) -> None:
    """Average the `partitioned_gradients` over a group whose ranks have the same part."""
    parts = [part for _, part in partitioned_gradients(engine)]
    engine.allreduce_no_retain(parts, dp_group=group, dp_world_size=group.size())


def masters(engine: deepspeed.DeepSpeedEngine) -> list[torch.Tensor]:
    """The float32 masters that this rank's optimizer updates, at ZeRO 0 to 2. None in fp32 at ZeRO 0."""
    optimizer: Any = engine.optimizer
    if engine.zero_optimization():
        return [one.detach() for one in optimizer.single_partition_of_fp32_groups]
    return [one.detach() for group in getattr(optimizer, "fp32_groups", ()) for one in group]


def follow_masters(engine: deepspeed.DeepSpeedEngine) -> None:
    """Make the weights of ZeRO 1 and 2 anew from the masters. Collective over the ranks that share them."""
    optimizer: Any = engine.optimizer
    optimizer.update_lp_params()


def optimizer_state(engine: deepspeed.DeepSpeedEngine) -> dict[str, Any]:
    """What this rank's optimizer has, its masters included: references, not copies. Not collective.

    torch.load(weights_only=True) reads it, unlike what DeepSpeed makes.
    """
    optimizer: Any = engine.optimizer
    state = dict(optimizer.state_dict())
    for unread in ("zero_stage", "param_slice_mappings"):
        state.pop(unread, None)
    if "loss_scaler" in state:
        state["loss_scaler"] = dict(vars(state["loss_scaler"]))
    return state


def load_optimizer_state(engine: deepspeed.DeepSpeedEngine, state: Mapping[str, Any]) -> None:
    """Take over an `optimizer_state`. With ZeRO the weights follow the masters, and then it is collective over the
    ranks that share them."""
    optimizer: Any = engine.optimizer
    stage = engine.zero_optimization_stage()
    if not stage:
        optimizer.load_state_dict(state)
        return
    vars(optimizer.loss_scaler).update(state["loss_scaler"])
    group = optimizer.dp_process_group
    of_ranks: list[Any] = [None] * group.size()
    of_ranks[group.rank()] = {**state, "loss_scaler": optimizer.loss_scaler}
    if stage < 3:
        optimizer.load_state_dict(of_ranks, load_from_fp32_weights=True)
        follow_masters(engine)
        return
    optimizer.checkpoint_event_prologue()
    optimizer.load_state_dict(of_ranks)
    optimizer.checkpoint_event_epilogue()


class Writer(Protocol):
    """What writes an engine's files."""

    error: str | None
    """The first write that failed since this was set to None."""


def defer_write_errors(engine: deepspeed.DeepSpeedEngine) -> Writer:
    """Have the engine keep a failed write in `error` of what is returned, in place of raising it.

    DeepSpeed's save is collective: a rank that left it by an exception would leave the others waiting.
    """
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    from geocomm.group.membership.collective_verdict import attempt

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
    engine._copy_recovery_script = lambda save_path: None  # pyright: ignore[reportPrivateUsage]
    return writer


def choose_writers(engine: deepspeed.DeepSpeedEngine, *, is_disk_leader: bool, writes_shard: bool) -> None:
    """Have one rank of each disk write what several hold alike.

    is_disk_leader: it writes what every rank reads on resume; writes_shard: of its replicas on this disk, it writes
    their shard of the optimizer's state and, at ZeRO 3, of the model.
    """
    engine.save_non_zero_checkpoint = writes_shard if engine.zero_optimization_partition_weights() else is_disk_leader
    if engine.save_zero_checkpoint:
        engine.save_zero_checkpoint = writes_shard


CHECKED_DEEPSPEED = ("0.19",)
"""The minor versions of DeepSpeed whose private parts were looked at and run (0.19.8)."""


def deepspeed_problem(version: str | None = None) -> str | None:
    """Say why DeepSpeed cannot be used, and what to install; None: it can.

    Args:
        version: Of DeepSpeed; default: the installed one's.
    """
    try:
        found = version or importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        return f"DeepSpeed is not installed; {install_command('train')}"
    if ".".join(found.split(".")[:2]) in CHECKED_DEEPSPEED:
        return None
    return (
        f"geocomm uses private parts of DeepSpeed, which were checked with DeepSpeed {', '.join(CHECKED_DEEPSPEED)}; "
        f"this is DeepSpeed {found}. Install one that was checked: pip install 'deepspeed~={CHECKED_DEEPSPEED[-1]}.0'. "
        "Whoever checks this one (make ecosystem) adds it to CHECKED_DEEPSPEED in "
        "geocomm/integrations/deepspeed_seams.py"
    )
