"""How a Hugging Face folder names and cuts the weights of a model, worked out a few weights at a time.

transformers 5 holds, for example, all experts of a layer in one tensor, and stores a tensor per expert, as the model
was first published. `save_pretrained` turns the whole model at once, which takes memory for a second one. Here its
function runs on a few weights at a time. Without data it runs on all at once, which says what has to come out.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from geocomm.core.bad_input import BadInput
from geocomm.train.export.weights import Weights
from geocomm.train.models.model_factory import empty_model

_Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class _TurnedWeights:
    """Weights that are turned together, and what they become, without data."""

    sources: tuple[str, ...]
    results: _Tensors


class OriginalLayout:
    """What the folder of a model holds. dtype: of its floating-point weights; None: each as it is."""

    def __init__(self, hf_config: PreTrainedConfig, dtype: torch.dtype | None) -> None:
        self._model: Any = empty_model(copy.deepcopy(hf_config))
        self._dtype = dtype
        # As in revert_weight_conversion for a model that was not loaded, which would look this up at each call.
        conversions = get_model_conversion_mapping(self._model, add_legacy=False)
        self._model._weight_conversions = [one for one in conversions if not isinstance(one, PrefixChange)]
        self.names = frozenset(self._model.state_dict())
        """Those of `model.state_dict()`."""
        self._parts = self._cut(_kept(self._model))

    @property
    def architecture(self) -> str:
        """The name of the model's class."""
        return type(self._model).__name__

    @property
    def parameters(self) -> int:
        """How many the model has."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def sources(self) -> list[str]:
        """The weights that are read, in this order; of tied ones, one."""
        return [name for part in self._parts for name in part.sources]

    @property
    def planned(self) -> _Tensors:
        """What comes out, in this order, without data."""
        return {name: tensor for part in self._parts for name, tensor in part.results.items()}

    def require(self, names: Iterable[str]) -> None:
        """Raises BadInput unless these are the names of the model's weights."""
        found = set(names)
        for problem, some in (("lack", self.names - found), ("have", found - self.names)):
            if some:
                raise BadInput(
                    f"the weights are of another model: they {problem} {min(some)}"
                    f"{f' and {len(some) - 1} more' if len(some) > 1 else ''}"
                )

    def convert(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """What `planned` says, with data. Raises BadInput where a weight has another shape than the model's."""
        shapes = self._model.state_dict()
        for part in self._parts:
            tensors: _Tensors = {}
            for name in part.sources:
                tensor = weights[name]
                if tensor.shape != shapes[name].shape:
                    raise BadInput(
                        f"the weights are of another model: {name} is {[*tensor.shape]}, expected "
                        f"{[*shapes[name].shape]}"
                    )
                tensors[name] = tensor.to(self.stored_type(name, tensor.dtype))
                del tensor
            results = revert_weight_conversion(self._model, tensors)
            tensors.clear()
            for name in part.results:
                yield name, results.pop(name)

    def stored_type(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The type in which a weight of this type is stored: transformers keeps some in float32 always."""
        wanted = dtype if self._dtype is None else self._dtype
        if not dtype.is_floating_point or wanted not in (torch.float16, torch.bfloat16):
            return wanted if dtype.is_floating_point else dtype
        keep = set(self._model._keep_in_fp32_modules_strict or ())
        if wanted == torch.float16:
            keep |= set(self._model._keep_in_fp32_modules or ())
        kept = any(re.search(pattern.replace("*", ".*"), name) for pattern in keep)
        return torch.float32 if kept else wanted

    def _cut(self, sources: _Tensors) -> list[_TurnedWeights]:
        """The model in parts as small as the conversions allow."""
        typed = {
            name: torch.empty_like(tensor, dtype=self.stored_type(name, tensor.dtype))
            for name, tensor in sources.items()
        }
        whole = revert_weight_conversion(self._model, typed)
        parts: list[_TurnedWeights] = []
        rest = typed
        # A weight by itself; else those of a layer; else what is left.
        for group_of in (str, _layer, lambda _: ""):
            left: _Tensors = {}
            for group in _grouped(rest, group_of):
                results = self._try(group)
                if results is not None and all(
                    name in whole and _alike(results[name], whole[name]) for name in results
                ):
                    parts.append(
                        _TurnedWeights(tuple(group), {name: _without_storage(one) for name, one in results.items()})
                    )
                else:
                    left |= group
            rest = left
        made = {name for part in parts for name in part.results}
        if rest or made != whole.keys():
            raise RuntimeError("transformers turns these weights in no way that can be cut")
        # Wide types first: then no tensor begins at an odd place of its file.
        parts.sort(key=lambda part: -max(tensor.dtype.itemsize for tensor in part.results.values()))
        return parts

    def _try(self, group: _Tensors) -> _Tensors | None:
        try:
            return revert_weight_conversion(self._model, group)
        except (ValueError, KeyError, RuntimeError, AttributeError):  # it needs weights that are not in the group
            return None


def _kept(model: PreTrainedModel) -> _Tensors:
    """What `save_pretrained` would store of the model, still under its own names."""
    state = {name: tensor for name, tensor in model.state_dict().items() if tensor is not None}
    for name in model._keys_to_ignore_on_save or ():  # pyright: ignore[reportPrivateUsage]
        state.pop(name, None)
    return remove_tied_weights_from_state_dict(state, model)


def _grouped(tensors: _Tensors, group_of: Callable[[str], str]) -> Iterator[_Tensors]:
    groups: dict[str, _Tensors] = {}
    for name, tensor in tensors.items():
        groups.setdefault(group_of(name), {})[name] = tensor
    return iter(groups.values())


def _layer(name: str) -> str:
    """`model.layers.3` of `model.layers.3.mlp.gate.weight`; the module, where there is no number."""
    match = re.match(r".*?\.\d+(?=\.)", name)
    return match.group() if match else name.rpartition(".")[0]


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Anew: what was cut out of a weight has the storage of the whole, and would count as much."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype
