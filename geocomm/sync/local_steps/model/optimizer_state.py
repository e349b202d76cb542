"""The state of an optimizer: what is in it, and what begins anew after a step with NaN or Inf."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from geocomm.core.errors import UnsupportedError

_ZERO_AT_FIRST = frozenset(
    {
        "step",
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf"),  # Adam and its kin, Lion, LAMB
        "momentum_buffer",  # SGD, Muon
        *("square_avg", "grad_avg", "acc_delta"),  # RMSprop, Adadelta
        *("row_var", "col_var", "variance"),  # Adafactor
        *("exp_avg_sq_row", "exp_avg_sq_col", "RMS"),  # Adafactor of transformers
        *("prev", "ax"),  # Rprop, ASGD
        *("state1", "state2", "absmax1", "absmax2"),  # bitsandbytes, 8 bits
    }
)
_NEVER_CHANGES = frozenset({"qmap1", "qmap2"})  # bitsandbytes
_ONE_AT_FIRST = frozenset({"mu_product", "mu"})  # NAdam, ASGD
_RATE_AT_FIRST = frozenset({"step_size", "eta"})  # Rprop, ASGD


@dataclass(frozen=True)
class Slot:
    """Where an optimizer keeps the state of a parameter; or the step counter of a group, without a parameter."""

    parameter: Any | None
    optimizer: Any
    group: MutableMapping[str, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What is there now."""
        if self.group is not None:
            return ("step",) if "step" in self.group else ()
        return tuple(self.optimizer.state.get(self.parameter, ()))

    @property
    def state(self) -> MutableMapping[str, Any]:
        """By those names; made where there is none."""
        return self.optimizer.state[self.parameter] if self.group is None else self.group


def slots(optimizer: Any, parameters: Sequence[Any] | None = None) -> list[Slot]:
    """Groups, then parameters, in an order that is the same at the next start. parameters: by default the groups'."""
    if parameters is None:
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
    counters = [Slot(None, optimizer, group) for group in optimizer.param_groups]
    return [*counters, *(Slot(one, optimizer) for one in parameters)]


def begin_anew(optimizer: Any, label: str) -> tuple[int, int]:
    """Give the state of each parameter that has NaN or Inf the values of a new optimizer, in place.

    In place, since captured graphs and DeepSpeed know the tensors. A sharded state is this rank's part. Returns for how
    many parameters, and of how many. Raises UnsupportedError, before anything is changed, for a state whose first
    values are not known. label: what the error calls the optimizer.
    """
    ill: list[tuple[MutableMapping[str, Any], Mapping[str, Any]]] = []
    counters: list[MutableMapping[str, Any]] = []
    states = _states_by_group(optimizer)
    for group, of_group in states:
        found = [state for state in of_group if not _is_finite(state, label)]
        if found and "step" in group and any("step" not in state for state in found):
            found = of_group  # one counter for all: it cannot begin anew for some of them
            counters.append(group)
        ill += [(state, group) for state in found]
    firsts = [[(name, _first(name, group, label)) for name in state] for state, group in ill]
    for (state, _), of_state in zip(ill, firsts, strict=True):
        for name, first in of_state:
            if first is not None:
                state[name] = _filled(state[name], first)
    for group in counters:
        group["step"] = _filled(group["step"], 0)
    return len(ill), sum(len(of_group) for _, of_group in states)


_States = list[MutableMapping[str, Any]]


def _states_by_group(optimizer: Any) -> list[tuple[MutableMapping[str, Any], _States]]:
    """The states of the parameters of each group. ZeRO 3 leaves its groups empty between steps: what is in none has
    the settings that are the optimizer's defaults."""
    left = {id(one): state for one, state in optimizer.state.items() if state}
    found: list[tuple[MutableMapping[str, Any], _States]] = []
    for group in optimizer.param_groups:
        found.append((group, [left.pop(id(one)) for one in group["params"] if id(one) in left]))
    return [*found, (optimizer.defaults, list(left.values()))]


def _first(name: str, group: Mapping[str, Any], label: str) -> float | None:
    """The value that an entry has in a new optimizer; None: it never changes."""
    if name in _ZERO_AT_FIRST:
        return 0.0
    if name in _ONE_AT_FIRST:
        return 1.0
    if name in _RATE_AT_FIRST:
        return float(group["lr"])
    if name == "sum":  # Adagrad
        return float(group.get("initial_accumulator_value", 0.0))
    if name in _NEVER_CHANGES:
        return None
    raise UnsupportedError(
        f"local steps: after a step with NaN or Inf the state of {label} is not finite, and its first values are not "
        f"known ({name}). Go on from a checkpoint, or train with an optimizer of torch.optim, whose states are known"
    )


def _filled(value: Any, first: float) -> Any:
    """The value, changed in place where it is a tensor."""
    if isinstance(value, torch.Tensor):
        local_part(value.detach()).fill_(first)
        return value
    return value if value is None or isinstance(value, bool) else type(value)(first)


def _is_finite(value: Any, label: str) -> bool:
    for one in _leaves(value):
        if isinstance(one, float) and not math.isfinite(one):
            return False
        if isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()):
            try:
                if not bool(torch.isfinite(local_part(one.detach())).all()):
                    return False
            except (NotImplementedError, RuntimeError, TypeError) as error:
                raise UnsupportedError(
                    f"local steps: after a step with NaN or Inf nobody can see whether the state of {label} is finite "
                    f"({type(one).__name__}: {error}). Go on from a checkpoint, or use an optimizer of torch.optim"
                ) from error
    return True


def _leaves(value: Any) -> Iterator[Any]:
    inside: Iterable[Any] | None = None
    if isinstance(value, Mapping):
        inside = cast(Mapping[Any, Any], value).values()
    elif isinstance(value, (list, tuple)):
        inside = cast(Sequence[Any], value)
    if inside is not None:
        for one in inside:
            yield from _leaves(one)
    else:
        yield value


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor, else the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
