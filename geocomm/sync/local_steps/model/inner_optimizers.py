"""The inner optimizers of a site: the clock of a run with local steps, and what must be the same at every site."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any, cast
from weakref import WeakValueDictionary

import torch

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.integrations.zero_seams import flat_parts
from geocomm.sync.local_steps.model.fragments import digest
from geocomm.sync.local_steps.model.optimizer_state import Slot, begin_anew, local_part, slots
from geocomm.sync.local_steps.model.parameter_view import ParameterView

_MOST_SKIPS = 32
"""In a row. A GradScaler halves its scale each time: after this many there is nothing left to halve."""

_StepHook = Callable[[bool], None]
"""Called after each step, with whether it was one that changes nothing."""


def after_each_step(
    optimizers: Sequence[Any], labels: Sequence[str], callback: Callable[[], None]
) -> Callable[[], None]:
    """Call `callback` after each step that changed the weights; returns what ends that.

    optimizers: one of torch's, or that of a DeepSpeed engine, or several of torch's: these make a step together, each
    once, in the order given or in another that stays. labels: what errors call them. Steps that a loss scaler skips do
    not count, nor do micro-batches, which call no `step`. Where several do not step together, the next step raises
    InvalidArgumentError.
    """
    # A loop may be compiled with its steps in it; the rounds are not.
    uncompiled: Any = cast(Any, torch.compiler).disable
    together, hooks = _StepTogether(optimizers, labels, callback), ExitStack()
    for index, one in enumerate(optimizers):
        hooks.callback(_hook(one, uncompiled(partial(together.after, index))))
    return hooks.close


class _StepTogether:
    """Optimizers of which each steps once in a step of the training. The last one ends it.

    A GradScaler looks at the gradients of each optimizer by themselves, so it may skip one and not the other. Such a
    step does not count.
    """

    def __init__(self, optimizers: Sequence[Any], labels: Sequence[str], callback: Callable[[], None]) -> None:
        self._optimizers = optimizers
        self._labels = labels
        self._callback = callback
        self._last = len(optimizers) - 1
        self._knows_last = False  # the loop may step them in another order than they were given
        self._stepped: set[int] = set()  # since the last end
        self._skips = 0

    def after(self, index: int, skipped: bool) -> None:
        """The optimizer of this index has made a step."""
        if skipped:
            return
        if index in self._stepped:  # so the step before had no end: what ends it was skipped, or forgotten
            self._require_skips(self._missing(), by_scaler=_is_under_scaler())
            self._stepped.clear()
        self._stepped.add(index)
        missing = self._missing()
        if not missing:
            self._last, self._knows_last = index, True
            self._stepped.clear()
            self._skips = 0
            self._callback()
        elif index == self._last:
            seen = all(_has_nonfinite_gradient(self._optimizers[one]) for one in missing)
            if seen or self._knows_last:
                self._require_skips(missing, by_scaler=seen or _is_under_scaler())
                self._stepped.clear()

    def _missing(self) -> list[int]:
        return [index for index in range(len(self._optimizers)) if index not in self._stepped]

    def _require_skips(self, missing: Sequence[int], *, by_scaler: bool) -> None:
        """by_scaler: whether these may have been skipped on purpose."""
        self._skips += 1
        if not by_scaler or self._skips > _MOST_SKIPS:
            names = " and ".join(self._labels[index] for index in missing)
            others = " and ".join(self._labels[index] for index in self._stepped)
            raise InvalidArgumentError(
                f"local steps: {others} made a step without {names}; call step() of every optimizer once in each step "
                "of the training, always in the same order"
            )


def _hook(optimizer: Any, after: _StepHook) -> Callable[[], None]:
    """Have `after` called after each `step`; returns what ends that.

    The optimizer of a DeepSpeed engine is no `torch.optim.Optimizer` where it has masters or shards: its `step` ends
    when the weights that the model computes with are up to date, unlike that of the optimizer inside.
    """
    if isinstance(optimizer, torch.optim.Optimizer):

        def after_step(stepped: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
            after(_was_skipped(stepped))

        return optimizer.register_step_post_hook(after_step).remove

    def step(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        after(bool(optimizer.overflow))
        return result

    def remove() -> None:
        del optimizer.step

    plain, optimizer.step = optimizer.step, step
    return remove


def _was_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a GradScaler made this step one that does nothing: fused optimizers are called even then."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, torch.Tensor) and bool(found.item())


def _has_nonfinite_gradient(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a gradient is not finite: a GradScaler then skips the optimizer and calls none of its methods."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not bool(torch.isfinite(local_part(parameter.grad)).all()):
                return True
    return False


def _is_under_scaler() -> bool:
    """Whether a GradScaler has called the step that is being made."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.amp.GradScaler):
            return True
        frame = frame.f_back
    return False


