"""Faults over an emulated WAN: exact results, a bounded stall, nothing left behind; lost peers are named."""

from __future__ import annotations

import signal
import time
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.leo_profile import SLOT_S, leo_links
from support.fault_run import FaultRun
from support.wan_support import require_wan

pytestmark = pytest.mark.timeout(200)

LINK = EmulatedLink(rate_bps=50e6, delay_s=0.015)
BOTH = ("site0", "site1")
DEAD_S = 15
"""A silence after which every connection has been given up (kSilentTicks heartbeats, and one that was under way)."""
DEADLINE_S = 6.0
"""link_deadline where a peer does not come back."""


def stopped(run: FaultRun) -> AbstractContextManager[None]:
    return run.stopped(1)


def cut(run: FaultRun) -> AbstractContextManager[None]:
    return run.changed(*BOTH, up=False)


def deaf(run: FaultRun) -> AbstractContextManager[None]:
    return run.changed(*BOTH, up=False, one_way=True)


def slowed(run: FaultRun) -> AbstractContextManager[None]:
    return run.changed(*BOTH, rate=LINK.rate_bps / 10)


def lossy(run: FaultRun) -> AbstractContextManager[None]:
    return run.changed(*BOTH, loss="5%")


def shuffled(run: FaultRun) -> AbstractContextManager[None]:
    return run.changed(*BOTH, reorder="10%", duplicate="10%")


@pytest.mark.parametrize(
    ("fault", "seconds", "grace_s", "encrypted"),
    [
        pytest.param(cut, 5, 10, True, id="cut-5s-tls"),
        pytest.param(deaf, 5, 10, False, id="deaf-5s", marks=pytest.mark.slow),
        pytest.param(stopped, 4, 6, True, id="stopped-4s-tls", marks=pytest.mark.slow),
        *(
            pytest.param(*case, id=name, marks=pytest.mark.slow)
            for name, case in {
                "cut-30s": (cut, 30, 15, False),
                "cut-30s-tls": (cut, 30, 15, True),
                "deaf-30s": (deaf, 30, 15, True),
                "stopped-20s": (stopped, 20, 15, False),
                "stopped-20s-tls": (stopped, 20, 15, True),
                "a-tenth-of-the-rate": (slowed, 15, 10, True),
                "loss-of-5-percent": (lossy, 15, 10, True),
                "reordered-and-doubled": (shuffled, 15, 10, True),
            }.items()
        ),
    ],
)
def test_fault_leaves_results_exact_and_nothing_behind(
    tmp_path: Path, fault: Any, seconds: float, grace_s: float, encrypted: bool
) -> None:
    require_wan()
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), encrypted=encrypted) as run:
        before = run.rounds() - 1
        with fault(run):
            began = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
        run.wait_rounds(10, grace_s + 20)
        report = run.finish()
        run.require_flat(before)
        link = report.link(*BOTH)
        if fault in (cut, deaf):
            assert link.dropped_down > 0
            assert run.rounds_across(began, ended), "the fault did not hit an operation"
            if seconds > DEAD_S:  # TCP may outlive a shorter cut, or lose one connection once it is over
                assert run.total("outage_us") > len(BOTH) * 1e6 * (seconds - 1), "the silence is part of an outage"
        if fault is shuffled:
            assert min(link.reordered, link.duplicated) > 50
        if fault is lossy:
            assert link.dropped_loss > 20


@pytest.mark.parametrize("encrypted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_links_by_satellite_lose_nothing(tmp_path: Path, encrypted: bool) -> None:
    """Two changes of the satellite, and bursts of loss: streams go on, and no link is made anew for 150 ms."""
    require_wan()
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), encrypted=encrypted) as run:
        with leo_links(run.control, BOTH, seed=3):
            time.sleep(2 * SLOT_S + 2)
        run.wait_rounds(10, 30)
        report = run.finish()
        link = report.link(*BOTH)
        assert link.dropped_down > 0
        assert link.dropped_loss > 0
        assert run.total("outages") == 0


