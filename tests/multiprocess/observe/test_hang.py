"""`geocomm hang` names the rank that has not come: stopped, ended, elsewhere, or in another collective."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from typer.testing import CliRunner

from geocomm.observe.telemetry.run_store import RunStore
from support.collectors import collecting
from support.command_tree import APP
from support.harness import Ranks

LIMIT_S = 60
_hanging: list[Any] = []


def _reduce() -> None:
    dist.all_reduce(torch.ones(1000))


def _begin_reduce() -> None:
    _hanging.append(dist.all_reduce(torch.ones(1000), async_op=True))


def _begin_broadcast() -> None:
    _hanging.append(dist.broadcast(torch.ones(10), 0, async_op=True))


@contextmanager
def reporting(folder: Path, sites: list[str | None]) -> Iterator[Ranks]:
    """Ranks that have reported an all-reduce."""
    with (
        collecting(folder, sites) as environments,
        Ranks(sites, environment={"GEOCOMM_LINK_DEADLINE": "600s"}, environment_of=environments) as ranks,
    ):
        ranks.init(timeout=timedelta(minutes=10))
        ranks.run(_reduce)
        store = RunStore(folder)
        _wait(lambda: len({rank for rank, row in store.rows("operations") if row["ended_ns"]}) == len(sites))
        yield ranks


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with reporting(tmp_path, ["rome", "berlin"]) as made:
        yield made


def _wait(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


def hang(folder: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(APP, ["hang", str(folder), "--after", "1", *options])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout


def said_at_last(folder: Path, *patterns: str) -> str:
    """What the command says, once that matches all of them: ranks report one after the other."""
    said = [""]

    def matches() -> bool:
        said[0] = hang(folder)[1]
        return all(re.search(pattern, said[0]) for pattern in patterns)

    try:
        _wait(matches)
    except AssertionError:
        pytest.fail(f"it never said {patterns}, but\n{said[0]}")
    return said[0]


LAST = r"its last operation was all_reduce 1 \(float32, 1000 elements\), which ended \d+ s ago"


def test_rank_that_is_stopped(ranks: Ranks, tmp_path: Path) -> None:
    status, said = hang(tmp_path)
    assert status == 0
    assert said.startswith("Nothing hangs")
    ranks.signal(1, signal.SIGSTOP)
    ranks.begin(_begin_reduce, ranks=[0])
    said = said_at_last(
        tmp_path,
        rf"rank 1 \(site berlin\) has not come: it has been silent for \d+ s; {LAST}",
        r"rank 0 \(site rome\) waits for bytes from rank 1 \(site berlin\), since ",
    )
    assert said.startswith("all_reduce 2 (float32, 1000 elements) is under way; it was called ")
    assert hang(tmp_path)[0] == 1


def test_rank_that_calls_another_collective(ranks: Ranks, tmp_path: Path) -> None:
    ranks.begin(_begin_reduce, ranks=[0])
    ranks.begin(_begin_broadcast, ranks=[1])
    said = said_at_last(
        tmp_path,
        r"rank 0 \(site rome\) called all_reduce 2 \(float32, 1000 elements\)",
        r"rank 1 \(site berlin\) called broadcast 2 \(float32, 10 elements\)",
    )
    assert "has not come" not in said
    status, document = hang(tmp_path, "--json")
    (stuck,) = json.loads(document)["operations"]
    assert (status, [member["called"]["kind"] for member in stuck["members"]]) == (1, ["all_reduce", "broadcast"])


def test_rank_that_ends_early(ranks: Ranks, tmp_path: Path) -> None:
    ranks.begin(_begin_reduce, ranks=[0])
    ranks.begin(dist.destroy_process_group, ranks=[1])
    said_at_last(tmp_path, rf"rank 1 \(site berlin\) has not come: it has ended, \d+ s ago; {LAST}")


def test_rank_whose_program_is_elsewhere_while_the_others_of_its_site_wait_for_it(tmp_path: Path) -> None:
    with reporting(tmp_path, ["rome", "rome", "berlin", "berlin"]) as ranks:
        for rank in (0, 2, 3):
            ranks.begin(_begin_reduce, ranks=[rank])
        said_at_last(
            tmp_path,
            rf"rank 1 \(site rome\) has not come: it reports, so its program is elsewhere; {LAST}",
            r"rank 0 \(site rome\) waits inside its site, since ",
            r"(?s)^(?!.*has not come.*has not come)",  # once
        )
