"""What ranks and agents of tests are forked from, each started once in a process of pytest, and ended with it."""

from __future__ import annotations

import atexit
import functools

from support.warm_python import WarmPython


@functools.cache
def warm_training() -> WarmPython:
    """Of `geocomm train`."""
    return _until_exit(WarmPython(["train_preload"]))


@functools.cache
def warm_elastic() -> WarmPython:
    """Of programs with local steps, and torchrun."""
    modules = ["torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.run"]
    return _until_exit(WarmPython([*modules, "geocomm.sync.local_steps.local_steps"]))


@functools.cache
def warm_agents() -> WarmPython:
    """Of agents of elastic runs, and of ranks without torch."""
    return _until_exit(WarmPython(["agent_preload"]))


def _until_exit(made: WarmPython) -> WarmPython:
    atexit.register(made.__exit__)
    return made
