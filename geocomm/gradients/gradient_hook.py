"""The handle of a gradient hook: what `ddp_hook`, `fsdp_hook` and `dgc_hook` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from geocomm.gradients.gradient_reducer import GradientReducer


class GradientHook:
    """What a program does with a hook. Call its methods between steps: after backward, before the next forward."""

    def __init__(self, reducer: GradientReducer) -> None:
        """Wrap the reducer; programs get their handle from `ddp_hook` and the like."""
        self._reducer = reducer

    @property
    def codec(self) -> str:
        """The codec of the next step."""
        return self._reducer.codec

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Rank among the replicas, their number; shard of the model's gradients, their number."""
        return self._reducer.place

    def is_exact(self, name: str) -> bool:
        """Whether the parameter of this name always goes exactly."""
        return self._reducer.is_exact(name)

    def stats(self) -> dict[str, Any]:
        """The counters of this rank, as of the last step that ended.

        kind: of the hook; steps: begun so far; codec: of the next one; skipped_steps: those undone, since a gradient
        was not finite or an operation failed; fallbacks: step, codec and reason of each; buckets: per bucket that was
        compressed, index, parameters, elements: of its residual on this rank, ef_norm: the residual's L2 norm, in units
        of the sum over ranks (with `adaptive`, of what was divided by the scales), nmse: its square by that of what was
        encoded (0: nothing lost, 1: everything), wire_bytes.
        """
        return self._reducer.stats()

    def last_stats(self) -> dict[str, Any]:
        """The same as of the last step whose outcome is known already: it waits for nothing; from any thread."""
        return self._reducer.last_stats()

    def undo_step(self) -> None:
        """For a step whose gradients were thrown away: the residuals are as before its backward. Call it on all ranks.

        Steps with a gradient that is not finite, such as GradScaler skips, are undone without this call.
        """
        self._reducer.undo_step()

    def rescale(self, factor: float) -> None:
        """Multiply the residuals: after a change of the loss scale, by new / old scale. Call it on all ranks."""
        self._reducer.rescale(factor)

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of the state: saved by each rank for itself. Not collective.

        Plain values, strings and tensors on the CPU: residual: {parameter: [(first element, float32 values)]}, likewise
        momentum.
        """
        return self._reducer.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state. All ranks load, each its own (for another number: `geocomm.reshard_feedback`).

        Whatever the sites and buckets now are: a value that another rank has to encode from now on goes to it with the
        next step's gradients. The guard's codec is taken over if the hook was made for the same codec.
        Raises InvalidArgumentError for a state of another rank, number of ranks or model.
        """
        self._reducer.load_state_dict(state)
