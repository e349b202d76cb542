"""A safetensors file that is written tensor by tensor. The library `safetensors` takes all tensors of a file at once.

The format: length of the header in 8 bytes, little-endian; the header, JSON that says dtype, shape and place of each
tensor; the tensors' bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_HEADER_ALIGNMENT = 8


class SafetensorsFile:
    """Takes the tensors in the order that was told. Raises OSError."""

    def __init__(self, path: Path, planned: Mapping[str, torch.Tensor]) -> None:
        """planned: what is to come, in this order, without data (on the device `meta`)."""
        self._waiting = list(planned)
        self._planned = planned
        self._hash = hashlib.sha256()
        self._bytes = 0
        self._file = path.open("wb")
        header = _header(planned)
        self._put(len(header).to_bytes(8, "little"))
        self._put(header)

    def append(self, name: str, tensor: torch.Tensor) -> None:
        """Write the next tensor, whose name, shape and dtype are those that were told."""
        expected = self._waiting.pop(0)
        plan = self._planned[expected]
        if (name, tensor.shape, tensor.dtype) != (expected, plan.shape, plan.dtype):
            raise RuntimeError(f"{name} {tensor.dtype} {[*tensor.shape]} comes where {expected} {plan} was told")
        if tensor.numel():
            data: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self._put(memoryview(data))

    def _put(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._hash.update(data)
        self._bytes += len(data)

    def facts(self) -> tuple[int, str]:
        """Bytes and SHA-256 of what was written."""
        return self._bytes, self._hash.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if error is None and self._waiting:
            raise RuntimeError(f"{self._waiting[0]} was told and never came")


def _header(planned: Mapping[str, torch.Tensor]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, tensor in planned.items():
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        entries[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _HEADER_ALIGNMENT)
