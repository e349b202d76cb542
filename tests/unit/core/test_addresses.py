"""How the hub's address is written, what a greeting has to be, and which ports are free."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.core.addresses import (
    Address,
    AddressError,
    _ports_outside,
    free_port,
    host_and_port,
    listen_on,
    listeners,
    machine_addresses,
    not_here,
    port_holder,
)
from geocomm.wire.greeting import Greeting, ProtocolError


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:99999", "0.0.0.0:5", "[::]:5", "[::1:5"])
def test_bad_hub_address_is_refused(text: str) -> None:
    with pytest.raises(AddressError):
        Address.parse(text)


@pytest.mark.parametrize("text", ["h.example:29400", "[::1]:29400", "geocomm://10.0.0.1:29400?listen=0.0.0.0:1"])
def test_hub_address_is_read(text: str) -> None:
    assert Address.parse(text).port == 29400
    assert Address.parse(str(Address.parse(text))) == Address.parse(text)


@pytest.mark.parametrize("read", [Address.parse, host_and_port, listen_on])
@pytest.mark.parametrize("text", ["h:99999", "[::1]:65536", "h:123456", f"h:{'9' * 5000}"])
def test_port_that_cannot_be_is_said_with_those_that_can(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(AddressError, match=r"port 9*[0-9]{1,6} is not within [01] to 65535"):
        read(text)


@pytest.mark.parametrize("text", ["a:b:1", "::1:80", "[::1]", "user@h:1", "h:-1", "h:1x", "h:٣"])
def test_what_is_not_of_the_kind_host_and_port_is_refused_by_all(text: str) -> None:
    for read in (Address.parse, host_and_port, listen_on):
        with pytest.raises(AddressError, match="not an address of the kind host:port"):
            read(text)


def test_address_that_no_interface_has_is_said_with_those_that_there_are() -> None:
    assert "127.0.0.1" in not_here("192.0.2.77")
    for host in machine_addresses():
        assert host in not_here("192.0.2.77")
    with pytest.raises(OSError, match=r"no interface of this machine has 192\.0\.2\.77: it has .*127\.0\.0\.1"):
        listen_on("192.0.2.77:0")
    hub = Address("192.0.2.77", 29400)
    assert hub.listen() is None
    assert hub.why_not_free() == not_here("192.0.2.77")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        here = Address("127.0.0.1", taken.getsockname()[1])
        assert here.listen() is None
        assert here.why_not_free() == f"port {here.port} here is taken by {port_holder(here.port)}"


@pytest.mark.parametrize(
    ("host", "found"), [("127.0.0.9", "127.0.0.9"), ("::1", "::1"), ("::ffff:127.0.0.9", "127.0.0.9")]
)
def test_what_listens_is_found_in_each_family(host: str, found: str) -> None:
    try:
        server = listen_on(f"[{host}]:0" if ":" in host else f"{host}:0")
    except OSError as error:
        if ":" not in host:
            raise
        pytest.skip(f"no IPv6: {error}")
    with server, socket.create_connection((host, server.getsockname()[1])) as client:
        inodes = [os.fstat(one.fileno()).st_ino for one in (server, client)]
        assert [one for one in listeners() if one.inode in inodes] == [(found, server.getsockname()[1], inodes[0])]


def test_what_listens_is_found_where_the_kernel_has_no_ipv6(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        shutil.copy("/proc/net/tcp", tmp_path)
        assert ("127.0.0.1", server.getsockname()[1]) in [(one.host, one.port) for one in listeners(tmp_path)]


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
