"""For the process that the ranks of a training are forked from: the driver, and what it imports late.

DeepSpeed's operator takes a minute to compile where it has not been (make build); the forked ranks find it loaded.
"""

from __future__ import annotations

import sys

import deepspeed.runtime.zero.muon.muon_optimizer  # noqa: F401 - and with it PyTorch's compiler
import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: F401

import geocomm.cli.train
import geocomm.group.backend.group_creation
import geocomm.train.loop.driver
import geocomm.train.loop.train_session  # noqa: F401
from geocomm.train.loop.shm_operator import load_operator

load_operator(lambda line: print(f"tests: {line}", file=sys.stderr, flush=True))
