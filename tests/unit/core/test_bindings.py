"""Which binding is loaded beside which torch, what is said where none fits, and what --version and doctor tell."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch

from geocomm.core import bindings as module
from geocomm.core import installation
from geocomm.core.bindings import (
    Binding,
    TorchBuild,
    fitting_binding,
    installed_bindings,
    installed_torch,
    why_none_fits,
)
from geocomm.core.installation import BuildFacts, build_facts

NAMES = ["torch2.9-cpu", "torch2.13-cpu", "torch2.13-cuda13", "torch2.14-cpu"]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The native folder of a wheel, with what is none of its bindings besides."""
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / f"_C{EXTENSION_SUFFIXES[0]}").touch()
    for name in ("torch2.13-rocm6", "torch-cpu", "torch2.15-cpu"):
        (tmp_path / name).mkdir()
    (tmp_path / "torch2.15-cpu" / "_C.cpython-38-x86_64-linux-gnu.so").touch()  # of another Python
    return tmp_path


def fits(wheel: Path, version: str, cuda: str | None) -> str | None:
    found = fitting_binding(TorchBuild(version, cuda), installed_bindings(wheel))
    return found and found.file.parent.name


def test_bindings_of_a_wheel_are_found_oldest_torch_first(wheel: Path) -> None:
    assert [binding.file.parent.name for binding in installed_bindings(wheel)] == NAMES


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [
        ("2.13.0+cpu", None, "torch2.13-cpu"),
        ("2.13.0+cu130", "13.0", "torch2.13-cuda13"),
        ("2.13.7+cu132", "13.2", "torch2.13-cuda13"),
        ("2.13.0+cu126", "12.6", "torch2.13-cpu"),
        ("2.14.1+cu130", "13.0", "torch2.14-cpu"),
        ("2.9.1", None, "torch2.9-cpu"),
        ("2.10.0", None, None),
        ("2.15.0", None, None),
        ("2.16.0a0+git1234", "13.3", None),
    ],
)
def test_binding_has_the_minor_version_of_torch_and_its_cuda_if_possible(
    wheel: Path, version: str, cuda: str | None, expected: str | None
) -> None:
    assert fits(wheel, version, cuda) == expected


def test_kernels_alone_do_not_fit_a_cpu_build(wheel: Path) -> None:
    only = [binding for binding in installed_bindings(wheel) if binding.cuda]
    cpu = TorchBuild("2.13.0+cpu", None)
    assert fitting_binding(cpu, only) is None
    assert "torch 2.13.0+cpu (a CPU build) is installed, and this geocomm was built for torch 2.13 CUDA 13;" in (
        why_none_fits(cpu, only)
    )


@pytest.mark.parametrize("version", ["2.10.0", "2.16.0"])
def test_torch_that_no_binding_fits_is_told_with_both_versions_and_the_ways_out(wheel: Path, version: str) -> None:
    told = why_none_fits(TorchBuild(version, None), installed_bindings(wheel))
    assert f"torch {version}" in told
    assert "torch 2.9 CPU, torch 2.13 CPU, torch 2.13 CUDA 13, torch 2.14 CPU" in told
    assert "--no-build-isolation --no-binary geocomm" in told


def test_source_tree_that_hides_an_installed_geocomm_is_named_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone, site = tmp_path / "clone", tmp_path / "site-packages"
    (clone / "csrc").mkdir(parents=True)
    (clone / "geocomm").mkdir()
    monkeypatch.setattr(module, "NATIVE", clone / "geocomm/_native")
    told = why_none_fits(TorchBuild("2.13.0", None), [])
    assert f"in the source tree {clone}, where the native module is not built: run `make build` there" in told
    (site / "geocomm-0.0.1.dist-info").mkdir(parents=True)
    (site / "geocomm-0.0.1.dist-info/METADATA").write_text("Name: geocomm\nVersion: 0.0.1\n")
    (site / "geocomm").mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    told = why_none_fits(TorchBuild("2.13.0", None), [])
    assert told.endswith(f"or work in another folder to use the one in {site / 'geocomm'}")


def test_torch_is_told_as_it_tells_itself() -> None:
    assert installed_torch() == TorchBuild(torch.__version__, torch.version.cuda)


def facts(monkeypatch: pytest.MonkeyPatch, wheel: Path, here: TorchBuild | None) -> BuildFacts | None:
    monkeypatch.setattr(installation, "installed_torch", lambda: here)
    monkeypatch.setattr(installation, "installed_bindings", lambda: installed_bindings(wheel))
    return build_facts()


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (TorchBuild("2.13.0+cu130", "13.0"), "for torch 2.13, with CUDA kernels"),
        (TorchBuild("2.13.0+cpu", None), "for torch 2.13, without CUDA kernels (torch is a CPU build)"),
        (
            TorchBuild("2.13.0+cu126", "12.6"),
            "for torch 2.13, without CUDA kernels (they are for CUDA 13, and torch is for CUDA 12.6)",
        ),
        (TorchBuild("2.10.0", None), "None"),
        (None, "None"),
    ],
)
def test_facts_are_those_of_the_binding_that_fits(
    monkeypatch: pytest.MonkeyPatch, wheel: Path, here: TorchBuild | None, expected: str
) -> None:
    assert str(facts(monkeypatch, wheel, here)) == expected


def test_kernels_that_were_not_built_are_explained_by_the_build(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> None:
    monkeypatch.setattr("geocomm._build_info.WHY_NO_CUDA", "no nvcc on PATH")
    told = facts(monkeypatch, wheel, TorchBuild("2.14.0+cu130", "13.0"))
    assert str(told) == "for torch 2.14, without CUDA kernels (no nvcc on PATH)"


def test_binding_says_what_it_is_for() -> None:
    assert [str(Binding((2, 13), cuda, Path())) for cuda in (None, 13)] == ["torch 2.13 CPU", "torch 2.13 CUDA 13"]
