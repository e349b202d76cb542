"""Mail between processes that share nothing but keys and a token: one that dies, and comes back as another, disturbs
nobody."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from geocomm.security.job_ca import JobCa
from support.mail_member import content_of, digest_of

MEMBER = Path(__file__).parents[2] / "support/mail_member.py"
PATIENCE_S = 60


class Member:
    """One process of a site."""

    def __init__(self, keys: Path, site: str) -> None:
        self.site = site
        self.process = subprocess.Popen(
            [sys.executable, str(MEMBER), str(keys / site), site],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        self._events: queue.Queue[dict[str, Any]] = queue.Queue()
        self._early: list[dict[str, Any]] = []
        threading.Thread(target=self._read, daemon=True).start()
        here = self.wait(event="here")
        self.id, self.port = here["id"], here["port"]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._events.put(json.loads(line))

    def do(self, what: str, peer: Member | None = None, **arguments: Any) -> None:
        if peer is not None:
            arguments["id"] = peer.id
        assert self.process.stdin is not None
        print(json.dumps({"do": what} | arguments), file=self.process.stdin, flush=True)

    def know(self, *peers: Member) -> None:
        for peer in peers:
            self.do("peer", peer, port=peer.port, site=peer.site)

    def wait(self, **fields: Any) -> dict[str, Any]:
        """The first event that has these fields, which nobody has waited for yet."""

        def fits(event: dict[str, Any]) -> bool:
            return all(event.get(name) == value for name, value in fields.items())

        for event in self._early:
            if fits(event):
                self._early.remove(event)
                return event
        while True:
            event = self._events.get(timeout=PATIENCE_S)
            if fits(event):
                return event
            self._early.append(event)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Of its peers, by id."""
        self.do("stats")
        return {row["id"]: row for row in self.wait(event="stats")["rows"]}

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


class Members:
    def __init__(self, keys: Path) -> None:
        self._keys = keys
        self._all: list[Member] = []

    def start(self, site: str) -> Member:
        self._all.append(Member(self._keys, site))
        return self._all[-1]

    def kill(self) -> None:
        for member in self._all:
            member.process.kill()
            member.process.wait()


@pytest.fixture
def members(tmp_path: Path) -> Generator[Members]:
    JobCa.create(tmp_path / "keys", "run7", ["a", "b", "c"], 30)
    started = Members(tmp_path / "keys")
    yield started
    started.kill()


def post(round: int, *members: Member) -> None:
    """Each sends its content of the round to all others, and is to receive theirs."""
    for member in members:
        for peer in members:
            if peer is not member:
                member.do("receive", peer, round=round)
                member.do("send", peer, round=round)


def expect(round: int, *members: Member) -> None:
    """All of it comes, bit for bit; then the round ends."""
    for member in members:
        for peer in members:
            if peer is not member:
                came = member.wait(event="came", id=peer.id, round=round)
                assert (came["why"], came["digest"]) == ("", digest_of(content_of(peer.site, round)))
    for member in members:
        member.do("end", round=round)


def test_killed_member_comes_back_as_another_and_the_others_notice_nothing(members: Members) -> None:
    a, b, c = (members.start(site) for site in "abc")
    for member, peers in ((a, (b, c)), (b, (a, c)), (c, (a, b))):
        member.know(*peers)
    for round in range(2):
        post(round, a, b, c)
        expect(round, a, b, c)

    post(2, a, b)
    for survivor in (a, b):
        survivor.do("receive", c, round=2)
        survivor.do("send", c, round=2)
    c.process.send_signal(signal.SIGKILL)
    c.process.wait()
    expect(2, a, b)
    # Two link deadlines and more, in bytes and connections: the dead one is dialed, and holds up nobody.
    for round in range(3, 20):
        post(round, a, b)
        a.do("receive", c, round=round)
        expect(round, a, b)
        assert a.wait(event="came", id=c.id, round=round)["why"] == f"round {round} has ended"

    again = members.start("c")
    assert again.id != c.id
    for survivor in (a, b):
        assert survivor.rows()[c.id]["state"] == "connecting"
        survivor.do("receive", c, round=20)
        survivor.do("forget", c)
        assert survivor.wait(event="came", id=c.id, round=20)["why"] == "the peer was forgotten"
        survivor.know(again)
    again.know(a, b)
    for round in range(21, 24):
        post(round, a, b, again)
        expect(round, a, b, again)

    for one, other in ((a, b), (b, a)):
        rows = one.rows()
        assert rows.keys() == {other.id, again.id}
        assert (rows[other.id]["state"], rows[other.id]["resumes"]) == ("connected", 0)


def test_member_that_closes_ends_its_own_channels_only(members: Members) -> None:
    a, b, c = (members.start(site) for site in "abc")
    for member, peers in ((a, (b, c)), (b, (a, c)), (c, (a, b))):
        member.know(*peers)
    post(0, a, b, c)
    expect(0, a, b, c)
    c.do("receive", a, round=1)
    a.do("receive", c, round=1)
    c.do("close")
    assert c.wait(event="came", id=a.id, round=1)["digest"] is None
    c.wait(event="closed")
    assert "has left" in a.wait(event="came", id=c.id, round=1)["why"]
    post(1, a, b)
    expect(1, a, b)
    rows = a.rows()
    assert (rows[b.id]["state"], rows[b.id]["resumes"]) == ("connected", 0)
    assert rows[c.id]["state"].startswith("failed: ")


def test_member_that_ends_without_closing_ends_at_once_and_well(members: Members) -> None:
    a, b = members.start("a"), members.start("b")
    a.know(b)
    b.know(a)
    post(0, a, b)
    expect(0, a, b)
    a.do("receive", b, round=1)
    a.do("send", b, round=1)
    assert a.end() == 0
    b.do("receive", a, round=2)
    assert b.wait(event="came", id=a.id, round=2)["digest"] is None


def test_content_beyond_the_bound_is_refused_and_the_next_comes(members: Members) -> None:
    a, b = members.start("a"), members.start("b")
    a.know(b)
    b.know(a)
    b.do("receive", a, round=0)
    a.do("send", b, round=0, extra=1)
    assert "bytes, at most" in b.wait(event="came", id=a.id, round=0)["why"]
    post(1, a, b)
    expect(1, a, b)
