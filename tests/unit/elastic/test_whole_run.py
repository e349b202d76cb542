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
import json, sys
from support.whole_run.whole_run import WholeRun
history = WholeRun(int(sys.argv[1])).run()
print(json.dumps([history.broken, history.entries, history.digest]))
"""


def history(seed: int, hash_seed: int) -> tuple[str, int, str]:
    """What did not hold (empty: nothing), entries, and the digest of all that was said, in a process of its own that
    orders sets of texts by hash_seed."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(seed)],
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