_TRAINED: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The optimizers of runs that have not ended, by the ids of the parameters that they train: with two handles every step
would count for both. As long as an optimizer lives, so does the run that it is the clock of, with its model."""

_WRAPPERS = {"AcceleratedOptimizer", "LightningOptimizer", "_FabricOptimizer"}


class InnerOptimizers:
    """One optimizer or several, which together make a step."""

    def __init__(self, optimizers: Any) -> None:
        """optimizers: torch's, that of a DeepSpeed engine, or a sequence of torch's. They may be in the wrappers of
        Accelerate or Lightning. Raises InvalidArgumentError and UnsupportedError for others."""
        self.each: tuple[Any, ...] = tuple(unwrapped(one) for one in _as_sequence(optimizers))
        for one in self.each:
            _require_optimizer(one, alone=len(self.each) == 1)
        if len({id(one) for one in self.each}) < len(self.each):
            raise InvalidArgumentError("local steps: the list of optimizers has one of them twice")
        self._labels = _labels(self.each)
        self._groups: list[list[list[int]]] | None = None
        self._trained: list[int] = []
        self._members: dict[str, str] = {}

    def check(self, view: ParameterView) -> None:
        """Raise InvalidArgumentError for optimizers that do not train this model, the whole of it, and alone; in later
        calls, which are quick, for groups that have changed since."""
        if self._groups is None:
            view.check_optimizers(self.each)
            averaged = {tensor.name for tensor in view.tensors}
            self._trained = [number for number, name in view.names().items() if name in averaged]
            if any(number in _TRAINED for number in self._trained):
                raise InvalidArgumentError("local_steps() was called for this model before; call finish() of that run")
            self._groups = self._groups_now()
            self._members = self._members_of(view)
        elif (groups := self._groups_now()) != self._groups:
            raise InvalidArgumentError(f"local steps: {self._changed(groups)}")

    def start(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each step that changed the weights; returns what ends that. Until then no other run
        can have these optimizers, or others of the same model."""
        remove = after_each_step(self.each, self._labels, callback)
        _TRAINED.update((number, self.each[-1]) for number in self._trained)

        def stop() -> None:
            remove()
            for number in self._trained:
                _TRAINED.pop(number, None)

        return stop

    def terms(self) -> dict[str, str]:
        """What must be the same at every site: classes, the settings of groups and, after `check`, which parameters
        they have; by name."""
        terms = {"optimizer": self.classes}
        for name, optimizer in zip(self._names(), self.each, strict=True):
            terms[f"{name} groups"] = str(len(optimizer.param_groups))
            for index, group in enumerate(optimizer.param_groups):
                terms |= {f"{name} {setting} (group {index})": text for setting, text in _settings_of(group).items()}
        return terms | self._members

    @property
    def classes(self) -> str:
        """The names of the optimizers' classes."""
        return ", ".join(type(_inside_engine(one)).__name__ for one in self.each)

    def settings(self) -> dict[str, list[str]]:
        """The same by setting, each with its texts in all groups of all optimizers, "none" where a group lacks it."""
        groups = [_settings_of(group) for one in self.each for group in one.param_groups]
        names = sorted({name for group in groups for name in group})
        found = {"classes": [self.classes], "groups": [str(len(one.param_groups)) for one in self.each]}
        found |= {name: [group.get(name, "none") for group in groups] for name in names}
        return found | ({"parameters": list(self._members.values())} if self._members else {})

    @property
    def rate(self) -> float:
        """The learning rate of the first group, as it is now; 0: it has none."""
        return float(self.each[0].param_groups[0].get("lr", 0.0))

    def slots(self) -> list[Slot]:
        """Where their state is, in an order that is the same at the next start."""
        return [slot for one in self.each for slot in slots(_inside_engine(one), flat_parts(one))]

    def heal(self) -> list[str]:
        """Begin the state of each parameter anew that has NaN or Inf, after which it is that of a new optimizer.

        Returns what was begun anew, in words; nothing where all was finite. Raises UnsupportedError for a state whose
        first values are not known.
        """
        told: list[str] = []
        for label, one in zip(self._labels, self.each, strict=True):
            ill, count = begin_anew(_inside_engine(one), label)
            if ill:
                whose = "parameters" if isinstance(one, torch.optim.Optimizer) else "flat parts"
                told.append(f"{label}: the state of {ill} of {count} {whose}")
        return told

    def _names(self) -> Sequence[str]:
        return ["optimizer"] if len(self.each) == 1 else self._labels

    def _groups_now(self) -> list[list[list[int]]]:
        """The ids of the parameters of each group; none for a DeepSpeed engine, which makes tensors of its own."""
        return [
            [[id(one) for one in group["params"]] for group in each.param_groups]
            for each in self.each
            if isinstance(each, torch.optim.Optimizer)
        ]

    def _members_of(self, view: ParameterView) -> dict[str, str]:
        """Which parameters the groups have, as terms: how many, and a digest of the names."""
        found: dict[str, str] = {}
        names_by_id = view.names()
        if not self._groups_now():
            return found
        for name, optimizer in zip(self._names(), self.each, strict=True):
            for index, group in enumerate(optimizer.param_groups):
                names = [names_by_id[id(one)] for one in group["params"]]
                found[f"{name} parameters (group {index})"] = f"{len(names)} ({digest([], repr(names))})"
        return found

    def _changed(self, groups: list[list[list[int]]]) -> str:
        """What is not as it was, in words."""
        for label, now, before in zip(self._labels, groups, self._groups or (), strict=True):
            if len(now) > len(before):
                return (
                    f"group {len(before)} of {label} was added after local_steps() was called, and the sites do not "
                    "compare it; call finish(), then local_steps() again"
                )
            for index, (one, other) in enumerate(zip(now, before, strict=False)):
                if one != other:
                    return (
                        f"group {index} of {label} has other parameters than when local_steps() was called; an "
                        "optimizer must keep them while it runs"
                    )
        return "an optimizer lost a group since local_steps() was called; it must keep them while it runs"


