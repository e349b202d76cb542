"""What a site does while the leader is away, and while its own ranks are."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from geocomm.elastic.journal.run_state import Standing
from support.elastic_sites import ElasticSites
from support.hub_support import make_keys

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("others", ["c", ""], ids=["another site is there", "nobody is there"])
def test_ranks_that_start_while_the_leader_is_away_train_and_count_once_it_is_back(tmp_path: Path, others: str) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "abc"), wait_for=("a", "b", "c")) as sites:
        a, b, _ = sites.values()
        sites.start()
        for name in "abc":
            if name not in others:
                sites[name].kill_agent()
                sites[name].kill_rank()
        b.start()
        sites.until(lambda: "begins at version" in b.logs[-1].read_text(), "the rank of b trains")
        assert b.state().head.index >= 0
        counted = a.listed("b")
        a.start()
        sites.until(lambda: a.listed("b") >= counted + 2, "it counts again, once the leader is back")
        assert not any("other bits" in site.text() for site in sites.values())


def test_an_agent_that_is_to_leave_waits_for_no_ranks_that_are_dead(tmp_path: Path) -> None:
    with ElasticSites(tmp_path, make_keys(tmp_path / "keys", "ab")) as sites:
        a, b = sites.values()
        a.start()
        b.start_agent(module="support.patient_agent")
        b.start_rank()
        sites.until(lambda: all(a.listed(name) >= 2 for name in "ab"), "both count")
        assert b.agent is not None
        assert b.rank is not None
        b.rank.send_signal(signal.SIGSTOP)
        b.agent.terminate()
        sites.until(lambda: "once its last steps have counted" in b.text(), "the agent waits for its rank")
        b.kill_rank()
        sites.until(lambda: a.state().sites["b"].standing is Standing.LEFT, "the site leaves")
