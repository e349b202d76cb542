"""The handle of a gradient hook: what `ddp_hook` and `fsdp_hook` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class GradientHook(Protocol):
    """The handle of a hook, which `geocomm.ddp_hook` and `geocomm.fsdp_hook` return.

    Call its methods between steps: after backward, before the next forward.
    """

    @property
    def codec(self) -> str:
        """The codec of the next step: none in the first steps, then that of the settings or a finer one."""
        ...

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where this rank is: rank among the replicas, their number; shard of the gradients, number of shards."""
        ...

    def is_exact(self, name: str) -> bool:
        """Say whether a parameter always goes exactly.

        Args:
            name: As `model.named_parameters()` has it.

        Returns:
            True for the parameters that `HookSettings.exact` and `exact_below` leave alone.
        """
        ...

    def stats(self) -> dict[str, Any]:
        """Count what the hook did at this rank, as of the last step that ended. It waits for that step.

        Returns:
            `kind`: of the hook. `steps`: begun so far. `codec`: of the next one. `skipped_steps`: those undone, since a
            gradient was not finite or an operation failed. `fallbacks`: step, codec and reason of each. `buckets`: of
            each bucket that was compressed `index`, `parameters`, `elements` (of its residual on this rank), `ef_norm`
            (the residual's L2 norm, in units of the sum over ranks; with `adaptive`, of what was divided by the
            scales), `nmse` (its square by that of what was encoded; 0: nothing lost, 1: everything), `wire_bytes`.

        Example:
            The worst bucket of the last step; in a step that was undone none has an `nmse`:

                worst = max((bucket.get("nmse", 0.0) for bucket in hook.stats()["buckets"]), default=0.0)
        """
        ...

    def last_stats(self) -> dict[str, Any]:
        """Return what `stats` does, of the last step whose outcome is known already. It waits for nothing.

        Returns:
            As of `stats`. Any thread may ask.
        """
        ...

    def undo_step(self) -> None:
        """Put the residuals back to what they were before the last backward, whose gradients were thrown away.

        Call it on all ranks. Steps with a gradient that is not finite, such as GradScaler skips, need no call.
        """
        ...

    def rescale(self, factor: float) -> None:
        """Multiply the residuals, which are in units of the scaled loss. Call it on all ranks.

        Args:
            factor: The new loss scale by the old one.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Copy this rank's part of the state, which each rank saves for itself. Not collective.

        Returns:
            Plain values, strings and tensors on the CPU. `residual`: {parameter: [(first element, float32 values)]},
            likewise `momentum`.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state. All ranks load, each its own.

        Sites and buckets may have changed: a value that another rank has to encode from now on goes to it with the next
        step's gradients. The guard's codec is taken over if the hook was made for the same codec.

        Args:
            state: What `state_dict` returned at this rank, or what `geocomm.reshard_feedback` made of it for another
                number of ranks.

        Raises:
            InvalidArgumentError: The state is of another rank, number of ranks or model.
        """
        ...
