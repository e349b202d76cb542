"""A rank of `bench_why.py`: steps of a sleep and some all-reduces, or local steps, as its environment says."""

from __future__ import annotations

import ctypes
import math
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import geocomm
from geocomm.core.typed_torch import all_reduce
from geocomm.lab.emulator.emulated_wan import WanControl, find_control

SITE = os.environ["GEOCOMM_SITE"]
TOKENS = 1000


def text(name: str, default: str = "") -> str:
    """What the environment says."""
    return os.environ.get(f"WHY_{name}", default)


def number(name: str, default: float = 0.0) -> float:
    """What the environment says."""
    return float(text(name) or default)


def change_line(change: str) -> None:
    """Change what site0 and site1 have between them: `rate=15mbit`."""
    name, value = change.split("=")
    wan = WanControl(find_control())
    if name == "rate":
        wan.set_link("site0", "site1", rate=value)
    else:
        wan.set_link("site0", "site1", rtt=value)


def cut_line(seconds: float) -> None:
    """No packet passes between site0 and site1 for so long."""
    wan = WanControl(find_control())
    wan.set_link("site0", "site1", up=False)
    time.sleep(seconds)
    wan.set_link("site0", "site1", up=True)


def spent(seconds: float) -> float:
    """Wait; how long that was. Of 0, nothing is asked of a machine that may be busy."""
    began = time.monotonic()
    if seconds:
        time.sleep(seconds)
    return time.monotonic() - began


class Faults:
    """What goes wrong at this rank, step by step."""

    def __init__(self) -> None:
        self._chance = random.Random(f"{text('SEED')} {SITE}")
        self._turn = random.Random(text("SEED"))
        self._phase = random.Random(text("SEED")).randrange(1, 8)
        if number("LOCK") and SITE == "site0":
            threading.Thread(target=self._lock, daemon=True).start()
        if number("FREEZE") and SITE == "site0":
            threading.Thread(target=self._freeze, daemon=True).start()
        self._here = text("PAUSE_SITE") == SITE

    def before(self, step: int) -> None:
        """Before the computation of a step."""
        every = int(number("PAUSE_EVERY"))
        hit = self._here and every > 0 and step % every == self._phase % every
        if hit and number("STOP"):
            wait = self._chance.uniform(0, 0.3)
            stop = f"sleep {wait:.3f}; kill -STOP $PPID; sleep {number('STOP')}; kill -CONT $PPID"
            subprocess.Popen(["/bin/sh", "-c", stop])
        elif hit:
            time.sleep(number("PAUSE"))
        if number("TURNS"):
            late = f"site{self._turn.randrange(2)}"
            time.sleep(number("TURNS") if late == SITE else 0.0)
        if SITE == "site0" and step == int(number("AT", -1)):
            if text("CHANGE"):
                change_line(text("CHANGE"))
            if number("DOWN"):
                threading.Thread(target=cut_line, args=(number("DOWN"),), daemon=True).start()
        if SITE == "site0" and text("JUMPS") and step > 2:
            change_line(text("JUMPS").split(",")[self._turn.random() < 0.75])

    def _freeze(self) -> None:
        """The line stops now and then."""
        while True:
            time.sleep(self._chance.uniform(0.5, 2.0))
            cut_line(number("FREEZE"))

    def _lock(self) -> None:
        """Python's lock is held now and then."""
        hold = ctypes.PyDLL(None).usleep
        while True:
            time.sleep(self._chance.uniform(0.2, 1.0))
            hold(int(1e6 * number("LOCK")))


def train(steps: int, exchange: Callable[[], None], step_number: Callable[[int], int]) -> None:
    """Steps with their faults. exchange: what follows the computation."""
    faults = Faults()
    slow = text("SLOW_SITE") == SITE
    compute = number("COMPUTE", 0.1) + (number("SLOW") if slow else 0.0)
    every = int(number("CHECKPOINT_EVERY"))
    until = time.monotonic() + (number("SECONDS") or math.inf)  # sites of local steps end together
    for step in range(steps):
        if time.monotonic() > until:
            break
        loaded = spent(number("INPUT"))
        faults.before(step)
        time.sleep(compute)  # an accelerator computes: it takes no core
        exchange()
        saved = spent(number("CHECKPOINT") if every and step % every == every // 2 else 0.0)
        geocomm.report_step(
            step_number(step), input_seconds=loaded, checkpoint_seconds=saved, tokens=TOKENS, of_steps=steps
        )


def each_step(steps: int) -> None:
    """All-reduces in each step."""
    generator = torch.Generator()
    generator.manual_seed(int(number("SEED")))
    elements, operations = int(number("KIB", 1024) * 256), int(number("OPERATIONS", 2))
    tensors = [torch.randn(elements, generator=generator) for _ in range(operations)]

    def exchange() -> None:
        for tensor in tensors:
            all_reduce(tensor)
            tensor /= dist.get_world_size()

    train(steps, exchange, lambda step: step + 1)


def local(steps: int) -> None:
    """A round now and then."""
    size = int(number("KIB", 1024)) // 2
    model = torch.nn.Sequential(torch.nn.Linear(256, size, bias=False), torch.nn.Linear(size, 256, bias=False))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    outer = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=int(number("EVERY", 12)), fragments=2))
    inputs = torch.randn(1, 256)

    def exchange() -> None:
        outer.count_tokens(TOKENS)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    train(steps, exchange, lambda step: outer.run_step)
    outer.finish()


def main() -> None:
    """Train nothing, at the pace of the plan."""
    torch.set_num_threads(1)
    dist.init_process_group("geocomm")
    steps = int(number("STEPS", 30))
    local(steps) if number("LOCAL") else each_step(steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