def _settings_of(group: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a group of parameters, as text, by name."""
    named = {name: value for name, value in sorted(group.items()) if name not in ("params", "param_names")}
    return {
        name: str(cast(Any, value).tolist()) if isinstance(value, torch.Tensor) else str(value)
        for name, value in named.items()
    }


def unwrapped(optimizer: Any) -> Any:
    """The optimizer in a wrapper of Accelerate or Lightning, whose `step` is called where the wrapper's steps."""
    while any(cls.__name__ in _WRAPPERS for cls in type(optimizer).__mro__):
        optimizer = optimizer.optimizer
    return optimizer


def _as_sequence(optimizers: Any) -> Sequence[Any]:
    if isinstance(optimizers, Mapping):
        raise InvalidArgumentError("local steps: the optimizers are a mapping; pass list(optimizers.values())")
    if isinstance(optimizers, (Iterator, Set)):
        kind = type(cast(object, optimizers)).__name__
        raise InvalidArgumentError(
            f"local steps: the optimizers are a {kind}; pass a list, in the order of their steps"
        )
    if not isinstance(optimizers, Sequence):
        return [optimizers]
    if not optimizers:
        raise InvalidArgumentError("local steps: the list of optimizers is empty")
    return cast(Sequence[Any], optimizers)


def _require_optimizer(optimizer: Any, *, alone: bool) -> None:
    inner = _inside_engine(optimizer)
    if _is_schedule_free(inner):
        raise UnsupportedError(
            f"local steps: {type(inner).__name__} is schedule-free: it has two sets of weights, and the sites would "
            "average only one of them. Use an ordinary optimizer, such as AdamW; the anchor of local steps is an "
            "average of the weights, too"
        )
    name = type(optimizer).__name__
    if "ZeroRedundancyOptimizer" in (kind.__name__ for kind in type(optimizer).__mro__):
        raise UnsupportedError(
            f"local steps: {name} sends the weights to all its ranks in every step, and was not tried inside a site; "
            "use FSDP2 or DeepSpeed's ZeRO 1 over the ranks of the site"
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        if not hasattr(optimizer, "_optimizer_step_post_hooks"):
            raise InvalidArgumentError(
                f"local steps: {name} wraps an optimizer without the hooks of torch's; pass the optimizer inside"
            )
    elif not hasattr(optimizer, "overflow"):
        inside = getattr(optimizer, "optimizer", None)
        hint = "; it has one, .optimizer" if isinstance(inside, torch.optim.Optimizer) else ""
        raise InvalidArgumentError(
            f"local steps: the optimizer is a {name}; pass a torch.optim.Optimizer, a list of them, or the optimizer "
            f"of a DeepSpeed engine, engine.optimizer{hint}"
        )
    elif not alone:
        raise InvalidArgumentError("local steps: a DeepSpeed engine has one optimizer; pass engine.optimizer alone")


def _is_schedule_free(optimizer: Any) -> bool:
    """The package schedulefree names its classes so; others, such as pytorch-optimizer, have its methods."""
    if any("ScheduleFree" in kind.__name__ for kind in type(optimizer).__mro__):
        return True
    switches = all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))
    return switches and isinstance(optimizer, torch.optim.Optimizer)


def _inside_engine(optimizer: Any) -> Any:
    """The optimizer in that of a DeepSpeed engine, else the same."""
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else getattr(optimizer, "optimizer", optimizer)


def _labels(optimizers: Sequence[Any]) -> list[str]:
    """What errors and terms call them: their classes, with a number where two have the same."""
    classes = [type(_inside_engine(one)).__name__ for one in optimizers]
    seen: Counter[str] = Counter()
    labels: list[str] = []
    for name in classes:
        seen[name] += 1
        labels.append(name if classes.count(name) == 1 else f"{name} {seen[name]}")
    return labels
