"""For the process that workers of pytest-xdist are forked from: it collects the tests.

So each worker finds their modules imported, and their assertions rewritten, which takes longer than most tests.
COLLECTED_TESTS: arguments of pytest as JSON. Nothing of `support` is imported here, before pytest rewrites that.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

tests = json.loads(os.environ["COLLECTED_TESTS"])
told = os.dup(1)
with Path(os.devnull).open("w") as nothing:
    os.dup2(nothing.fileno(), 1)
try:
    # Without capture: loggers would keep its files. What cannot be collected each worker says.
    pytest.main(["--collect-only", "-q", "-s", "-n", "0", "-p", "no:cacheprovider", *tests])
finally:
    os.dup2(told, 1)
    os.close(told)
