"""Which tests go to the same worker of `pytest -n` (make python-test): those that share a set-up. And their order.

And no limit to what one example of hypothesis takes, which depends on the machine. With GEOCOMM_REQUIRE_ALL=1 a test
fails that would be skipped for want of something that a machine for tests can have.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Until the tests are collected: what is imported and made for that stays, and going through it takes half of the time.
gc.disable()
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
pytest.register_assert_rewrite("support")
from support.long_modules import LONG_MODULES  # noqa: E402 - after the line above

# Where `make build` has compiled DeepSpeed's operator. Elsewhere the first engine of the tests would compile it again.
if sys.prefix != sys.base_prefix:
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
# As under make: `geocomm`, cmake and ninja of this Python. Another version of ninja would compile the operator again.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# What tests start would ignore Ctrl+C, as does what a shell starts in the background.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
if renamed := [module for module in LONG_MODULES if not (TESTS / module).exists()]:
    raise pytest.UsageError(f"LONG_MODULES names what is not there: {', '.join(renamed)}")

MAY_SKIP = (
    *("CUDA", "pinned"),  # a GPU is there, or is not
    *("lightning", "torchft"),  # make installs none of them
    *("torch before 2.", "has a GIL"),  # another torch or Python was chosen
    *("BBR", "too busy"),  # the kernel's, and the moment's
    "inside one site",  # one of a test's layouts, in which Gloo does the work
)
"""Words of the reasons for which a test may be skipped in spite of GEOCOMM_REQUIRE_ALL=1."""

BEGIN_FIRST = ("/elastic/", "/train/", "/installation/", "/group/", "/data/", "/sync/", "/observe/", "/multiprocess/")
"""Parts of paths, in the order in which their tests begin: long ones first, so that all workers end together."""


@pytest.fixture(scope="session", autouse=True)
def _own_data_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["GEOCOMM_DATA_CACHE"] = str(tmp_path_factory.mktemp("data-cache"))
    os.environ["GEOCOMM_DATA_CACHE_SIZE"] = "1gb"  # without a size, a disk that is nearly full fails tests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """See MAY_SKIP: tests, which say it by a marker, in a fixture or in the body."""
    report = yield
    _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """See MAY_SKIP: whole modules, by importorskip."""
    report = yield
    _judge_skip(report)
    return report


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and os.environ.get("GEOCOMM_REQUIRE_ALL") == "1":
        assert isinstance(report.longrepr, tuple)
        _, _, reason = report.longrepr
        if not any(word in reason for word in MAY_SKIP):
            report.outcome = "failed"
            report.longrepr = f"GEOCOMM_REQUIRE_ALL=1, but: {reason}"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of a module by its fixtures that live longer than one test, each parameter by itself.

    Those of a module that names its group stay in that one. What takes longest begins first (BEGIN_FIRST). Tests of
    LONG_MODULES get their marker.
    """
    for item in items:
        if os.path.relpath(item.path, TESTS) in LONG_MODULES:
            item.add_marker(pytest.mark.long)
        if isinstance(item, pytest.Function) and item.get_closest_marker("xdist_group") is None:
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            shared = [
                f"{name}-{parameters.get(name)}".replace("]", "")  # xdist takes nothing before a `]` for a group
                for name, definitions in item._fixtureinfo.name2fixturedefs.items()
                if definitions[-1].scope == "module"
            ]
            if shared:
                item.add_marker(pytest.mark.xdist_group("-".join([item.path.stem, *sorted(shared)])))
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """See gc.disable() above."""
    gc.freeze()
    gc.enable()


def _place(item: pytest.Item) -> int:
    return next((place for place, part in enumerate(BEGIN_FIRST) if part in str(item.path)), len(BEGIN_FIRST))
