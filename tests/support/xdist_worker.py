"""A worker of pytest-xdist, as a program: what execnet starts by `python -c`, which reads from its input what to do."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # and not where multiprocessing imports it once more
    exec(eval(sys.stdin.readline()))
