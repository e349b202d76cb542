"""Of which versions of DeepSpeed the private parts are known."""

from __future__ import annotations

import importlib.metadata

import pytest

from geocomm.integrations.deepspeed_seams import CHECKED_DEEPSPEED, deepspeed_problem


def test_deepspeed_that_the_tests_run_with_is_one_that_was_checked() -> None:
    try:
        importlib.metadata.version("deepspeed")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("DeepSpeed is not installed")
    assert deepspeed_problem() is None


@pytest.mark.parametrize("version", ["0.18.2", "0.190.0", "1.19.0", "0.20.0+unknown"])
def test_other_deepspeed_is_a_problem_with_what_to_install(version: str) -> None:
    problem = deepspeed_problem(version)
    assert problem is not None
    assert version in problem
    assert f"pip install 'deepspeed~={CHECKED_DEEPSPEED[-1]}" in problem


def test_patches_of_a_version_that_was_checked_are_let_through() -> None:
    for minor in CHECKED_DEEPSPEED:
        assert deepspeed_problem(f"{minor}.99") is None