def test_cut_under_ddp_counts_as_exposed(tmp_path: Path) -> None:
    """DDP waits for the Future of its bucket, where geocomm does not see it wait."""
    require_wan()
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), environment={"FAULT_SUMS": "ddp"}) as run:
        before = run.rounds() - 1
        with cut(run):
            began = time.monotonic()
            time.sleep(3)
            ended = time.monotonic()
        run.wait_rounds(10, 30)
        run.finish()
        assert run.rounds_across(began, ended), "the cut did not hit an operation"
        for log in run.logs:
            rounds = log.having("round")[before:]
            took, counted = max((now["took"], now["exposed"] - last["exposed"]) for last, now in pairwise(rounds))
            assert 0.5 * took < counted <= took


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [False, True])
def test_hundreds_of_resets_lose_nothing(tmp_path: Path, encrypted: bool) -> None:
    """Each of them ends a connection of TCP; some end many at once."""
    require_wan()
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), encrypted=encrypted) as run:
        before = run.rounds() - 1
        began = time.monotonic()
        while time.monotonic() < began + 40:
            with run.changed(*BOTH, reset="0.5%"):
                time.sleep(1.5)
            with run.changed(*BOTH, reset="100%"):
                time.sleep(0.1)
            time.sleep(0.4)
        run.wait_rounds(10, 30)
        report = run.finish()
        assert report.link(*BOTH).resets + report.link("site1", "site0").resets > 300
        assert run.total("resumes") > 300
        run.require_flat(before)


def names_lost_rank(line: dict[str, Any], rank: int) -> bool:
    return "PeerLostError" in line["kinds"] and line["peer"].startswith(f"rank {rank} (site site{rank}")


@pytest.mark.slow
def test_killed_rank_is_named_by_all_and_a_new_group_in_the_same_processes_works(tmp_path: Path) -> None:
    require_wan()
    environment = {"GEOCOMM_LINK_DEADLINE": f"{DEADLINE_S}s"}
    with FaultRun(tmp_path, EmulatedWan.uniform(3, LINK), encrypted=True, environment=environment) as run:
        run.signal(1, signal.SIGKILL)
        failures = run.wait_lines("kinds", [0, 2], DEADLINE_S + 20)
        for line in failures:
            assert names_lost_rank(line, 1), line
        run.wait_lines("destroyed_after", [0, 2], 30)
        (tmp_path / "stop").touch()
        (tmp_path / "survivors").write_text("[0, 2]")
        run.run.wait(60)
        run.logs[0].refresh()
        run.logs[2].refresh()
        last = [run.logs[rank].having("round")[-1] for rank in (0, 2)]
        assert [line["round"] for line in last] == [0, 0]  # of the new group
        assert last[0]["digest"] == last[1]["digest"]


@pytest.mark.slow
def test_link_that_stays_dead_is_a_lost_peer_at_both_ends_and_a_new_group_works(tmp_path: Path) -> None:
    require_wan()
    environment = {"GEOCOMM_LINK_DEADLINE": f"{DEADLINE_S}s"}
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), encrypted=True, environment=environment) as run:
        run.control.set_link(*BOTH, up=False)
        failures = run.wait_lines("kinds", [0, 1], DEADLINE_S + 30)
        for rank, line in enumerate(failures):
            assert names_lost_rank(line, 1 - rank), line
        run.wait_lines("destroyed_after", [0, 1], 30)  # the link is still dead
        run.control.set_link(*BOTH, up=True)
        (tmp_path / "survivors").write_text("[0, 1]")
        run.wait_rounds(5, 60)
        run.finish()


@pytest.mark.slow
def test_abort_and_shutdown_end_while_the_link_is_dead(tmp_path: Path) -> None:
    require_wan()
    with FaultRun(tmp_path, EmulatedWan.uniform(2, LINK), encrypted=True) as run:
        run.control.set_link(*BOTH, up=False)
        time.sleep(2)  # all ranks are in an operation
        (tmp_path / "abort").touch()
        for line in run.wait_lines("kinds", [0, 1], 20):
            assert "AbortedError" in line["kinds"], line
        run.wait_lines("destroyed_after", [0, 1], 30)  # the link is still dead
        run.control.set_link(*BOTH, up=True)
        (tmp_path / "survivors").write_text("[0, 1]")
        run.wait_rounds(5, 60)
        run.finish()
