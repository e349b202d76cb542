"""Histories of whole elastic runs by real agents, in virtual time.

`make simulate` looks at as many as there is time for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
_PROGRAM = """
import contextlib, json, sys
from support.whole_run.mutants import MUTANTS
from support.whole_run.whole_run import WholeRun
seed, mutant, is_put = json.loads(sys.argv[1])
there = MUTANTS[mutant].world if mutant else {}
with MUTANTS[mutant].put() if is_put else contextlib.nullcontext():
    history = WholeRun(seed, **there).run()
print(json.dumps([history.broken, history.entries, history.digest]))
"""


def history(seed: int, hash_seed: int, mutant: str = "", *, is_put: bool = False) -> tuple[str, int, str]:
    """What did not hold (empty: nothing), entries, and the digest of all that was said, in a process of its own that
    orders sets of texts by hash_seed. mutant: in the world by which that is found; is_put: it is there."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([seed, mutant, is_put])],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
    )
    broken, entries, digest = json.loads(done.stdout)
    return broken, entries, digest


@pytest.mark.parametrize("seed", range(2))
def test_a_run_goes_on_after_all_kinds_of_faults_in_the_same_way_in_each_process(seed: int) -> None:
    broken, entries, digest = history(seed, 1)
    assert not broken
    assert entries > 10
    assert history(seed, 2) == (broken, entries, digest)


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        ("folders for strangers", 0),
        ("a hello is life enough", 0),
        ("the leader can be removed", 0),
        ("any folder is a snapshot", 0),
        ("snapshots wait for a leader that lasts", 0),
    ],
)
def test_a_fault_that_geocomm_had_is_found(mutant: str, seed: int) -> None:
    assert not history(seed, 1, mutant)[0]
    assert history(seed, 1, mutant, is_put=True)[0]
