"""An elastic run of three sites over an emulated WAN with TLS, and a fault each 20 s, for as long as one likes.

    soak_elastic.py [--minutes 60] [--fault-every 20] [--seed N] [--out benchmarks/results]

First undisturbed runs of some seeds, then one with faults, whose goodput is told. Every state that a site ever had is
compared with those that the others and the journal have; steps and loss with those of the undisturbed runs. Writes
soak-elastic.md; the exit status is 0 if the verdict is good.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from geocomm.elastic.journal.entries import Away
from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.emulated_keys import site_keys
from support.elastic_soak_report import judge, text_of
from support.elastic_soak_run import FAULT_EVERY_S, KINDS, PAUSE, SITES, Fault, Problem, Run, three_sites, tokens_of

REPOSITORY = Path(__file__).resolve().parents[2]
LEADER, FOLLOWERS = SITES[0], SITES[1:]
SEEDS = (1, 2, 3)
UNDISTURBED_SHARE = 0.1
"""Of the time, that each undisturbed run takes."""
RECOVERY_LIMIT_S = 240.0
"""After a fault, until a round lists all sites again: processes start anew on a machine that may be busy."""


def apply(run: Run, kind: str, chance: random.Random) -> Fault:
    """One fault from beginning to end."""
    site, follower = chance.choice(SITES), chance.choice(FOLLOWERS)
    fault = Fault(kind, (), time.monotonic())
    length = chance.uniform(4, 15)

    @contextlib.contextmanager
    def down(sites: Sequence[str]) -> Generator[None]:
        for one in sites:
            (run.folder / f"down-{one}").touch()
        try:
            yield
        finally:
            for one in sites:
                (run.folder / f"down-{one}").unlink()

    match kind:
        case "rank killed":
            fault.hit = (site,)
            run.kill(site, "support.elastic_soak_rank")
        case "site killed":
            fault.hit = (follower,)
            with down(fault.hit):
                run.wan.signal_site(follower, signal.SIGKILL)
                watch_away(run, fault, follower, length)
        case "disk lost":
            fault.hit = (follower,)
            with down(fault.hit):
                run.wan.signal_site(follower, signal.SIGKILL)
                watch_away(run, fault, follower, length)
                shutil.rmtree(run.folder / f"run-{follower}")
        case "leader's site killed":
            fault.hit = (LEADER,)
            with down(fault.hit):
                run.wan.signal_site(LEADER, signal.SIGKILL)
                watch_away(run, fault, LEADER, length)
        case "site silent":
            fault.hit = (follower,)
            run.wan.signal_site(follower, signal.SIGSTOP)
            try:
                watch_away(run, fault, follower, length + 5)
            finally:
                run.wan.signal_site(follower, signal.SIGCONT)
        case "line cut between two":
            with cut(run, *FOLLOWERS):
                watch(run, length)
        case "cut from the leader":
            with cut(run, LEADER, follower):
                watch(run, length)
        case "agent killed":
            run.kill(follower, "geocomm.elastic.agent_process")
        case "leader's agent killed":
            run.kill(LEADER, "geocomm.elastic.agent_process")
        case "leave and return":
            fault.hit = (follower,)
            with down(fault.hit):
                run.leave(follower)
                watch(run, length)
        case "all killed":
            fault.hit = SITES
            with down(SITES):
                for one in SITES:
                    run.wan.signal_site(one, signal.SIGKILL)
                time.sleep(2)
        case _:
            raise ValueError(kind)
    fault.over = time.monotonic()
    return fault


@contextlib.contextmanager
def cut(run: Run, src: str, dst: str) -> Generator[None]:
    """Nothing passes between two sites."""
    run.wan.control.set_link(src, dst, up=False)
    try:
        yield
    finally:
        run.wan.control.set_link(src, dst, up=True)


def watch(run: Run, seconds: float) -> None:
    """Let time pass."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.look()
        time.sleep(0.05)


