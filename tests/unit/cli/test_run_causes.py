"""Which line of a failed run is told as its cause."""

from __future__ import annotations

import pytest

from geocomm.cli.ssh_sites.watch import RunAtNode

TRACEBACK = ["[rank0]: Traceback (most recent call last):", '[rank0]:   File "a.py"', "[rank0]: KeyError: 'x'"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (["step 1", *TRACEBACK, "[rank1]: ValueError: y", "====="], "[rank0]: KeyError: 'x'"),
        ([*TRACEBACK, "geocomm run: first error: rank 3 (site b): KeyError: 'x'"], "first error: rank 3 (site b): K"),
        (["OSError: full", "x", "geocomm run: first error: rank 0 (site a): its last lines say why"], "OSError: full"),
        (["Killed", "geocomm run: first error: rank 0 (site a): its last lines say why"], "Killed"),
        (["geocomm.PeerLostError: lost rank 1", "step"], "geocomm.PeerLostError: lost rank 1"),
        (["Loading", "Killed"], "Killed"),
        (["2026-01-01T00:00:00Z geocomm warning: alert", "Killed"], "Killed"),
        ([], "it wrote nothing"),
    ],
)
def test_cause_is_what_geocomm_says_last_or_the_first_error_or_the_last_line(lines: list[str], cause: str) -> None:
    run = RunAtNode()
    run.lines.extend(lines)
    assert run.cause.startswith(cause)


@pytest.mark.parametrize(
    ("line", "follows"),
    [
        ("geocomm run: first error: rank 1 (site b): ValueError: x", True),
        ("geocomm run: first error: rank 0 (site a): geocomm.PeerLostError: x", False),
        ("geocomm.PeerLostError: lost rank 1 (site b)", True),
        ("geocomm run: the job has ended on another node", True),
        ("ValueError: x", False),
    ],
)
def test_failure_of_another_site_is_known(line: str, follows: bool) -> None:
    run = RunAtNode()
    run.lines.append(line)
    assert run.follows("a") is follows


def test_full_disk_of_a_site_is_nobody_elses_failure() -> None:
    run = RunAtNode(disk_full=True)
    run.lines.append("geocomm.PeerLostError: lost rank 1 (site b)")
    assert not run.follows("a")


def test_run_that_was_killed_says_so_whatever_it_wrote() -> None:
    run = RunAtNode(why="it was killed, or its machine restarted")
    run.lines.append("step 1")
    assert run.cause == "it was killed, or its machine restarted"
