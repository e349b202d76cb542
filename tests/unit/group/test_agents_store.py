"""Waits of torchrun's agents: whom they name, and how the last one ends."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import _TERMINAL_STATE_SYNC_ID
from torch.distributed.elastic.utils.store import barrier

from geocomm.group.rendezvous.agents_store import AgentsStore

SITES = {0: "frankfurt", 1: "virginia", 2: "virginia"}


class Agents:
    """The stores of three nodes, and what they log."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.closed = False
        shared = dist.HashStore()
        shared.set_timeout(timedelta(seconds=60))
        self.stores = [
            AgentsStore("agents/1", shared, node, SITES, lambda: self.closed, self.lines.append) for node in SITES
        ]

    def begin_barrier(self, node: int) -> threading.Thread:
        store = self.stores[node]
        thread = threading.Thread(target=barrier, args=(store, len(SITES), _TERMINAL_STATE_SYNC_ID, 60.0))
        thread.start()
        return thread


@pytest.fixture
def agents() -> Agents:
    return Agents()


def test_barrier_of_all_nodes_ends_in_silence(agents: Agents) -> None:
    for thread in [agents.begin_barrier(node) for node in SITES]:
        thread.join()
    assert agents.lines == []


def test_last_barrier_names_the_node_that_does_not_come_and_ends_without_an_error(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geocomm.core.patience.FIRST_WORD_S", 0.0)
    monkeypatch.setattr("geocomm.group.rendezvous.agents_store._POLL_S", 0.01)
    other = agents.begin_barrier(0)
    while not agents.stores[1].check([f"{_TERMINAL_STATE_SYNC_ID}/last_member/arrived/0"]):
        pass
    # torch's barrier sets the time limit of the store that all share here.
    agents.stores[1].wait([f"{_TERMINAL_STATE_SYNC_ID}/last_member"], timedelta(seconds=0.2))
    first, *_, last = agents.lines
    assert first.startswith("waiting for node")
    assert "waiting for node 2 of 3 (site virginia) to end" in agents.lines
    assert "waited 0.2 s for node 2 of 3 (site virginia). Look there" in last
    for thread in [other, agents.begin_barrier(1), agents.begin_barrier(2)]:
        thread.join()


def test_last_barrier_does_not_wait_for_a_node_that_left_the_job(agents: Agents) -> None:
    agents.closed = True
    agents.begin_barrier(0).join()
    assert agents.lines == [
        "nodes 1 (site virginia), 2 (site virginia) of 3 ended without success, and this node's ranks have succeeded"
    ]


def test_other_waits_raise_and_name_the_nodes(agents: Agents) -> None:
    with pytest.raises(dist.DistStoreError, match=r"waited 0 s for nodes 1 \(site virginia\), 2"):
        agents.stores[0].wait(["a key"], timedelta(0))
