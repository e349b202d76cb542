"""Histories of whole elastic runs in virtual time, on all cores: `make simulate`.

Prints the seed of each history in which something does not hold, and ends with 1 then. --seed replays one, with its
log: equal seeds give equal histories, whatever the process. --twice checks that, each seed in two processes.
--mutants puts faults back that geocomm had, one at a time, and tells which history, of the kind that shows it, finds
each.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import gc
import multiprocessing
import os
import sys
import time

from support.whole_run.mutants import MUTANTS
from support.whole_run.whole_run import History, WholeRun

SPAWN = multiprocessing.get_context("spawn")


def whole_run(seed: int, *, log: bool = False) -> WholeRun:
    """The history of a seed; in one of four etcd says who leads, in one of three the run deals data, and in one of five
    there are regions."""
    return WholeRun(seed, with_etcd=seed % 4 == 3, data=seed % 3 == 1, regions=seed % 5 == 1, log=log)


def begin_process() -> None:
    """One that plays histories, and does nothing else."""
    gc.freeze()
    gc.set_threshold(100_000)


def simulate(seed: int) -> History:
    """A history. What refers to itself in it goes before the next one."""
    history = whole_run(seed).run()
    gc.collect()
    return history


def first_found(mutant: str, seeds: range) -> History | None:
    """The first of these histories in which a fault that was put back is found; None: it is not."""
    with MUTANTS[mutant].put():
        world = MUTANTS[mutant].world
        return next((history for seed in seeds if (history := WholeRun(seed, **world).run()).broken), None)


def find_mutants(seeds: range) -> int:
    """Whether each fault that is put back is found."""
    missed, cores = list[str](), len(os.sched_getaffinity(0))
    with concurrent.futures.ProcessPoolExecutor(cores, SPAWN) as pool:
        finding = {pool.submit(first_found, mutant, seeds): mutant for mutant in MUTANTS}
        for one in concurrent.futures.as_completed(finding):
            mutant, history = finding[one], one.result()
            if history is None:
                missed.append(mutant)
            by = "not found" if history is None else f"seed {history.seed}: {history.broken.splitlines()[0][:90]}"
            print(f"{mutant:45} {by}", flush=True)
    print(f"simulate: {len(MUTANTS) - len(missed)} of {len(MUTANTS)} faults are found within {len(seeds)} histories")
    return 1 if missed else 0


def replay(seed: int) -> int:
    """One history, with its log."""
    history = whole_run(seed, log=True).run()
    print(f"seed {seed}: {history.broken or 'all holds'} ({history.seconds:.0f} s, {history.entries} entries)")
    return 1 if history.broken else 0


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories, at most")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seconds", type=float, default=60.0, help="no other history begins after this time")
    parser.add_argument("--seed", type=int, help="replay this history, with its log")
    parser.add_argument("--twice", action="store_true", help="each in two processes, which have to agree")
    parser.add_argument("--mutants", action="store_true", help="find faults that are put back, within these seeds")
    given = parser.parse_args()
    if given.mutants:
        return find_mutants(range(given.first, given.first + given.seeds))
    if given.seed is not None:
        return replay(given.seed)
    end, histories = time.monotonic() + given.seconds, list[History]()
    differ, cores = list[int](), len(os.sched_getaffinity(0))
    with contextlib.ExitStack() as stack:
        # Each pool's processes are others, which hash texts in another way.
        pools = [
            stack.enter_context(concurrent.futures.ProcessPoolExecutor(cores, SPAWN, begin_process))
            for _ in range(1 + given.twice)
        ]
        seeds = iter(range(given.first, given.first + given.seeds))
        under_way: list[list[concurrent.futures.Future[History]]] = []
        while True:
            while len(under_way) < 2 * cores and time.monotonic() < end and (seed := next(seeds, None)) is not None:
                under_way.append([pool.submit(simulate, seed) for pool in pools])
            if not under_way:
                break
            history, *again = [one.result() for one in under_way.pop(0)]
            histories.append(history)
            if history.broken:
                print(f"seed {history.seed}: {history.broken}", flush=True)
            if any(one.digest != history.digest for one in again):
                differ.append(history.seed)
                print(f"seed {history.seed}: another history in another process", flush=True)
    broken = [one.seed for one in histories if one.broken]
    print(
        f"simulate: {len(histories)} histories, {sum(one.seconds for one in histories) / 3600:.1f} h of virtual time, "
        f"{sum(one.entries for one in histories)} entries; {len(broken)} in which something does not hold"
        + (f": make simulate SEED={broken[0]} replays the first" if broken else "")
        + (f"; {len(differ)} that differ from process to process" if given.twice else "")
    )
    return 1 if broken or differ else 0


if __name__ == "__main__":
    sys.exit(main())
