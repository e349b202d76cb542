"""The model as the outer step sees it: named float32 elements, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.sync.local_steps.model.fragments import Range, Tensor, digest
from geocomm.sync.local_steps.settings.local_settings import LocalSettings


class ParameterView(ABC):
    """The elements of a model that its site averages with the other sites, as one rank of the site holds them."""

    sharded: bool = False
    """Whether the ranks of the site hold parts; else each holds everything."""

    def __init__(self, model: torch.nn.Module, settings: LocalSettings) -> None:
        """Frozen parameters are left out. A parameter with several names is averaged once, under its first."""
        self._model = model
        self._keep_buffers_local = settings.buffers == "local"
        self._parameters = dict(model.named_parameters())
        self._trainable = {name: one for name, one in self._parameters.items() if one.requires_grad}
        for name, parameter in self._parameters.items():
            _require_values(name, parameter)
            self._require(name, parameter)
        if not self._trainable:
            raise InvalidArgumentError("local steps: the model has no parameter that is trained")
        tables = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
        tensors: list[Tensor] = []
        shapes = {name: self._shape(parameter) for name, parameter in self._trainable.items()}
        exact = settings.exact_names(shapes)
        for name, parameter in self._trainable.items():
            shape = shapes[name]
            tensors.append(
                Tensor(
                    name,
                    shape.numel(),
                    row_numel=shape[-1] if len(shape) and shape[-1] else 1,
                    table=id(parameter) in tables,
                    exact=name in exact,
                    shape=tuple(shape),
                )
            )
        self.tensors: Sequence[Tensor] = tensors
        """The tensors that are averaged, in the model's order; alike on all ranks."""
        self._buffers = {name: (buffer, buffer.detach().clone()) for name, buffer in model.named_buffers()}
        self.left_out: Mapping[str, str] = self._reasons()
        """The tensors that are not averaged, each with the reason."""
        self._types = self._types_now()
        self.on_cuda = any(parameter.is_cuda for parameter in self._parameters.values())
        """Whether values are copied to the host from a GPU."""

    @abstractmethod
    def _require(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Raise UnsupportedError for a parameter that this view cannot hold."""

    def _shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        """The shape of the whole parameter."""
        return parameter.shape

    def _whole(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The values of the whole parameter. Collective over the ranks of the site."""
        return parameter.detach()

    @abstractmethod
    def held(self, name: str) -> tuple[int, int]:
        """The elements [start, stop) of a tensor that this rank holds; `sharded`: no other rank of the site does."""

    @abstractmethod
    def read(self, part: Range, out: torch.Tensor) -> None:
        """Copy the values of a range that this rank holds to `out` (float32, CPU, 1-D)."""

    def memory(self, part: Range) -> torch.Tensor | None:
        """The model's own memory of a range, where that is float32 on the CPU in the order of the dimensions: 1-D."""
        return None

    @abstractmethod
    def write(self, part: Range, values: torch.Tensor) -> None:
        """Replace the values of a range, as far as this rank holds them. Every rank of the site gets all values."""

    def check(self) -> None:
        """Raise InvalidArgumentError or UnsupportedError, by name, for what has changed since the view was made."""
        now = self._types_now()
        for name in [*self._types, *(now.keys() - self._types.keys())]:
            if now.get(name) != self._types.get(name):
                here, before = _described(now.get(name)), _described(self._types.get(name))
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

    def names(self) -> Mapping[int, str]:
        """The names of all parameters, by id()."""
        return {id(parameter): name for name, parameter in self._parameters.items()}

    def check_optimizers(self, optimizers: Sequence[Any]) -> None:
        """Raise InvalidArgumentError, by name, unless these update this model: every parameter that is trained, each
        by one of them, and no others."""
        names, owners = self.names(), dict[int, str]()
        for optimizer in optimizers:
            kind = type(optimizer).__name__
            for index, group in enumerate(optimizer.param_groups):
                for number in map(id, group["params"]):
                    if number not in names:
                        raise InvalidArgumentError(
                            f"local steps: group {index} of the optimizer {kind} has a parameter that is not the "
                            "model's; pass the model and the optimizers that train it"
                        )
                    if number in owners:
                        raise InvalidArgumentError(
                            f"local steps: parameter {names[number]} is in the optimizers {owners[number]} and {kind}; "
                            "give it to one of them"
                        )
                    owners[number] = kind
        for name, parameter in self._trainable.items():
            if id(parameter) not in owners:
                raise InvalidArgumentError(
                    f"local steps: parameter {name} is trained, but no optimizer has it; pass all optimizers, as in "
                    "local_steps(model, [muon, adamw]), or freeze the parameter"
                )

    def types(self) -> Mapping[str, str]:
        """Dtype and shape of all parameters and buffers, by name."""
        buffers = {name: type_name(buffer, buffer.shape) for name, buffer in self._constants().items()}
        return {name: kind for name, (_, kind, _) in self._types.items()} | buffers

    def digests(self) -> Mapping[str, str]:
        """Digests of the values that must be equal at all sites, by name, without those that the ranks of the site hold
        in parts. Collective over the ranks of the site."""
        found = {
            name: digest([self._whole(parameter)])
            for name, parameter in self._parameters.items()
            if not self.sharded or name not in self._trainable
        }
        return found | {name: digest([buffer]) for name, buffer in self._constants().items()}

    def _constants(self) -> dict[str, torch.Tensor]:
        return {} if self._keep_buffers_local else {name: buffer for name, (buffer, _) in self._buffers.items()}

    def _reasons(self) -> dict[str, str]:
        first = {id(parameter): name for name, parameter in self._parameters.items()}
        found = {name: "frozen" for name in self._parameters if name not in self._trainable}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if first[id(parameter)] != name:
                found[name] = f"the same as {first[id(parameter)]}"
        found |= dict.fromkeys(self._buffers, "a buffer")
        return found

    def _types_now(self) -> dict[str, tuple[int, str, bool]]:
        return {
            name: (id(parameter), type_name(parameter, self._shape(parameter)), parameter.requires_grad)
            for name, parameter in self._model.named_parameters()
        }


def type_name(tensor: torch.Tensor, shape: torch.Size) -> str:
    """Dtype and shape, as messages have them."""
    layout = "" if tensor.layout == torch.strided else f" {str(tensor.layout).removeprefix('torch.')}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(shape)}{layout}"


def write_flat(tensor: torch.Tensor, start: int, values: torch.Tensor) -> None:
    """Replace the elements of a tensor from `start` on, in the order of its dimensions; converts to its dtype."""
    if tensor.is_contiguous():
        tensor.view(-1)[start : start + values.numel()].copy_(values)
    else:
        flat = tensor.reshape(-1)
        flat[start : start + values.numel()].copy_(values)
        tensor.copy_(flat.view_as(tensor))


def _require_values(name: str, parameter: torch.nn.Parameter) -> None:
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        raise InvalidArgumentError(f"local steps: parameter {name} has no shape yet; run the model once before")
    if parameter.device.type == "meta":
        raise InvalidArgumentError(f"local steps: parameter {name} has no values yet (device meta)")


def _described(shape: tuple[int, str, bool] | None) -> str:
    if shape is None:
        return "not there"
    _, kind, trained = shape
    return f"{kind}, {'trained' if trained else 'frozen'}"
