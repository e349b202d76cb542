"""How the hub's address is written, what a greeting has to be, and which ports are free."""

from __future__ import annotations

import contextlib
import random
import socket

import pytest

from geocomm.core.addresses import HubAddress, HubAddressError, _ports_outside, free_port
from geocomm.group.rendezvous.store_session import Greeting, ProtocolError


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:99999", "0.0.0.0:5", "[::]:5", "[::1:5"])
def test_bad_hub_address_is_refused(text: str) -> None:
    with pytest.raises(HubAddressError):
        HubAddress.parse(text)


@pytest.mark.parametrize("text", ["h.example:29400", "[::1]:29400", "geocomm://10.0.0.1:29400?listen=0.0.0.0:1"])
def test_hub_address_is_read(text: str) -> None:
    assert HubAddress.parse(text).port == 29400
    assert HubAddress.parse(str(HubAddress.parse(text))) == HubAddress.parse(text)


def test_random_greetings_are_refused() -> None:
    for seed in range(2000):
        content = random.Random(seed).randbytes(Greeting.LAYOUT.size)
        if seed % 2:
            content = b"GCHB\x01" + content[5:]
        with pytest.raises(ProtocolError):
            Greeting.unpack(content)


def test_free_port_is_none_that_the_kernel_gives_out_where_it_leaves_any() -> None:
    usual = _ports_outside(32768, 60999)
    assert (min(usual), max(usual)) == (10_000, 65535)
    assert not any(32768 <= port <= 60999 for port in usual)
    assert _ports_outside(1024, 65535) == range(10_000, 65536)


def test_free_ports_can_be_listened_at() -> None:
    ports = {free_port() for _ in range(20)}
    assert len(ports) > 1
    with contextlib.ExitStack() as held:
        for port in ports:
            held.enter_context(socket.create_server(("127.0.0.1", port)))
