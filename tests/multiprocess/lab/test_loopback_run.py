"""Sites over loopback: what passes between them is counted, what passes inside one is not; nothing is left behind."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.lab.emulator.local_job import processes_with
from geocomm.lab.emulator.loopback_run import PACKET_BYTES, PAYLOAD_BYTES, RUN_VARIABLE, LoopbackRun
from support.local_jobs import environment
from support.wan_support import wait_until

SITES = ("a", "b")
SENT, INSIDE = 3_000_000, 5_000_000
# Site b's child sends to site a; each site also sends to itself. All hold their connections until there is a file.
PROGRAM = f"""
import os, socket, subprocess, sys, threading, time
from pathlib import Path
node, port, end = int(os.environ["NODE_RANK"]), int(os.environ["MASTER_PORT"]), Path(sys.argv[1])
print("hello of", os.environ["GEOCOMM_SITE"], flush=True)
def take(listener, size):
    connection, _ = listener.accept()
    got = 0
    while got < size:
        got += len(connection.recv(1 << 16))
    held.append(connection)
def send(port, size):
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(bytes(size))
    held.append(connection)
held = []
own = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
inside = threading.Thread(target=take, args=(own, {INSIDE}))
inside.start()
send(own.getsockname()[1], {INSIDE})
inside.join()
if node == 0:
    take(socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True), {SENT})
elif os.fork() == 0:
    os.setsid()
    send(port, {SENT})
print("done", flush=True)
while not end.exists():
    time.sleep(0.05)
"""


def start(log: Path, *command: str) -> tuple[LoopbackRun, Callable[[], str]]:
    stream = log.open("w", encoding="utf-8")

    def text() -> str:
        stream.flush()
        return log.read_text(encoding="utf-8")

    return LoopbackRun(SITES, command, environment=environment(), log=stream), text


def test_bytes_between_sites_are_counted_and_others_are_not(tmp_path: Path) -> None:
    run, text = start(tmp_path / "log", sys.executable, "-c", PROGRAM, str(tmp_path / "end"))
    with run:
        wait_until(lambda: text().count("done") == 3, "all have sent", 120)
        expected = round(SENT * PACKET_BYTES / PAYLOAD_BYTES)
        wait_until(lambda: run.bytes_sent() == expected, "the bytes are those that were sent")
        assert run.running()
        (tmp_path / "end").touch()
        assert run.wait() == 0
        assert run.bytes_sent() == expected
    assert "[a] hello of a\n" in text()
    assert "[b] hello of b\n" in text()


def test_site_that_fails_gives_the_status_of_the_run(tmp_path: Path) -> None:
    run, _ = start(tmp_path / "log", "sh", "-c", "exit $((NODE_RANK * 7))")
    with run:
        assert run.wait() == 7


def test_run_that_is_left_leaves_no_process(tmp_path: Path) -> None:
    # The second one ignores SIGTERM, in a session of its own.
    run, text = start(
        tmp_path / "log", "sh", "-c", "setsid sh -c 'trap : TERM; echo here; sleep 600; sleep 600' & wait"
    )
    mine = {RUN_VARIABLE: run._name}
    with run:
        wait_until(lambda: text().count("here") == 2, "all have begun", 60)
        assert len(processes_with(mine)) > len(SITES)
    assert processes_with(mine) == []


def test_sites_know_their_place(tmp_path: Path) -> None:
    script = 'echo "$GEOCOMM_SITE $NODE_RANK/$NNODES $MASTER_ADDR $GLOO_SOCKET_IFNAME $GEOCOMM_KEYS"'
    stream = (tmp_path / "log").open("w", encoding="utf-8")
    with LoopbackRun(SITES, ["sh", "-c", script], environment=os.environ, log=stream, keys=Path("/keys")) as run:
        assert run.wait() == 0
    stream.close()
    lines = (tmp_path / "log").read_text(encoding="utf-8").splitlines()
    assert sorted(lines) == ["[a] a 0/2 127.0.0.1 lo /keys/a", "[b] b 1/2 127.0.0.1 lo /keys/b"]


@pytest.mark.parametrize("command", [["no-such-program"], ["/"]])
def test_command_that_cannot_run_raises(command: list[str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match=command[0]):
        start(tmp_path / "log", *command)