def watch_away(run: Run, fault: Fault, site: str, seconds: float) -> None:
    """Let time pass, and see when the others have it that the site is away."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        run.look()
        for one in run.journal:
            if fault.away_s is None and one.at > fault.began and isinstance(one.entry, Away) and one.entry.site == site:
                fault.away_s = one.at - fault.began
        time.sleep(0.05)


def disturb(run: Run, until: float, chance: random.Random, pause: tuple[float, float], every_s: float) -> None:
    """A fault each `every_s`, or once all sites count again after the last one, if that is later; but none while
    the tokens that counted are in the pause."""
    kinds: list[str] = []
    while time.monotonic() < until:
        if pause[0] <= tokens_of(run) < pause[1]:
            print(f"{time.monotonic() - run.began:7.1f} s  no faults for a while", flush=True)
            run.wait(lambda: tokens_of(run) >= pause[1], "the tokens to compare at", 600)
        if not kinds:  # all kinds, before one comes again
            kinds = chance.sample(KINDS, len(KINDS))
        fault = apply(run, kinds.pop(), chance)
        run.faults.append(fault)
        fault.recovered = run.wait_full_rounds(2, RECOVERY_LIMIT_S, fault.over)
        told = f"{fault.kind}{f' ({chr(44).join(fault.hit)})' if fault.hit else ''}"
        took = f"{fault.over - fault.began:.1f} s, all count again {fault.recovered - fault.over:.1f} s later"
        print(f"{fault.began - run.began:7.1f} s  {told}: {took}", flush=True)
        watch(run, min(until, fault.began + every_s) - time.monotonic())


def undisturbed(run: Run, until: float) -> None:
    """Only a process each FAULT_EVERY_S that imports what a rank does: what starts cost on this machine."""
    while time.monotonic() < until:
        started = subprocess.Popen([sys.executable, "-c", "import geocomm, torch; import torch.distributed.run"])
        watch(run, FAULT_EVERY_S)
        started.wait()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--fault-every", type=float, default=FAULT_EVERY_S, help="Seconds; default: %(default)g.")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument("--keep", type=Path, help="A folder for all files of the runs; must not exist.")
    options = parser.parse_args()
    arguments = [f"--minutes {options.minutes:g}", f"--seed {options.seed}"]
    if options.fault_every != FAULT_EVERY_S:
        arguments.append(f"--fault-every {options.fault_every:g}")
    print(f"soak: {' '.join(arguments)}", flush=True)
    conditions = Conditions.here(f"python tests/wan/soak_elastic.py {' '.join(arguments)}")
    chance, problems, runs = random.Random(options.seed), list[str](), list[Run]()
    calm_s = 60 * options.minutes * UNDISTURBED_SHARE
    began = time.monotonic()
    with contextlib.ExitStack() as held:
        if options.keep is None:
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="geocomm-soak-")))
        else:
            folder = options.keep.absolute()
            folder.mkdir(parents=True)
        keys = held.enter_context(site_keys(SITES, None, secure=True))
        if keys is None:
            raise AssertionError("no keys were made")
        try:
            for seed in SEEDS:
                with three_sites(f"undisturbed, seed {seed}", seed, folder / f"calm-{seed}", keys) as run:
                    runs.append(run)
                    undisturbed(run, run.began + calm_s)
                print(f"{time.monotonic() - began:7.1f} s  {run.name} is over", flush=True)
            with three_sites("with faults, seed 1", SEEDS[0], folder / "faults", keys) as run:
                runs.append(run)
                tokens = min(map(tokens_of, runs[:-1]))
                until = max(began + 60 * options.minutes, run.began + FAULT_EVERY_S)
                pause = (PAUSE[0] * tokens, PAUSE[1] * tokens)
                disturb(run, until, chance, pause, options.fault_every)
        except (Problem, subprocess.TimeoutExpired) as error:
            problems.append(str(error))
            runs[-1].ended = runs[-1].ended or time.monotonic()
            print("\n".join((runs[-1].folder / "log.txt").read_text(errors="replace").splitlines()[-60:]))
        for run in runs:
            for log in run.logs.values():
                log.refresh()
        problems += judge(runs, options.fault_every)
        text = text_of(runs, problems, time.monotonic() - began, conditions, options.fault_every)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "soak-elastic.md"
    path.write_text(text, encoding="utf-8")
    print(f"{text}\nsoak: wrote {path}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
