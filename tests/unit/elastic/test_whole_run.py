"""Histories of whole elastic runs by real agents, in virtual time; and faults of earlier versions are found by them.

`make simulate` looks at as many as there is time for. Each history is a process of its own: sets have the same order in
each then, so that equal seeds give equal histories.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
_PROGRAM = """
import json, sys
from support.whole_run.mutants import MUTANTS
from support.whole_run.whole_run import FAULTS, WholeRun
seed, kinds, mutant = json.loads(sys.argv[1])
with MUTANTS[mutant]():
    history = WholeRun(seed, faults={kind: FAULTS[kind] for kind in kinds or FAULTS}).run()
print(json.dumps([history.broken, history.entries, history.seconds, sorted(history.faults.items())]))
"""


def history(seed: int, kinds: list[str] | None = None, mutant: str = "none") -> list[Any]:
    """What did not hold (empty: nothing), entries, virtual seconds, faults."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([seed, kinds, mutant])],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_after_all_kinds_of_faults(seed: int) -> None:
    broken, entries, *_ = history(seed)
    assert not broken
    assert entries > 10


def test_equal_seeds_give_equal_histories() -> None:
    assert history(11) == history(11)


@pytest.mark.parametrize(("mutant", "kinds", "seed"), [("a need is lost", ["line", "uplink", "one way"], 30)])
def test_a_fault_of_an_earlier_version_is_found(mutant: str, kinds: list[str], seed: int) -> None:
    assert history(seed, kinds, mutant)[0]
    assert not history(seed, kinds)[0]
