"""`geocomm doctor` on GPUs: what it says of those that torch sees, and when it says that the build lacks kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from geocomm.core.installation import BuildFacts
from geocomm.observe.doctor.doctor_machine import (
    LEAST_CAPABILITY,
    Finding,
    Gpu,
    State,
    coding_finding,
    gpu_findings,
    has_kernels_for,
)

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0))
V100 = Gpu("Tesla V100-SXM2-16GB", (7, 0))
WITH = BuildFacts("2.13", cuda_kernels=True, why_no_cuda="")
NO_NVCC = "no nvcc on PATH; torch needs the one of CUDA 13.0"
WITHOUT = BuildFacts("2.13", cuda_kernels=False, why_no_cuda=NO_NVCC)


def seen_and_kernels(gpus: list[Gpu], build: BuildFacts) -> tuple[Finding, Finding]:
    seen, kernels = gpu_findings(gpus, "13.0", "580.65.06", build)
    return seen, kernels


def test_gpus_are_counted_by_name_and_a_build_with_kernels_is_right_for_them() -> None:
    seen, kernels = seen_and_kernels([H100] * 8, WITH)
    assert (seen.value, seen.state) == ("8 x NVIDIA H100 80GB HBM3", State.NOTE)
    assert kernels.state == State.OK


def test_gpu_without_kernels_is_a_warning_with_the_reason_and_the_command() -> None:
    _, kernels = seen_and_kernels([H100], WITHOUT)
    assert kernels.state == State.WARNING
    assert NO_NVCC in kernels.value
    assert "CUDA 13.0" in kernels.fix
    assert "GEOCOMM_CUDA=on pip install --no-build-isolation" in kernels.fix


def test_gpu_that_is_older_than_the_kernels_is_a_warning_that_names_it() -> None:
    _, kernels = seen_and_kernels([H100, V100], WITH)
    assert kernels.state == State.WARNING
    assert V100.name in kernels.value
    assert H100.name not in kernels.value
    assert "8.0" in kernels.fix
    assert "the CPU compresses" in kernels.fix


def test_kernels_are_for_gpus_that_are_new_enough_and_of_a_build_that_has_them() -> None:
    assert has_kernels_for([H100], WITH)
    assert not has_kernels_for([H100, V100], WITH)
    assert not has_kernels_for([H100], WITHOUT)
    assert not has_kernels_for([H100], None)
    assert not has_kernels_for([], WITH)


def test_codecs_are_named_by_where_they_are_coded_sooner() -> None:
    places = {"int8": 0, "int4": 0, "balanced": 3 << 20, "tiny": None}
    finding = coding_finding(places, in_batches=True)
    assert finding.value == "on the GPU: int8, int4; on the GPU from 3.0 MiB on: balanced; on the host: tiny"
    assert "GEOCOMM_GPU_BATCHES=1" in coding_finding(places, in_batches=False).value


def test_least_capability_is_that_of_the_build() -> None:
    text = (Path(__file__).parents[3] / "CMakeLists.txt").read_text(encoding="utf-8")
    (listed,) = re.findall(r"GEOCOMM_CUDA_ARCHITECTURES ([\w -]+) CACHE", text)
    least = min(int(one.removesuffix("-real")) for one in listed.split())
    assert divmod(least, 10) == LEAST_CAPABILITY


@pytest.mark.parametrize(("torch_cuda", "words"), [("", "CPU build"), ("13.0", "sees no GPU")])
def test_driver_whose_gpus_torch_does_not_see_is_a_warning(torch_cuda: str, words: str) -> None:
    seen, _ = gpu_findings([], torch_cuda, "580.65.06", WITH)
    assert seen.state == State.WARNING
    assert words in seen.value
    assert seen.fix


def test_machine_without_gpus_is_told_no_fix() -> None:
    for build in (WITHOUT, None):
        found = list(gpu_findings([], "", "", build))
        assert {finding.state for finding in found} == {State.NOTE}
        assert not [finding for finding in found if finding.fix]
