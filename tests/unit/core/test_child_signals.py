"""Signals to children that asyncio waits for: their exit status stays theirs."""

from __future__ import annotations

import ast
import asyncio
import signal
from pathlib import Path

import pytest

import geocomm
from geocomm.core.child_processes import send_signal

PACKAGE = Path(geocomm.__file__).parent
WITH_CHILDREN = [path for path in sorted(PACKAGE.rglob("*.py")) if "create_subprocess_exec" in path.read_text()]


def test_signal_ends_a_child_and_is_nothing_to_one_that_has_ended() -> None:
    async def work() -> int:
        process = await asyncio.create_subprocess_exec("sleep", "600")
        send_signal(process, signal.SIGTERM)
        status = await process.wait()
        send_signal(process, signal.SIGTERM)
        return status

    assert asyncio.run(work()) == -signal.SIGTERM


@pytest.mark.parametrize("path", WITH_CHILDREN, ids=lambda path: path.stem)
def test_asyncios_own_methods_are_not_used(path: Path) -> None:
    called = {node.func.attr for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}  # fmt: skip
    of_popen = {"terminate"} if path.stem == "run_at_hub" else set[str]()  # of the collector, a subprocess.Popen
    assert not (called & {"send_signal", "terminate", "kill"}) - of_popen
