"""Where an agent listens: at the hub's address, or where others look for it once another site leads."""

from __future__ import annotations

import contextlib

from geocomm.elastic.agent_process import AgentConfig, open_port
from support.local_jobs import free_ports


def listens(config: AgentConfig, port_before: int, *, taken_over: bool) -> tuple[int, bool]:
    listener, at_hub = open_port(config, port_before, taken_over=taken_over)
    with contextlib.closing(listener):
        return listener.getsockname()[1], at_hub


def test_port_stays_where_others_look_for_it_though_the_hubs_is_free() -> None:
    hub, before = free_ports(2)
    config = AgentConfig(leader=f"127.0.0.1:{hub}", keys="", run_dir="")
    assert listens(config, 0, taken_over=False) == (hub, True)
    assert listens(config, before, taken_over=False) == (hub, True)
    # Nobody looks for a leader there any more: a site that was promoted at another port leads there.
    assert listens(config, before, taken_over=True) == (before, False)
    assert listens(config, 0, taken_over=True) == (hub, False)


def test_port_of_the_hub_that_is_taken_is_replaced_by_the_one_before() -> None:
    hub, before = free_ports(2)
    config = AgentConfig(leader=f"127.0.0.1:{hub}", keys="", run_dir="")
    first, _ = open_port(config, 0, taken_over=False)
    with contextlib.closing(first):
        assert listens(config, before, taken_over=False) == (before, False)
        assert listens(config, before, taken_over=True) == (before, False)
        port, at_hub = listens(config, 0, taken_over=False)
        assert port not in (hub, 0)
        assert not at_hub
