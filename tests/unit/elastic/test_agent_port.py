"""Where an agent listens: at the hub's address, or where others look for it once another site leads."""

from __future__ import annotations

import contextlib

from geocomm.elastic.leading.leadership import open_port
from support.local_jobs import free_ports


def listens(hub: int, port_before: int, *, taken_over: bool) -> tuple[int, bool]:
    listener, at_hub = open_port(f"127.0.0.1:{hub}", None, port_before, taken_over=taken_over)
    with contextlib.closing(listener):
        return listener.getsockname()[1], at_hub


def test_port_stays_where_others_look_for_it_though_the_hubs_is_free() -> None:
    hub, before = free_ports(2)
    assert listens(hub, 0, taken_over=False) == (hub, True)
    assert listens(hub, before, taken_over=False) == (hub, True)
    # Nobody looks for a leader there any more: a site that was promoted at another port leads there.
    assert listens(hub, before, taken_over=True) == (before, False)
    assert listens(hub, 0, taken_over=True) == (hub, False)


def test_port_of_the_hub_that_is_taken_is_replaced_by_the_one_before() -> None:
    hub, before = free_ports(2)
    first, _ = open_port(f"127.0.0.1:{hub}", None, 0)
    with contextlib.closing(first):
        assert listens(hub, before, taken_over=False) == (before, False)
        assert listens(hub, before, taken_over=True) == (before, False)
        port, at_hub = listens(hub, 0, taken_over=False)
        assert port not in (hub, 0)
        assert not at_hub


def test_port_before_that_is_taken_too_is_replaced_by_a_free_one() -> None:
    hub, before = free_ports(2)
    first, _ = open_port(f"127.0.0.1:{hub}", None, 0)
    second, _ = open_port(f"127.0.0.1:{before}", None, 0)
    with contextlib.closing(first), contextlib.closing(second):
        port, at_hub = listens(hub, before, taken_over=False)
    assert port not in (hub, before)
    assert not at_hub
