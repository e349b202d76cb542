"""Whom the hub refuses, and that both ends say why."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from geocomm.core import patience
from geocomm.core.addresses import Address
from geocomm.group.rendezvous.tunnel import probe
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, Keys, KeysError
from geocomm.wire import dial as dial_module
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, Purpose, SessionRefused
from support.hub_support import (
    PROBE,
    EchoStore,
    hub_with_store,
    make_keys,
    run,
    running_hub,
    stream_server,
    until,
)
from support.local_jobs import free_port

pytestmark = pytest.mark.timeout(120)


def test_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def none(_: str) -> None:
        return None

    async def work() -> None:
        async with running_hub(keys["a"], none) as place:
            with pytest.raises(SessionRefused, match="no store"):
                await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, os.urandom(16), 0, "other"))

    run(work())


def test_hub_with_as_many_sessions_as_it_may_have_refuses_more(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            place.hub.max_sessions = 2
            numbers = [os.urandom(16) for _ in range(3)]
            streams = [
                (await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test")))[0]
                for number in numbers[:2]
            ]
            with pytest.raises(SessionRefused, match="ulimit"):
                await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, numbers[2], 0, "test"))
            assert store.connections == 2
            for stream in streams:
                stream.close()

    run(work())


def test_session_of_another_site_cannot_be_taken_over(tmp_path: Path) -> None:
    keys, store = make_keys(tmp_path / "keys", "abc"), EchoStore()

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            number = os.urandom(16)
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, number, 0, "test"))
            for purpose in (Purpose.RESUME, Purpose.BEGIN):
                with pytest.raises(SessionRefused):
                    await dial(place.address, keys["c"], Greeting(purpose, number, 0, "test"))
            stream.close()
            again, received = await dial(place.address, keys["b"], Greeting(Purpose.RESUME, number, 0, "test"))
            assert received == 0
            again.close()

    run(work())


def expired(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime

    from geocomm.security import job_ca

    class Past(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) - timedelta(days=40)

    with monkeypatch.context() as patch:
        patch.setattr(job_ca, "datetime", Past)
        JobCa.open(folder).renew("b", 30)


@pytest.mark.parametrize("kind", ["expired", "revoked", "other CA", "other job"])
def test_site_with_bad_keys_is_refused_and_both_ends_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keys = make_keys(tmp_path / "keys")
    client, at_client, at_hub = keys["b"], kind, kind
    if kind == "expired":
        expired(tmp_path / "keys", monkeypatch)
    elif kind == "revoked":
        JobCa.open(tmp_path / "keys").revoke("b")
        (tmp_path / "keys/b/crl.pem").unlink()
    elif kind == "other CA":
        client, at_client, at_hub = (
            make_keys(tmp_path / "other")["b"],
            "not signed by this job's CA",
            "not of its job's CA",
        )
    else:
        # Same CA, another job: only the name in the certificate tells.
        at_client = at_hub = "of job run7, but this is job run8"
        keys["a"] = Keys(keys["a"].folder, Identity("run8", "a"))
        client = Keys(client.folder, Identity("run8", "b"))
    store = EchoStore()

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            with pytest.raises(KeysError, match=at_client) as caught:
                await dial(place.address, client, PROBE)
            assert f"hub {place.address}: " in str(caught.value)
            if kind != "other job":  # there, the client leaves first
                await until(lambda: bool(place.lines), "the hub says why")
                assert at_hub in place.lines[0]
            assert store.connections == 0

    run(work())


def test_renewed_keys_are_used_without_a_new_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, store = make_keys(tmp_path / "keys"), EchoStore()

    async def work() -> None:
        async with hub_with_store(keys["a"], store) as place:
            expired(tmp_path / "keys", monkeypatch)
            with pytest.raises(KeysError):
                await dial(place.address, keys["b"], PROBE)
            JobCa.open(tmp_path / "keys").renew("b", 30)
            (await dial(place.address, keys["b"], PROBE))[0].close()
            JobCa.open(tmp_path / "keys").revoke("b")  # the running hub reads the new list
            with pytest.raises(KeysError, match="revoked"):
                await dial(place.address, keys["b"], PROBE)

    run(work())


def test_hub_without_tls_is_told_from_one_with(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def work() -> None:
        async with stream_server("127.0.0.2", answer) as port:
            with pytest.raises(KeysError, match="does not speak TLS"):
                await dial(Address("127.0.0.2", port), keys["b"], PROBE)

    run(work())


def test_probe_waits_for_the_hub_and_names_it_if_it_does_not_come(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        port = free_port("127.0.0.2")
        with pytest.raises(ConnectionError, match=f"127.0.0.2:{port}"):
            await probe(Address("127.0.0.2", port), keys["b"], 0.3, print)

    run(work())


def test_probe_of_a_hub_that_never_answers_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = make_keys(tmp_path / "keys")
    monkeypatch.setattr(dial_module, "DIAL_LIMIT_S", 0.2)

    async def work() -> None:
        with socket.create_server(("127.0.0.2", 0)) as silent, pytest.raises(ConnectionError, match="time-out"):
            await probe(Address("127.0.0.2", silent.getsockname()[1]), keys["b"], 0.0, print)

    run(work())


def test_probe_of_a_silent_hub_says_so_before_its_first_attempt_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, lines = make_keys(tmp_path / "keys"), list[str]()
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.1)
    monkeypatch.setattr(patience, "_LOOK_S", 0.05)
    monkeypatch.setattr(dial_module, "DIAL_LIMIT_S", 1000.0)

    async def work() -> None:
        with socket.create_server(("127.0.0.2", 0)) as silent:
            port = silent.getsockname()[1]
            waits = probe(Address("127.0.0.2", port), keys["b"], 0.0, lines.append, also=lambda: "; and so on")
            probing = asyncio.create_task(waits)
            await until(lambda: bool(lines), "the probe says nothing")
            assert not probing.done()
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)
            assert lines[0] == f"waiting for the hub at 127.0.0.2:{port} to answer (no answer); and so on"

    run(work())


def test_dial_to_a_closed_port_says_so_in_the_systems_words(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        with pytest.raises(ConnectionError, match=r"^Connection refused$"):
            await dial(Address("127.0.0.2", free_port("127.0.0.2")), keys["b"], PROBE)

    run(work())


def test_hub_that_ends_says_whose_connections_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.1)
    monkeypatch.setattr(patience, "_LOOK_S", 0.05)
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        async with hub_with_store(keys["a"], EchoStore()) as place:
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.BEGIN, os.urandom(16), 0, "test"))
            await until(lambda: place.hub.sessions == 1, "the hub has no session")
            draining = asyncio.create_task(place.hub.drained(1000.0))
            await until(lambda: bool(place.lines), "the hub says nothing")
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            stream.close()
            assert place.lines[0] == "waiting for site b to leave the hub, for 1000 s at most"

    run(work())
