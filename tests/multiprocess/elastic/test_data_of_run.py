"""An agent that is told of a data set which the run cannot have ends with one line and exit status 2."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.agent_process import AgentConfig
from geocomm.elastic.journal.entries import Data, Genesis, Join, Listed, Ready, Round
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.hub_support import HUB_HOST, make_keys
from support.local_jobs import environment, free_port

Made = tuple[Any, dict[str, Any]]
GENESIS: Made = (Genesis, {"run": "1" * 32, "settings": {}, "layout": "3" * 32, "digests": ("4" * 32,), "every": 10})
DATA: Made = (Data, {"set": "/cat", "number": 1, "sha256": "7" * 64, "sequence_length": 32, "held_out_every": 100})
FRAME = Listed(site="a", frame="a" * 64, coded_bytes=1, exact_bytes=0, weight=7, step=30, squared_norm=1.0, lr=0.1)
ROUND: Made = (Round, {"fragment": 0, "version": 0, "members": (FRAME,), "every": 0, "base": None})
BEGUN: list[Made] = [
    GENESIS,
    (Join, {"site": "a", "store": "5" * 32}),
    (Ready, {"site": "a"}),
    ROUND,
]


def ended_agent(folder: Path, entries: list[Made], data: DealtSet, leader: str) -> subprocess.CompletedProcess[str]:
    """An agent of site a whose journal has these entries."""
    keys = make_keys(folder / "keys")
    run_dir = folder / "run"
    run_dir.mkdir()
    with contextlib.closing(SqliteJournal(RunDir(run_dir).journal)) as journal:
        for kind, fields in entries:
            head = journal.head
            journal.append(kind(index=head.index + 1, prev=head.hash, term=0, **fields), head)
    config = AgentConfig(
        leader=leader, keys=str(keys["a"].folder), run_dir=str(run_dir), terms=LeaderSettings(data=data)
    )
    return subprocess.run(config.command(), env=environment(), capture_output=True, text=True)


@pytest.mark.parametrize(
    ("entries", "data", "line"),
    [
        (
            [GENESIS, DATA],
            DealtSet(set="/other", sequence_length=32, held_out_every=100),
            "--data /other here, and /cat in the run",
        ),
        (
            [GENESIS, DATA],
            DealtSet(set="/cat", sequence_length=64, held_out_every=100),
            "--sequence-length 64 here, and 32 in the run",
        ),
        (
            [GENESIS, DATA],
            DealtSet(set="/cat", sequence_length=32, held_out_every=50),
            "--held-out-fraction: one of 50 here, and 100 in the run",
        ),
        (BEGUN, DealtSet(set="/cat", sequence_length=32, held_out_every=100), "this run has begun without a data set"),
        ([], DealtSet(set="/cat", sequence_length=32, held_out_every=100), "/cat has no version"),
    ],
)
def test_data_set_that_the_run_cannot_have_is_refused(
    tmp_path: Path, entries: list[Made], data: DealtSet, line: str
) -> None:
    ended = ended_agent(tmp_path, entries, data, f"{HUB_HOST}:{free_port(HUB_HOST)}")
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("geocomm agent: "), ended.stderr
    assert line in ended.stderr


def test_data_set_at_a_site_whose_leader_has_none_is_refused(tmp_path: Path) -> None:
    ended = ended_agent(
        tmp_path, BEGUN, DealtSet(set="/cat", sequence_length=32, held_out_every=100), "192.0.2.1:29400"
    )
    assert ended.returncode == 2, ended.stderr
    assert "this run has begun without a data set" in ended.stderr
