"""A model whose gradients something reduces between sites, though local steps get it without that: refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import geocomm
from geocomm.sync.local_steps.local_steps import local_steps
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from support.engine_sites import make_engine
from support.harness import ranks_fixture
from support.local_models import adamw, make_model, train_step

ranks = ranks_fixture({"1+2": ["b", "a", "b"]})


def _begun(kind: str) -> str:
    """What local_steps says of a bare module, or its first step."""
    model: Any = make_model()
    kept: list[Any] = []
    if kind == "bare":
        kept.append(DistributedDataParallel(model))
    elif kind == "part":
        kept.append(DistributedDataParallel(nn.Sequential(nn.Linear(20, 20), model)))
    elif kind == "inside":
        kept.append(DistributedDataParallel(model, process_group=geocomm.sites().inside))
    elif kind == "deleted":
        cycle = [DistributedDataParallel(model)]
        cycle.append(cycle)
        del cycle
    elif kind == "both":
        kept.append(DistributedDataParallel(model))
        model = DistributedDataParallel(model, process_group=geocomm.sites().inside)
    elif kind == "fsdp1":
        kept.append(FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True))
    elif kind == "engine":
        kept.append(make_engine(0, "fp32", alone=True))
        model = kept[0].module
    optimizer = adamw(model)
    try:
        handle = local_steps(model, optimizer, LocalSettings(every=100))
        if kind == "later":
            kept.append(DistributedDataParallel(model))
        train_step(model, optimizer, "a", 0)
        handle.finish()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "begun"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bare", ["InvalidArgumentError", "DistributedDataParallel", "between the sites a, b", "sites().inside"]),
        ("part", ["InvalidArgumentError", "between the sites a, b"]),
        ("both", ["InvalidArgumentError", "between the sites a, b"]),
        ("later", ["InvalidArgumentError", "between the sites a, b"]),
        ("engine", ["InvalidArgumentError", "DeepSpeedEngine", "between the sites a, b"]),
        ("fsdp1", ["UnsupportedError", "FSDP1"]),
        ("inside", ["begun"]),
        ("deleted", ["begun"]),
    ],
)
def test_what_reduces_between_sites_around_a_bare_model_is_refused(ranks: Any, kind: str, words: list[str]) -> None:
    for said in ranks.run(_begun, kind):
        assert all(word in said for word in words), said
