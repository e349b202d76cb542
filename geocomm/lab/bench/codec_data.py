"""What `geocomm bench codec` measures codecs on: random numbers, or a sample of a file of any size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from geocomm.core.bad_input import BadInput

RUN_ELEMENTS = 1 << 18
"""Elements that are taken from one place of a file: those of one frame of float32."""


@dataclass(frozen=True)
class CodecInput:
    """A contiguous one-dimensional tensor of float32, float16 or bfloat16, and what it is."""

    values: torch.Tensor
    description: str
    is_gaussian: bool = False


def gaussian(elements: int, seed: int = 0) -> CodecInput:
    """Independent normal numbers in float32."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    return CodecInput(values, f"{_count(elements)} normal numbers, float32", is_gaussian=True)


def from_file(path: Path, most_elements: int) -> CodecInput:
    """The floating-point numbers of a file: .npy, .pt or .pth (tensors in any nesting of dicts and lists),
    .safetensors, anything else as raw little-endian float32.

    Of more than `most_elements`, runs are taken at equal distances. Memory: about the sample, since files are mapped;
    of a .safetensors file, one tensor more. Tensors of one 16-bit dtype keep it, otherwise all become float32.

    Raises BadInput.
    """
    if not path.is_file():
        raise BadInput(f"{path} is not a file")
    try:
        parts = list(_parts(path))
    except BadInput:
        raise
    except Exception as error:  # whatever the readers of the formats raise
        raise BadInput(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from None
    total = sum(part.elements for part in parts)
    if total == 0:
        raise BadInput(f"{path} holds no floating-point numbers")
    dtypes = {part.dtype for part in parts}
    (dtype,) = dtypes if len(dtypes) == 1 else (torch.float32,)
    if dtype not in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    values = torch.cat([piece.to(dtype) for piece in _sample(parts, total, most_elements)])
    sampled = "" if values.numel() == total else f"{_count(values.numel())} of the "
    name = str(dtype).removeprefix("torch.")
    return CodecInput(values, f"{sampled}{_count(total)} numbers of {path.name}, {name}")


@dataclass(frozen=True)
class _StoredTensor:
    """One tensor of a file; `source` gives it when it is needed."""

    elements: int
    dtype: torch.dtype
    source: Any

    def flat(self) -> torch.Tensor:
        return self.source().reshape(-1)


def _sample(parts: list[_StoredTensor], total: int, most_elements: int) -> Iterator[torch.Tensor]:
    if total <= most_elements:
        runs = [(0, total)]
    else:
        length = min(RUN_ELEMENTS, most_elements)
        count = max(most_elements // length, 1)
        distance = (total - length) / max(count - 1, 1)
        runs = [(round(index * distance), length) for index in range(count)]
    first = 0
    for part in parts:
        end = first + part.elements
        wanted = [(max(start, first), min(start + length, end)) for start, length in runs]
        wanted = [(start, stop) for start, stop in wanted if start < stop]
        if wanted:
            flat = part.flat()
            yield from (flat[start - first : stop - first].clone() for start, stop in wanted)
        first = end


def _parts(path: Path) -> Iterator[_StoredTensor]:
    match path.suffix.lower():
        case ".npy":
            return _of_numpy(path)
        case ".pt" | ".pth":
            return _of_tensors(torch.load(path, map_location="cpu", mmap=True, weights_only=True))
        case ".safetensors":
            return _of_safetensors(path)
        case _:
            return _of_raw(path)


def _of_numpy(path: Path) -> Iterator[_StoredTensor]:
    import numpy as np

    array = np.load(path, mmap_mode="c", allow_pickle=False)  # copy on write: torch wants it writable
    if array.dtype not in (np.float16, np.float32, np.float64):
        raise BadInput(f"{path} holds {array.dtype}; it must be float16, float32 or float64")
    tensor = torch.from_numpy(array)
    yield _StoredTensor(tensor.numel(), tensor.dtype, lambda: tensor)


def _of_raw(path: Path) -> Iterator[_StoredTensor]:
    elements, rest = divmod(path.stat().st_size, 4)
    if rest:
        raise BadInput(
            f"{path} has {path.stat().st_size} bytes, which are not whole float32 numbers (as those is read what is "
            "not .npy, .pt or .safetensors)"
        )
    if elements:
        yield _StoredTensor(elements, torch.float32, lambda: torch.from_file(str(path), shared=False, size=elements))


def _of_tensors(found: Any) -> Iterator[_StoredTensor]:
    if isinstance(found, torch.Tensor):
        if found.is_floating_point() and found.layout == torch.strided:
            yield _StoredTensor(found.numel(), found.dtype, lambda: found.detach())
    elif isinstance(found, dict):
        for value in found.values():
            yield from _of_tensors(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from _of_tensors(value)


def _of_safetensors(path: Path) -> Iterator[_StoredTensor]:
    try:
        from safetensors import safe_open
    except ImportError:
        raise BadInput("reading .safetensors takes the package safetensors: pip install safetensors") from None
    dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    file = safe_open(path, framework="pt")  # open as long as a part is in use
    for name in file.keys():  # noqa: SIM118  (not a dict)
        shape = file.get_slice(name)
        if shape.get_dtype() in dtypes:
            elements = math.prod(shape.get_shape())
            yield _StoredTensor(elements, dtypes[shape.get_dtype()], lambda name=name: file.get_tensor(name))


def _count(elements: int) -> str:
    for unit, name in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if elements >= unit:
            return f"{elements / unit:.4g} {name}"
    return str(elements)
