"""What the views and their host memory say of a wrong machine; how they work is in tests/multiprocess/sync."""

from __future__ import annotations

import pytest
import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.integrations.zero_seams import engine_of
from geocomm.sync.local_steps.model.host_memory import host_zeros
from support.local_models import make_model


def test_module_is_no_engine() -> None:
    assert engine_of(make_model()) is None


def test_ordinary_host_memory_is_zeros() -> None:
    assert host_zeros(3, pinned=False).tolist() == [0, 0, 0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="memory can be pinned here")
def test_memory_that_cannot_be_pinned_is_an_error_that_says_how_much() -> None:
    with pytest.raises(InvalidArgumentError, match=r"2 MiB.*ulimit"):
        host_zeros(1 << 19, pinned=True)
