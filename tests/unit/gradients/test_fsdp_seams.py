"""The private parts of torch: of which versions they are known."""

from __future__ import annotations

import pytest

from geocomm.core.errors import UnsupportedError
from geocomm.gradients.fsdp_seams import CHECKED_TORCH, require_checked_torch


def test_torch_that_the_tests_run_with_is_one_that_was_checked() -> None:
    require_checked_torch()


@pytest.mark.parametrize("version", ["1.13.0", "2.1.3", "2.130.0+cpu", "3.0.0a0+git1234"])
def test_other_torch_is_refused_with_those_that_were_checked(version: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        require_checked_torch(version)
    assert version in str(caught.value)
    assert all(minor in str(caught.value) for minor in CHECKED_TORCH)


def test_builds_of_a_version_that_was_checked_are_let_through() -> None:
    for minor in CHECKED_TORCH:
        require_checked_torch(f"{minor}.1+cu130")
