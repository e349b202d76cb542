"""The weights of a model by name, each read when it is asked for. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch

from geocomm.train.export.export_record import Dtype

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of weights, by the names that commands and configurations have for them."""
DTYPE_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in DTYPES.items()}

Weights: TypeAlias = Mapping[str, torch.Tensor]
"""CPU tensors by the name that `model.state_dict()` has, persistent buffers included.

Each is made when it is asked for and kept by nobody else: one that holds one at a time needs memory for one.
"""

Read = Callable[[], torch.Tensor]
"""Reads one weight: a contiguous tensor on the CPU, in memory of its own. Raises BadInput for damaged data."""


class LazyWeights(Mapping[str, torch.Tensor]):
    """The names of a model's state dict, and their tensors.

    Each access reads the tensor anew, so that a loop over all of them needs memory for one. `dict(weights)` needs
    memory for all, and so does `Module.load_state_dict(weights)`, which makes one.
    """

    def __init__(self, reads: Mapping[str, Read]) -> None:
        self._reads = dict(reads)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._reads[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)

    def __contains__(self, name: object) -> bool:
        return name in self._reads  # Mapping's own would read the tensor


@dataclass(frozen=True)
class Parts:
    """A weight as it lies in mapped files: its elements in order, in one part or in several."""

    views: Sequence[torch.Tensor]
    shape: Sequence[int]

    def reader(self, dtype: torch.dtype | None = None) -> Read:
        """dtype: what floating-point values are rounded to."""
        stored = self.views[0].dtype
        return partial(self._read, dtype if dtype is not None and stored.is_floating_point else stored)

    def _read(self, dtype: torch.dtype) -> torch.Tensor:
        whole = torch.empty(math.prod(self.shape), dtype=dtype)
        offset = 0
        for view in self.views:
            whole[offset : offset + view.numel()].copy_(view.reshape(-1))
            offset += view.numel()
        return whole.view(tuple(self.shape))
