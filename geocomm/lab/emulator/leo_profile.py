"""Links by way of satellites in low Earth orbit: another satellite, and another path, every 15 s.

Of Starlink, measured: terminals change satellites in slots of 15 s, round trips of 20 to 60 ms stay within a slot and
jump between two, and around the change nothing arrives for 75 to 140 ms (arXiv:2601.08439; G. Huston, "Measuring
Starlink protocol performance", NANOG 92). Loss of 0.3 to 1 % comes in bursts.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

from geocomm.lab.emulator.emulated_links import WanConfigError, WanError
from geocomm.lab.emulator.emulated_wan import WanControl

SLOT_S = 15.0
ROUND_TRIP_S = (0.020, 0.060)
BLACKOUT_S = (0.05, 0.15)
MEAN_LOSS = (0.003, 0.01)
BURST_LOSS = 0.2
BURSTS = 3
"""The bursts of a slot. Their length follows from the mean loss: 75 to 250 ms each."""


def leo_changes(seed: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """What changes at both directions of a link, without end: when, in seconds, and the arguments of `set_link`."""
    draws = random.Random(seed)
    for begin in itertools.count(0.0, SLOT_S):
        there = begin + draws.uniform(*BLACKOUT_S)
        yield begin, {"up": False}
        yield there, {"up": True, "rtt": f"{draws.uniform(*ROUND_TRIP_S) * 1e3:.3f}ms", "loss": "0%"}
        length = SLOT_S * draws.uniform(*MEAN_LOSS) / BURST_LOSS / BURSTS
        part = (begin + SLOT_S - there) / BURSTS
        for number in range(BURSTS):
            start = there + part * number + draws.uniform(0, part - length)
            yield start, {"loss": f"{BURST_LOSS:.0%}"}
            yield start + length, {"loss": "0%"}


@contextlib.contextmanager
def leo_links(control: WanControl, sites: tuple[str, ...], seed: int) -> Generator[None]:
    """All links of a running emulation change so, each in its own way, while the context lasts; then they stay up."""
    ended = threading.Event()
    pairs = list(itertools.combinations(sites, 2))

    def change(pair: tuple[str, str], its_seed: int) -> None:
        began = time.monotonic()
        for at, changes in leo_changes(its_seed):
            if ended.wait(began + at - time.monotonic()):
                return
            try:
                control.set_link(*pair, **changes)
            except WanConfigError:
                raise
            except WanError:  # the run has ended
                return

    threads = [
        threading.Thread(target=change, args=(pair, seed * len(pairs) + number), name="geocomm-leo", daemon=True)
        for number, pair in enumerate(pairs)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread, pair in zip(threads, pairs, strict=True):
            thread.join()
            with contextlib.suppress(WanError):
                control.set_link(*pair, up=True, loss="0%")
