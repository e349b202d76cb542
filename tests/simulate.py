"""Histories of whole elastic runs in virtual time, on all cores: `make simulate`.

Prints the seed of each history in which something does not hold, and ends with 1 then. --seed replays one, with its
log. Equal seeds give equal histories as a rule: sets of texts have the same order in each process, sets of tasks not.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import time

from support.whole_run.whole_run import History, WholeRun

_HASH_SEED = "0"


def simulate(seed: int) -> History:
    """In a process of its own."""
    return WholeRun(seed).run()


def replay(seed: int) -> int:
    """One history, with its log."""
    history = WholeRun(seed, log=True).run()
    print(f"seed {seed}: {history.broken or 'all holds'} ({history.seconds:.0f} s, {history.entries} entries)")
    return 1 if history.broken else 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories, at most")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="no other history begins after this time")
    parser.add_argument("--seed", type=int, help="replay this history, with its log")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != _HASH_SEED:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {"PYTHONHASHSEED": _HASH_SEED})
    if given.seed is not None:
        return replay(given.seed)
    end, broken, entries, passed, took = time.monotonic() + given.seconds, list[History](), 0, 0.0, 0
    cores = len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(cores, max_tasks_per_child=50) as pool:
        seeds = iter(range(given.first, given.first + given.seeds))
        under_way: set[concurrent.futures.Future[History]] = set()
        while True:
            while len(under_way) < 2 * cores and time.monotonic() < end and (seed := next(seeds, None)) is not None:
                under_way.add(pool.submit(simulate, seed))
            if not under_way:
                break
            done, under_way = concurrent.futures.wait(under_way, return_when=concurrent.futures.FIRST_COMPLETED)
            for one in done:
                history = one.result()
                took, entries, passed = took + 1, entries + history.entries, passed + history.seconds
                if history.broken:
                    broken.append(history)
                    print(f"seed {history.seed}: {history.broken}", flush=True)
    print(
        f"simulate: {took} histories, {passed / 3600:.1f} h of virtual time, {entries} entries; "
        f"{len(broken)} in which something does not hold"
        + (f": make simulate SEED={broken[0].seed} replays the first" if broken else "")
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
