"""Histories of whole elastic runs by real agents, in virtual time.

`make simulate` looks at as many as there is time for. Each history is a process of its own, in which sets of texts have
the same order each time.
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
from support.whole_run.whole_run import WholeRun
history = WholeRun(int(sys.argv[1])).run()
print(json.dumps([history.broken, history.entries, history.seconds, sorted(history.faults.items())]))
"""


def history(seed: int) -> list[Any]:
    """What did not hold (empty: nothing), entries, virtual seconds, faults."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(seed)],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_goes_on_after_all_kinds_of_faults(seed: int) -> None:
    broken, entries, *_ = history(seed)
    assert not broken
    assert entries > 10
