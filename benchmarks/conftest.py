"""Fixtures of bench_codec.py, and the report that it leaves."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import training_data
from bench_codec_report import KernelRow, RateRow, write_results

from geocomm.lab.bench.bench_report import Conditions

ROOT = Path(__file__).resolve().parents[1]
_FRAME = 1 << 18
_KERNELS = pytest.StashKey[list[KernelRow]]()
_RATES = pytest.StashKey[list[RateRow]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Size and effort of the codec benchmark."""
    group = parser.getgroup("codec benchmark")
    group.addoption("--elements", type=int, default=32 << 20, help="float32 numbers of each data set (default 32 Mi)")
    group.addoption("--rounds", type=int, default=7, help="rounds of each row (default 7)")
    group.addoption("--results", type=Path, default=ROOT / "benchmarks/results", help="folder of the report")


def pytest_configure(config: pytest.Config) -> None:
    """Room for the rows; the conditions are those at the start."""
    config.stash[_KERNELS], config.stash[_RATES] = [], []
    config.codec_conditions = Conditions.here(shlex.join(["python -m pytest", *sys.argv[1:]]))


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return request.config.getoption("--rounds")


@pytest.fixture
def kernel_rows(request: pytest.FixtureRequest) -> list[KernelRow]:
    return request.config.stash[_KERNELS]


@pytest.fixture
def rate_rows(request: pytest.FixtureRequest) -> list[RateRow]:
    return request.config.stash[_RATES]


@pytest.fixture(scope="session")
def values_of(request: pytest.FixtureRequest) -> Callable[[str], torch.Tensor]:
    """Data by name: "gaussian", or one of training_data.NAMES, repeated to the wanted size. One is kept in memory."""
    elements = max(request.config.getoption("--elements") // _FRAME, 1) * _FRAME

    torch.set_num_threads(1)  # of the peers

    @functools.lru_cache(maxsize=1)
    def values(name: str) -> torch.Tensor:
        if name == "gaussian":
            return torch.randn(elements, generator=torch.Generator().manual_seed(0))
        real = training_data.load(name, ROOT / "build/codec-data")
        return real.repeat(-(-elements // real.numel()))[:elements].clone()

    return values


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the rows, if there are any."""
    kernels, rates = session.config.stash[_KERNELS], session.config.stash[_RATES]
    if not kernels and not rates:
        return
    folder = session.config.getoption("--results")
    path = write_results(kernels, rates, session.config.codec_conditions, folder, "codec-speed")
    session.config.pluginmanager.get_plugin("terminalreporter").write_line(f"written: {path}")
