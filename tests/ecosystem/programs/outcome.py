"""How a program of this folder leaves what it has learned: not a word of it is about geocomm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

import torch


def leave(losses: Iterable[float], tensors: Iterable[torch.Tensor]) -> None:
    """Write the losses and a digest of the weights of this rank to OUTCOME."""
    digest = hashlib.sha256()
    for tensor in tensors:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        digest.update(whole.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    report = {"losses": [float(loss) for loss in losses], "weights": digest.hexdigest()}
    Path(os.environ["OUTCOME"], f"rank{os.environ['RANK']}.json").write_text(json.dumps(report))
