"""What ranks and agents of tests are forked from: one process of each kind for all workers of pytest-xdist."""

from __future__ import annotations

import functools

from support.warm_python import WarmPython

_OF_RANKS = (
    "hypothesis",
    "networkx",
    "numpy.ma",
    "pydantic",
    "pytest",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "geocomm.cli.commands",
    "geocomm.group.backend.group_creation",
    "geocomm.group.backend.runtime",
    "geocomm.sync.gradients.ddp_hook",
    "geocomm.sync.local_steps.local_steps",
    "support.harness",
)
"""What most of them import, which takes longer than a fork."""


@functools.cache
def warm_ranks() -> WarmPython:
    """Of the ranks of `harness`, of programs with local steps, and torchrun."""
    return WarmPython("ranks", _OF_RANKS)


@functools.cache
def warm_training() -> WarmPython:
    """Of `geocomm train`."""
    return WarmPython("training", ["train_preload"])


@functools.cache
def warm_agents() -> WarmPython:
    """Of agents of elastic runs, and of ranks without torch."""
    return WarmPython("agents", ["agent_preload"])
