"""Runs fault_ranks.py over an emulated WAN: faults are applied while it runs, and what the ranks wrote is judged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from geocomm.lab.emulator.emulated_links import EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from geocomm.security.job_ca import JobCa
from support.wan_support import warm_program

PROGRAM = Path(__file__).with_name("fault_ranks.py")
START_LIMIT_S = 90
MEMORY_SLACK_KIB = 24 * 1024
"""What buffers may grow by when a link comes to a halt for the first time."""


class RankLog:
    """The lines of one rank, read as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._having: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)

    def refresh(self) -> None:
        """Read what was added."""
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for text in whole.splitlines():
            line = json.loads(text)
            for name in line:
                self._having[name].append(line)

    def having(self, name: str) -> list[dict[str, Any]]:
        """The lines with that field."""
        return self._having[name]


class FaultRun:
    """The ranks, one at each site, over a WAN. A context manager: leaving it ends them."""

    def __init__(
        self,
        folder: Path,
        topology: EmulatedWan,
        *,
        encrypted: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start; return once every rank has finished some rounds."""
        self.sites = topology.sites
        self.folder = folder
        folder.mkdir(exist_ok=True)
        if encrypted:
            JobCa.create(folder / "keys", "faults", list(self.sites), 2)
        self.logs = [RankLog(folder / f"rank-{rank}.jsonl") for rank in range(len(self.sites))]
        self._out = (folder / "output").open("w+", encoding="utf-8")
        own = {"OMP_NUM_THREADS": "1", "GEOCOMM_STREAMS": "4"}
        command = warm_program(PROGRAM, str(folder))
        self.run = WanRun(
            topology,
            command,
            environment={k: v for k, v in os.environ.items() if not k.startswith("GEOCOMM_")}
            | own
            | dict(environment or {}),
            keep_going=True,
            stdout=self._out,
            stderr=self._out,
        )
        try:
            self.wait_rounds(5, START_LIMIT_S)
        except BaseException:
            self.__exit__()
            raise

    @property
    def control(self) -> Any:
        """To change links."""
        return self.run.control

    def output(self) -> str:
        """What the sites printed."""
        self._out.flush()
        return (self.folder / "output").read_text(encoding="utf-8")

    def refresh(self) -> None:
        """Read what the ranks wrote. AssertionError: one has ended with an error."""
        for log in self.logs:
            log.refresh()
        if self.run.process.poll() not in (None, 0):
            raise AssertionError(f"the ranks failed:\n{self.output()[-4000:]}")

    def rounds(self) -> int:
        """Rounds that all ranks have finished."""
        self.refresh()
        return min(len(log.having("round")) for log in self.logs)

    def wait_rounds(self, more: int, limit_s: float) -> float:
        """Wait until all ranks have finished so many rounds more: how long it took. AssertionError: not in time."""
        began = time.monotonic()
        until = self.rounds() + more
        while (done := self.rounds()) < until:
            if time.monotonic() > began + limit_s:
                raise AssertionError(f"only {done} of {until} rounds within {limit_s} s:\n{self.output()[-4000:]}")
            time.sleep(0.02)
        return time.monotonic() - began

    def wait_lines(self, name: str, ranks: list[int], limit_s: float) -> list[dict[str, Any]]:
        """The first line with a field of each of these ranks. AssertionError: not in time."""
        deadline = time.monotonic() + limit_s
        while True:
            self.refresh()
            found = [self.logs[rank].having(name) for rank in ranks]
            if all(found):
                return [lines[0] for lines in found]
            if time.monotonic() > deadline:
                raise AssertionError(f"no '{name}' of all of {ranks} within {limit_s} s:\n{self.output()[-4000:]}")
            time.sleep(0.02)

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return self.logs[rank].having("pid")[0]["pid"]

    def signal(self, rank: int, number: signal.Signals) -> None:
        """To the process of a rank."""
        os.kill(self.pid(rank), number)

    @contextlib.contextmanager
    def stopped(self, rank: int) -> Iterator[None]:
        """The rank's process runs not, inside the context."""
        self.signal(rank, signal.SIGSTOP)
        try:
            yield
        finally:
            self.signal(rank, signal.SIGCONT)

    @contextlib.contextmanager
    def changed(self, src: str, dst: str, *, one_way: bool = False, **faults: Any) -> Iterator[None]:
        """The link is another one, inside the context (`faults` as for WanControl.set_link)."""
        before = self.run.topology.links[src, dst]
        healthy = {
            "up": before.up,
            "rate": before.rate_bps,
            "loss": before.loss,
            "reorder": before.reorder,
            "duplicate": before.duplicate,
            "reset": before.reset,
        }
        self.control.set_link(src, dst, one_way=one_way, **faults)
        try:
            yield
        finally:
            self.control.set_link(src, dst, one_way=one_way, **{name: healthy[name] for name in faults})

    def finish(self, limit_s: float = 60) -> WanReport:
        """Tell the ranks to stop, wait for their end in good order, and require that all rounds agree."""
        (self.folder / "stop").touch()
        status = self.run.wait(limit_s)
        assert status == 0, f"status {status}:\n{self.output()[-4000:]}"
        self.refresh()
        digests = [[line["digest"] for line in log.having("round")] for log in self.logs]
        assert all(one == digests[0] for one in digests[1:]), "replicas differ"
        report = self.run.report()
        assert report is not None
        return report

    def longest_round_s(self, first: int = 0) -> float:
        """Of all ranks, from round number `first` on."""
        self.refresh()
        return max(line["took"] for log in self.logs for line in log.having("round")[first:])

    def rounds_across(self, began: float, ended: float) -> list[dict[str, Any]]:
        """Of all ranks, the rounds that were under way from `began` to `ended` (of time.monotonic())."""
        self.refresh()
        rounds = [line for log in self.logs for line in log.having("round")]
        return [line for line in rounds if line["time"] - line["took"] < began and line["time"] > ended]

    def total(self, name: str) -> int:
        """Of a counter that the ranks write at their end."""
        return sum(line[name] for log in self.logs for line in log.having(name))

    def require_flat(self, first: int) -> None:
        """Neither memory nor descriptors have grown between round number `first` and the last one."""
        for log in self.logs:
            rounds = log.having("round")
            before, after = rounds[first], rounds[-1]
            assert after["fds"] <= before["fds"], (before, after)
            assert after["rss_kib"] <= before["rss_kib"] + MEMORY_SLACK_KIB, (before, after)

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run if it still goes on."""
        self.run.__exit__(None, None, None)
        self._out.close()
