"""Histories of whole elastic runs by real agents, in virtual time.

`make simulate` looks at many more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
_HISTORY = """
import json, sys
from support.whole_run.whole_run import WholeRun
history = WholeRun(int(sys.argv[1]), with_etcd=sys.argv[2] == "etcd", data=sys.argv[2] == "a person, of data").run()
print(json.dumps([history.broken, history.entries, history.digest]))
"""
_FILES = """
import json, sys
from support.whole_run.whole_run import WholeRun
print(json.dumps([WholeRun(int(seed), faults={"files": 1.0}, lasting="").run().broken for seed in sys.argv[1:]]))
"""
_REGIONS = """
import json, sys
from support.whole_run.whole_run import WholeRun
healthy = [WholeRun(seed, sites=4, faults={}, lasting="", regions=True).run() for seed in (0, 1, 6, 9)]
befallen = [WholeRun(seed, faults={"head": 1.0}, lasting="", regions=True).run() for seed in (0, 1, 2, 3)]
print(json.dumps([history.broken for history in healthy + befallen]))
"""
_LIAR = """
import json, sys
from support.whole_run.whole_run import WholeRun
history = WholeRun(int(sys.argv[1]), sites=4, faults={}, lasting="", reduce="aggregator", liar="b").run()
print(json.dumps([history.broken, sorted(history.told_liars)]))
"""
_CROWD = """
import json, sys
from unittest import mock
from geocomm.elastic.files.file_server import FileServer
from support.whole_run.whole_run import WholeRun
path_of, most, givers = FileServer._path, 0, set()
async def counted(self, asked):
    global most
    takers = [site for site, one in self._takers.items() if one.takes]
    most = max(most, len(takers))
    givers.update([self] if takers else [])
    return await path_of(self, asked)
with mock.patch.object(FileServer, "_path", counted):
    seed, first, crowd = map(int, sys.argv[1:])
    history = WholeRun(seed, sites=first, crowd=crowd, faults={}, lasting="", reduce="aggregator").run()
print(json.dumps([history.broken, history.crowd_s, most, len(givers)]))
"""
_MUTANT = """
import json, sys
from support.whole_run.mutants import MUTANTS
from support.whole_run.whole_run import WholeRun
mutant, seed = MUTANTS[sys.argv[2]], int(sys.argv[1])
right = WholeRun(seed, **mutant.world).run()
with mutant.put():
    wrong = WholeRun(seed, **mutant.world).run()
print(json.dumps([right.broken, wrong.broken]))
"""


def told(program: str, *arguments: object, hash_seed: int = 1) -> Any:
    """What a program says, in a process of its own that orders sets of texts by hash_seed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed)},
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize(("seed", "leads"), [(0, "a person"), (3, "etcd"), (2, "a person, of data")])
def test_a_run_goes_on_after_all_kinds_of_faults_in_the_same_way_in_each_process(seed: int, leads: str) -> None:
    broken, entries, digest = told(_HISTORY, seed, leads)
    assert not broken
    assert entries > 10
    assert told(_HISTORY, seed, leads, hash_seed=2) == [broken, entries, digest]


def test_no_round_stands_for_ever_where_disks_change_frames_before_their_aggregators_read_them() -> None:
    assert told(_FILES, 37, 49) == ["", ""]


def test_a_crowd_joins_within_a_minute_and_each_site_gives_its_state_to_two_at_a_time() -> None:
    broken, seconds, takers, givers = told(_CROWD, 1, 3, 21)
    assert not broken
    assert 0 < seconds < 60
    assert takers == 2
    assert givers > 3  # who has got a state gives it on


def test_with_regions_one_copy_of_a_frame_crosses_and_nobody_waits_for_heads_that_die_or_hang() -> None:
    assert told(_REGIONS) == [""] * 8


def test_a_site_that_averages_wrong_is_named() -> None:
    broken, liars = told(_LIAR, 2)
    assert not broken
    assert liars == ["b"]


@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        ("folders for strangers", 0),
        ("a hello is life enough", 0),
        ("the leader can be removed", 0),
        ("any folder is a snapshot", 0),
        ("snapshots wait for a leader that lasts", 0),
        ("idle connections stay", 0),
        ("a damaged frame is not asked for again", 2),
        ("what a disk has lost is counted on", 29),
        ("what a disk has lost is counted on", 19),
        ("a lost frame is not told", 1),
        ("each leader looks anew", 1),
        ("a need is lost", 110),
        ("mail is waited for for ever", 0),
        ("a second copy is asked for once", 2),
        ("a leader waits for those that have left", 0),
        ("a lost journal is begun anew", 6),
        ("only entries are looked at", 0),
        ("nothing is taken back", 0),
        ("a newer version denies nothing", 0),
        ("sites read from the beginning", 0),
        ("deals that come together are the last one", 103),
        ("each leader counts anew how long a site is gone", 8),
        ("one disk is safe", 0),
        ("a lost disk is believed", 1),
        ("an aggregator is named once", 11),
        ("a round is open for ever", 0),
        ("the last own frame alone counts", 18),
        ("ranks read on behind void rounds", 2),
        ("a full disk holds up all", 2),
        ("a changed state is kept", 59),
        ("any journal is the whole one", 3),
        ("all promotions claim the next term", 95),
        ("a term is begun twice", 236),
        ("two lines of one term last", 0),
        ("who leads cannot begin a later term", 20),
        ("what a damaged journal still has counts", 6),
        ("states outlive a lost journal", 88),
        ("ranks read on that hear late of a leave", 1),
        ("etcd forgets what few have", 39),
        ("silence is not noticed", 0),
        ("waits say nothing", 0),
        ("a former leader is refused", 0),
        ("a minority promotes", 0),
        ("a damaged first page is no journal", 8),
        ("a changed state is begun with", 59),
        ("deals wait for what counts", 15),
        ("another rate is left out", 0),
        ("a restored etcd counts terms anew", 1),
        ("the term is forgotten", 0),
        ("ranks of a new agent read on", 1),
        ("makers mail to other heads", 0),
        ("all are to have mail", 0),
        ("all sources are equal", 9),
        ("frames cross to the aggregator", 1),
    ],
)
def test_a_fault_that_geocomm_had_is_found(mutant: str, seed: int) -> None:
    right, wrong = told(_MUTANT, seed, mutant)
    assert not right
    assert wrong
