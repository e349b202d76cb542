"""Models for tests of weight streams, and how training changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.stream_version import Hint, version_path


def model_tensors() -> dict[str, torch.Tensor]:
    """Equal ones at each call: several dtypes, a tensor that is not contiguous, one without elements, a scalar."""
    made = torch.Generator().manual_seed(1)
    return {
        "a": (torch.randn(400, 600, generator=made) * 0.02).bfloat16(),
        "b": (torch.randn(333, generator=made)).bfloat16(),
        "turned": torch.randn(30, 20, generator=made).t(),
        "none": torch.zeros(0, 5),
        "count": torch.tensor(3, dtype=torch.int64),
    }


def moved(tensors: Mapping[str, torch.Tensor], share: float) -> None:
    """Change a share of the 16-bit elements by one unit in the last place."""
    for tensor in tensors.values():
        if tensor.dtype == torch.bfloat16:
            step = torch.where(torch.rand(tensor.shape) < 0.5, 1, -1).short()
            tensor.view(torch.int16).add_(torch.where(torch.rand(tensor.shape) < share, step, 0).short())


def changed(tensors: Mapping[str, torch.Tensor]) -> None:
    """A step of training, about."""
    moved(tensors, 0.02)
    tensors["turned"].mul_(1.001)
    tensors["count"].add_(1)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def equal(some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]) -> bool:
    """Whether both have the same names, shapes, dtypes and bits."""
    return some.keys() == others.keys() and all(
        (tensor.shape, tensor.dtype) == (others[name].shape, others[name].dtype)
        and torch.equal(bits(tensor), bits(others[name]))
        for name, tensor in some.items()
    )


def newest_of(stream: Path, number: int) -> Hint:
    """What a stream tells of, where that is its newest version."""
    return Hint.of(number, (stream / version_path(number)).read_bytes())


def publish(place: Path, tensors: Any, versions: int, change: Callable[[], None], **named: Any) -> None:
    """Versions of tensors, which `change` changes after each; named: for the publisher."""
    with WeightPublisher(place, tensors, **named) as publisher:
        for step in range(versions):
            publisher.publish(step=step, wait=True)
            change()
