"""The model as the outer step sees it: named float32 elements, wherever they lie."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.local_sgd.anchor import digest
from geocomm.local_sgd.fragments import Fragment, Range, Tensor


class ParameterView(Protocol):
    """The elements of a model that this rank averages with the ranks that hold the same ones at other sites."""

    @property
    def tensors(self) -> Sequence[Tensor]:
        """What is averaged, in the model's order."""
        ...

    @property
    def left_out(self) -> Mapping[str, str]:
        """What is not averaged, each with the reason."""
        ...

    def read(self, part: Range, out: torch.Tensor) -> None:
        """Copy the values of a range to `out` (float32, CPU, 1-D)."""
        ...

    def write(self, part: Range, values: torch.Tensor) -> None:
        """Replace the values of a range."""
        ...

    def check(self) -> None:
        """Raise InvalidArgumentError or UnsupportedError, by name, for what has changed since the view was made."""
        ...

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise InvalidArgumentError for an optimizer that does not update this model."""
        ...

    def digests(self) -> Mapping[str, str]:
        """Dtype, shape and digest of everything that must be equal at all sites when a run begins, by name."""
        ...


def read_fragment(view: ParameterView, fragment: Fragment) -> torch.Tensor:
    """A new flat float32 tensor with the model's values."""
    values = torch.empty(fragment.numel)
    for part, span in fragment.spans():
        view.read(part, values[span])
    return values


def write_fragment(view: ParameterView, fragment: Fragment, values: torch.Tensor) -> None:
    """Replace the model's values."""
    for part, span in fragment.spans():
        view.write(part, values[span])


class PlainParameters:
    """A view of an ordinary module, whose parameters this process holds whole: no FSDP, no ZeRO-3."""

    def __init__(
        self, model: torch.nn.Module, *, exact: Sequence[str], exact_below: int, keep_buffers_local: bool
    ) -> None:
        """exact: regular expressions; what they find in a name, what has one dimension or fewer than `exact_below`
        elements is not compressed. keep_buffers_local: buffers may change, each site's by themselves.

        Trainable parameters must be float32 (UnsupportedError); frozen ones are left out. A parameter with several
        names is averaged once, under its first.
        """
        self._model = model
        self._keep_buffers_local = keep_buffers_local
        self._parameters = dict(model.named_parameters())
        self._trainable = {name: one for name, one in self._parameters.items() if one.requires_grad}
        for name, parameter in self._parameters.items():
            _require_plain(name, parameter)
        if not self._trainable:
            raise InvalidArgumentError("local steps: the model has no parameter that is trained")
        tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        try:
            patterns = [re.compile(pattern) for pattern in exact]
        except re.error as error:
            raise InvalidArgumentError(f"exact: {error.pattern!r} is not a regular expression: {error}") from error

        def is_exact(name: str, parameter: torch.Tensor) -> bool:
            small = parameter.dim() <= 1 or parameter.numel() < exact_below
            return small or any(pattern.search(name) for pattern in patterns)

        self.tensors = [
            Tensor(
                name,
                parameter.numel(),
                row_numel=parameter.shape[-1] if parameter.dim() and parameter.shape[-1] else 1,
                table=id(parameter) in tables,
                exact=is_exact(name, parameter),
            )
            for name, parameter in self._trainable.items()
        ]
        self._buffers = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
        self.left_out = self._reasons()
        self._shapes = self._shapes_now()

    def read(self, part: Range, out: torch.Tensor) -> None:
        """See `ParameterView`."""
        out.copy_(self._trainable[part.name].detach().reshape(-1)[part.start : part.stop])

    def write(self, part: Range, values: torch.Tensor) -> None:
        """See `ParameterView`."""
        parameter = self._trainable[part.name].detach()
        if parameter.is_contiguous():
            parameter.view(-1)[part.start : part.stop].copy_(values)
        else:
            flat = parameter.reshape(-1)
            flat[part.start : part.stop].copy_(values)
            parameter.copy_(flat.view_as(parameter))

    def check(self) -> None:
        """See `ParameterView`."""
        now = self._shapes_now()
        for name in [*self._shapes, *(now.keys() - self._shapes.keys())]:
            if now.get(name) != self._shapes.get(name):
                here, before = _described(now.get(name)), _described(self._shapes.get(name))
                raise InvalidArgumentError(
                    f"local steps: parameter {name} is {'another tensor' if here == before else here}, and was "
                    f"{before} when local_steps() was called; a model's parameters must stay as they are while it runs"
                )
        if self._keep_buffers_local:
            return
        for name, (buffer, before) in self._buffers.items():
            if not torch.equal(buffer, before):
                raise UnsupportedError(
                    f"local steps: buffer {name} changes in training, and buffers are not averaged. Use a layer "
                    "without running statistics (GroupNorm, LayerNorm), or pass buffers='local' so that each site "
                    "keeps its own"
                )

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """See `ParameterView`."""
        own = {id(parameter) for parameter in self._parameters.values()}
        for index, group in enumerate(optimizer.param_groups):
            if any(id(parameter) not in own for parameter in group["params"]):
                raise InvalidArgumentError(
                    f"local steps: group {index} of the optimizer has a parameter that is not the model's; pass the "
                    "model and the optimizer that trains it"
                )

    def digests(self) -> Mapping[str, str]:
        """See `ParameterView`."""
        constants = {} if self._keep_buffers_local else {name: buffer for name, (buffer, _) in self._buffers.items()}
        return {
            name: f"{_type_name(tensor)} {digest([tensor])}"
            for name, tensor in (*self._parameters.items(), *constants.items())
        }

    def _reasons(self) -> dict[str, str]:
        first = {id(parameter): name for name, parameter in self._parameters.items()}
        found = {name: "frozen" for name in self._parameters if name not in self._trainable}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if first[id(parameter)] != name:
                found[name] = f"the same as {first[id(parameter)]}"
        found |= dict.fromkeys(self._buffers, "a buffer")
        return found

    def _shapes_now(self) -> dict[str, tuple[int, str, bool]]:
        return {
            name: (id(parameter), _type_name(parameter), parameter.requires_grad)
            for name, parameter in self._model.named_parameters()
        }


def _require_plain(name: str, parameter: torch.nn.Parameter) -> None:
    """Raise UnsupportedError for what is not a whole float32 tensor of this process, if it is trained."""
    if hasattr(parameter, "ds_id") or hasattr(parameter, "device_mesh"):
        raise UnsupportedError(
            f"local steps: parameter {name} is a shard (of FSDP2 or ZeRO-3); whole parameters are needed, for example "
            "those of DDP"
        )
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise InvalidArgumentError(f"local steps: parameter {name} has no shape yet; run the model once before")
    if parameter.layout != torch.strided or (parameter.requires_grad and parameter.dtype != torch.float32):
        raise UnsupportedError(
            f"local steps: parameter {name} is {_type_name(parameter)}; only dense float32 is averaged, since changes "
            "of lower precision drown in rounding. Keep the weights in float32 and compute under torch.autocast, or "
            "freeze the parameter"
        )
    if parameter.device.type == "meta":
        raise InvalidArgumentError(f"local steps: parameter {name} has no values yet (device meta)")


def _type_name(tensor: torch.Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{layout}"


def _described(shape: tuple[int, str, bool] | None) -> str:
    if shape is None:
        return "not there"
    _, kind, trained = shape
    return f"{kind}, {'trained' if trained else 'frozen'}"
