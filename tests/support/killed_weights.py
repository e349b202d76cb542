"""A publisher or a subscriber that is killed at its n-th change of a file system.

`python -m support.killed_weights publish|subscribe N FOLDER`: N counts from 0. FOLDER has stream/ and model.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

VERSIONS = 3


def tensors_at(version: int) -> dict[str, torch.Tensor]:
    """What is published as that version, by whoever does."""
    made = torch.Generator().manual_seed(version)
    base = (torch.arange(4000).float() / 4000).bfloat16()
    step = (torch.rand(4000, generator=made) < 0.02).short()
    return {"w": base.view(torch.int16).add(step).view(torch.bfloat16), "at": torch.tensor(version)}


def _kill_at(last: int) -> None:
    counter = itertools.count()

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(counter) == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **named)

        return call

    for name in ("link", "rename", "replace", "unlink", "rmdir", "mkdir", "symlink", "fsync", "posix_fallocate"):
        setattr(os, name, wrapped(getattr(os, name)))


def main() -> None:
    """Entry."""
    what, last, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    stream = str(folder / "stream")
    from geocomm.weights.publisher import WeightPublisher
    from geocomm.weights.reader import WeightReader

    if what == "publish":
        _kill_at(last)
        tensors = tensors_at(0)
        publisher = WeightPublisher(stream, tensors, anchor_every=1)
        for version in range(publisher.last() + 1, publisher.last() + 1 + VERSIONS):
            for name, value in tensors_at(version).items():
                tensors[name].copy_(value)
            publisher.publish(wait=True)
        publisher.close()
    else:
        _kill_at(last)
        with WeightReader(stream, folder / "model") as reader:
            reader.update()
    os._exit(0)


if __name__ == "__main__":
    main()
