"""The private parts of DeepSpeed: of which versions they are known."""

from __future__ import annotations

import importlib.metadata

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.deepspeed_seams import CHECKED_DEEPSPEED, require_checked_deepspeed


def test_deepspeed_that_the_tests_run_with_is_one_that_was_checked() -> None:
    try:
        importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("DeepSpeed is not installed")
    require_checked_deepspeed()


@pytest.mark.parametrize("version", ["0.18.2", "0.190.0", "1.19.0", "0.20.0+unknown"])
def test_other_deepspeed_is_refused_with_what_to_install(version: str) -> None:
    with pytest.raises(BadInput) as caught:
        require_checked_deepspeed(version)
    assert version in str(caught.value)
    assert f"pip install 'deepspeed~={CHECKED_DEEPSPEED[-1]}" in str(caught.value)


def test_patches_of_a_version_that_was_checked_are_let_through() -> None:
    for minor in CHECKED_DEEPSPEED:
        require_checked_deepspeed(f"{minor}.99")
