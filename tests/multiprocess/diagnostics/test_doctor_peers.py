"""`geocomm doctor` between machines: the answerer and what it refuses, unreachable peers, and the ranks of a job."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from geocomm.diagnostics.doctor_network import GREETING, MAX_ECHO_BYTES, Answerer, call, peer_findings
from geocomm.diagnostics.finding import State
from support.local_jobs import environment, free_port


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
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        (silent,) = peer_findings("to b", "127.0.0.1", port, timeout_s=0.5)
    assert silent.state == State.NOTE
    (refused,) = peer_findings("to b", "127.0.0.1", port, timeout_s=5)
    assert refused.state == State.BAD
    assert f"--listen {port}" in refused.fix
    (nowhere,) = peer_findings("to b", "no-such-host.invalid", port, timeout_s=5)
    assert nowhere.state == State.BAD


def job(*environments: dict[str, str], arguments: tuple[str, ...] = ("--json",)) -> list[tuple[int, str, str]]:
    """(status, stdout, stderr) of doctors of a job whose ranks have these variables."""
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(environments))}
    common |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "geocomm", "doctor", *arguments],
            env=environment(**common, RANK=str(rank)) | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, own in enumerate(environments)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def by_name(output: str) -> dict[str, dict[str, Any]]:
    return {finding["name"]: finding for finding in json.loads(output)}


def test_ranks_that_differ_are_named_and_ways_between_sites_measured() -> None:
    a = {"GEOCOMM_SITE": "a"}
    (status, output, errors), *others = job(a, {"GEOCOMM_SITE": "b", "GEOCOMM_CODEC": "int8"}, a)
    assert status == 1, errors
    assert [(other[0], other[1]) for other in others] == [(0, ""), (0, "")]
    found = by_name(output)
    different = found["not alike: option codec"]
    assert different["state"] == "bad"
    assert "rank 1 (site b): int8" in different["value"]
    assert [name for name in found if name.startswith("not alike")] == ["not alike: option codec"]
    trips = [name for name in found if name.endswith("round trip")]
    for peer in range(3):
        assert any(f"to rank {peer} " in name for name in trips)
    assert all(found[name]["state"] == "ok" for name in trips)


def test_site_that_only_dials_out_looks_at_the_others_and_is_not_dialled() -> None:
    outbound = {"GEOCOMM_SITE": "b", "GEOCOMM_OUTBOUND_ONLY": "1"}
    (status, output, errors), *_ = job({"GEOCOMM_SITE": "a"}, outbound)
    found = by_name(output)
    assert found["site that only dials out"]["state"] == "ok"
    assert found["site that only dials out"]["value"].startswith("b:")
    ways = {name: finding for name, finding in found.items() if ": to rank" in name}
    not_tried = [name for name in ways if "to rank 1 " in name]
    assert [ways[name]["state"] for name in not_tried] == ["note"], ways
    assert any("to rank 0 " in name and name.endswith("round trip") for name in ways)
    assert status == 0, errors


def test_two_sites_that_only_dial_out_are_bad() -> None:
    both = {"GEOCOMM_OUTBOUND_ONLY": "1"}
    ((status, output, _), *_) = job({"GEOCOMM_SITE": "a"}, both | {"GEOCOMM_SITE": "b"}, both | {"GEOCOMM_SITE": "c"})
    assert status == 1
    bad = by_name(output)["sites that only dial out"]
    assert bad["state"] == "bad"
    assert bad["value"].startswith("b, c:")
    assert bad["fix"]


def test_rank_that_does_not_come_is_an_error_within_the_timeout() -> None:
    ((status, output, errors),) = job({"WORLD_SIZE": "2"}, arguments=("--timeout", "3"))
    assert (status, output) == (2, "")
    assert "geocomm doctor" in errors
