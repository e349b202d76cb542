"""For the process that rank processes are forked from: what most of them import, which takes longer than a fork."""

from __future__ import annotations

import gc
import importlib
import os

gc.disable()  # all of it stays
for name in (
    "torch",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "hypothesis",
    "pydantic",
    "pytest",
    "geocomm._C",
    "geocomm.group.backend.group_creation",
    "geocomm.group.backend.runtime",
    "geocomm.sync.gradients.ddp_hook",
    "geocomm.sync.local_steps.local_steps",
    "support.harness",
):
    importlib.import_module(name)
gc.freeze()  # else each collection in a rank copies the pages of all that
gc.enable()
assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose the threads that these imports have started"
