"""PyTorch's own distributed tests, over geocomm: `torch.testing._internal.distributed.distributed_test` of the wheel.

Read from the environment at import: WORLD_SIZE, and SUITE_SITES, the site of each rank ("a,b,b"; empty: Gloo itself,
to compare with). The suite's decorators are evaluated as Gloo's, so that nothing is skipped that Gloo runs; then the
backend gets its own name, under which the tests make their groups and look for their profiler events.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from typing import Any

SITES = [site for site in os.environ.get("SUITE_SITES", "").split(",") if site]
NAME = "geocomm" if SITES else "gloo"

os.environ["BACKEND"] = "gloo"
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())  # each test gets its own in setUp

import torch.multiprocessing  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

os.environ["BACKEND"] = suite.BACKEND = NAME
if len(set(SITES)) == len(SITES):  # what stays inside a site is Gloo's, in profiles too
    suite.PROFILING_SUPPORTED_BACKENDS.append(NAME)
    suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(NAME)

# Their bodies prepare modules on the CPU for the name "gloo" only.
_ASK_FOR_GLOO = ("test_accumulate_gradients_",)
# They look at profiler events, which over sites name the parts of these operations (docs/reference/limits.md).
_PROFILED_IN_PARTS = ("test_all_reduce_coalesced_", "test_all_gather_coalesced_", "test_all_to_all_single_equal_")


class TorchSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """The tests of the suite, each on forked ranks: spawned ones would spend most of the time importing torch."""

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def _spawn_processes(self) -> None:
        context = torch.multiprocessing.get_context("forkserver")
        environment = dict(os.environ)

        def process(target: Callable[..., None], args: tuple[Any, ...], **more: Any) -> Any:
            return context.Process(target=_rank_process, args=(environment, target, *args), **more)

        self._start_processes(process)

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Called by a rank once it has its process group."""
        if test_name.startswith(_ASK_FOR_GLOO):
            suite.BACKEND = "gloo"
        if test_name.startswith(_PROFILED_IN_PARTS) and NAME == "geocomm":
            suite.PROFILING_SUPPORTED_BACKENDS[:] = [
                name for name in suite.PROFILING_SUPPORTED_BACKENDS if name != NAME
            ]
        super().run_test(test_name, parent_pipe)


def _add_tests_of_mpi() -> None:
    """all_to_all on CPUs, which the suite skips for all but MPI, though Gloo has it."""
    spec = importlib.util.find_spec(suite.__name__)
    assert spec
    assert spec.loader
    as_mpi = importlib.util.module_from_spec(spec)
    os.environ["BACKEND"] = "mpi"
    spec.loader.exec_module(as_mpi)
    os.environ["BACKEND"] = as_mpi.BACKEND = NAME
    for name, test in vars(as_mpi.DistributedTest._DistTestBase).items():
        if name.startswith("test_all_to_all"):
            setattr(TorchSuite, name, test)


_add_tests_of_mpi()


def _rank_process(environment: dict[str, str], target: Callable[..., None], rank: int, *args: Any, **more: Any) -> None:
    """A rank, in the environment that the test has now and the server of forks had not."""
    os.environ.clear()
    os.environ.update(environment)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": "0"})
    if SITES:
        os.environ["GEOCOMM_SITE"] = SITES[rank]
    target(rank, *args, **more)
