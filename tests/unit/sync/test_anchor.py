"""The outer state of a fragment, and what is made of it."""

from __future__ import annotations

import torch

from geocomm.sync.local_steps.model.fragments import digest


def test_digest_is_that_of_values_and_text() -> None:
    values = torch.arange(1000, dtype=torch.float32)
    other = values.clone()
    other[999] = 998.5
    assert digest([values], "1") == digest([values.clone()], "1")
    assert len({digest([values], "1"), digest([values], "2"), digest([other], "1"), digest([values, values], "1")}) == 4
