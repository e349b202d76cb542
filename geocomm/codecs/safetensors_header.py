"""The head of a safetensors file: which tensor lies where.

The format: length of the header in 8 bytes, little-endian; the header, JSON that says dtype, shape and place of each
tensor; the tensors' bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import torch

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8


def safetensors_header(planned: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header of a file with these tensors, in this order; only their shape and dtype count (device `meta`)."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    begin = 0
    for name, tensor in planned.items():
        end = begin + math.prod(tensor.shape) * tensor.dtype.itemsize
        entries[name] = {"dtype": DTYPE_NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % _ALIGNMENT)
