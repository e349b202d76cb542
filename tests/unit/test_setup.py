"""When setup.py builds the CUDA kernels, and what it says where it does not; which addresses the metadata has."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import setuptools

SETUP = Path(__file__).parents[2] / "setup.py"
Why = Callable[[str | None], str]


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py gives to setuptools, once it has been `run`; nothing is built."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    return given


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, metadata: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """Runs setup.py, and returns what it defines."""
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # which setup.py sets
    monkeypatch.delenv("GEOCOMM_CUDA", raising=False)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    return lambda: runpy.run_path(str(SETUP))


@pytest.fixture
def why_no_cuda(run: Callable[[], dict[str, Any]]) -> Why:
    """setup.py's function of this name."""
    return run()["why_no_cuda"]


@pytest.fixture
def nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Makes nvcc of a version the only program on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(version: str) -> None:
        program = tmp_path / "nvcc"
        program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.88'\n")
        program.chmod(0o755)

    return make


def test_kernels_are_built_by_an_nvcc_of_the_major_version_of_torch(
    why_no_cuda: Why, nvcc: Callable[[str], None]
) -> None:
    nvcc("13.2")
    assert why_no_cuda("13.0") == ""
    assert why_no_cuda("12.8") == "nvcc is of CUDA 13.2, torch of CUDA 12.8"
    nvcc("12.8")
    assert why_no_cuda("12.6") == ""


def test_nvcc_that_does_not_know_all_architectures_is_too_old(why_no_cuda: Why, nvcc: Callable[[str], None]) -> None:
    nvcc("12.4")
    assert why_no_cuda("12.8") == "nvcc is of CUDA 12.4, which is older than 12.8"


def test_kernels_need_nvcc_and_a_cuda_build_of_torch(why_no_cuda: Why, nvcc: Callable[[str], None]) -> None:
    assert why_no_cuda("13.0") == "no nvcc on PATH; torch needs the one of CUDA 13.0"
    nvcc("13.0")
    assert why_no_cuda(None) == "torch is a CPU build"


def test_kernels_are_not_cross_built(
    why_no_cuda: Why, nvcc: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc("13.0")
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "linux-sparc64")
    assert why_no_cuda("13.0") == "they are not cross-built, and this is for sparc64"


def test_off_builds_without_where_all_is_there(
    why_no_cuda: Why, nvcc: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc("13.0")
    monkeypatch.setenv("GEOCOMM_CUDA", "off")
    assert why_no_cuda("13.0") == "built with GEOCOMM_CUDA=off"


def test_on_ends_the_build_with_the_reason(
    why_no_cuda: Why, nvcc: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc("12.4")
    monkeypatch.setenv("GEOCOMM_CUDA", "on")
    with pytest.raises(SystemExit, match=r"GEOCOMM_CUDA=on, but nvcc is of CUDA 12\.4, torch of CUDA 13\.0"):
        why_no_cuda("13.0")


def test_another_word_is_refused_with_those_that_are_known(why_no_cuda: Why, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOCOMM_CUDA", "yes")
    with pytest.raises(SystemExit, match="auto, on or off"):
        why_no_cuda(None)


def test_metadata_leads_to_the_repository_that_builds_it(
    run: Callable[[], dict[str, Any]], metadata: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/geocomm")
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    run()
    assert metadata["project_urls"]["Source"] == "https://git.example/someone/geocomm"
    readme = metadata["long_description"]
    assert "](https://git.example/someone/geocomm/blob/main/docs/reference/limits.md)" in readme
    assert not re.findall(r"\]\((?!https://|#)", readme)


def test_metadata_outside_of_a_repositorys_workflow_has_no_addresses(
    run: Callable[[], dict[str, Any]], metadata: dict[str, Any]
) -> None:
    run()
    assert metadata["project_urls"] == {}
    assert metadata["long_description"] == (SETUP.parent / "README.md").read_text()
