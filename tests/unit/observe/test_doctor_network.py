"""`geocomm doctor` asks another: what an answerer refuses, clocks that are wrong, peers that are not reached."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from geocomm.observe.doctor import doctor_network
from geocomm.observe.doctor.doctor_machine import State
from geocomm.observe.doctor.doctor_network import GREETING, MAX_ECHO_BYTES, Answerer, call, peer_findings
from support.local_jobs import free_port


def test_call_to_an_answerer_tells_round_trip_clock_and_mtu() -> None:
    with Answerer() as answerer:
        seen = call("127.0.0.1", answerer.port)
        names = {finding.name: finding.state for finding in peer_findings("to b", "127.0.0.1", answerer.port)}
    assert seen.echoed
    assert 0 < seen.rtt_s < 5
    assert abs(seen.skew_s) <= seen.rtt_s / 2 + 0.001  # one machine, one clock
    assert seen.mtu_bytes >= 1500
    assert names == {"to b: round trip": State.OK, "to b: path MTU": State.OK, "to b: its clock": State.OK}


@pytest.mark.parametrize(
    "words", [b"\0" * 10_000, b"x" * 63 + b"\n", b"echo %d\n" % (MAX_ECHO_BYTES + 1), b"echo -1\n", "echo ²\n".encode()]
)
def test_answerer_hangs_up_on_what_it_does_not_know(words: bytes) -> None:
    with Answerer() as answerer:
        with socket.create_connection(("127.0.0.1", answerer.port), 10) as stranger:
            stranger.sendall(GREETING + words)
            received = b""
            try:
                while piece := stranger.recv(65536):
                    received += piece
            except ConnectionResetError:
                pass
        assert received in (b"", GREETING)
        assert call("127.0.0.1", answerer.port).echoed


def test_answerer_stays_for_others_while_many_say_nothing() -> None:
    with Answerer() as answerer:
        silent = [socket.create_connection(("127.0.0.1", answerer.port), 10) for _ in range(20)]
        assert call("127.0.0.1", answerer.port).echoed
        for connection in silent:
            connection.close()


def test_answerer_hangs_up_on_who_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_network, "_CALL_S", 0.1)
    with Answerer() as answerer, socket.create_connection(("127.0.0.1", answerer.port), 60) as silent:
        assert silent.recv(1) == b""


def _wrong_clock(listener: socket.socket, ahead_ns: int) -> None:
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        for line in lines:
            if line == b"clock\n":
                now = time.time_ns() + ahead_ns
                connection.sendall(b"%d %d\n" % (now, now))
            elif line.startswith(b"echo "):
                return  # large data does not pass
            else:
                connection.sendall(line)


@pytest.mark.parametrize(("ahead_s", "state"), [(0, State.OK), (5, State.WARNING), (-3600, State.BAD)])
def test_clock_of_a_peer_that_is_wrong_is_found(ahead_s: int, state: State) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = threading.Thread(target=_wrong_clock, args=(listener, ahead_s * 10**9))
        peer.start()
        found = {f.name: f for f in peer_findings("to b", "127.0.0.1", listener.getsockname()[1])}
        peer.join()
    assert found["to b: its clock"].state == state
    assert found["to b: its clock"].value.startswith(f"{ahead_s:+.3f}"[:-3] if ahead_s else "")
    assert found["to b: path MTU"].state == State.BAD


def test_peer_that_is_not_reached_or_no_doctor_is_told_apart() -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        (silent,) = peer_findings("to b", "127.0.0.1", port, timeout_s=0.5)
    assert silent.state == State.NOTE
    (refused,) = peer_findings("to b", "127.0.0.1", port, timeout_s=5)
    assert refused.state == State.BAD
    assert f"--listen {port}" in refused.fix
    (nowhere,) = peer_findings("to b", "no-such-host.invalid", port, timeout_s=5)
    assert nowhere.state == State.BAD
