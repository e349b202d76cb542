"""The weights of a model, read one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch

Weights: TypeAlias = Mapping[str, torch.Tensor]
"""CPU tensors by the name that `model.state_dict()` has, persistent buffers included.

Each is made when it is asked for and kept by nobody else, so that who holds one at a time needs memory for one.
"""
