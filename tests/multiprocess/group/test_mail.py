"""Mail between processes that share nothing but keys and a token: one that dies, and comes back as another, disturbs
nobody."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from geocomm.security.job_ca import JobCa
from support.harness import joined
from support.local_jobs import free_ports
from support.mail_member import content_of, digest_of
from support.warm_ranks import warm_ranks

MEMBER = Path(__file__).parents[2] / "support/mail_member.py"
PATIENCE_S = 60


class Member:
    """One process of a site."""

    def __init__(self, keys: Path, site: str) -> None:
        self.site = site
        self.process = subprocess.Popen(
            [*warm_ranks().command(str(MEMBER)), str(keys / site), site],
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
    # Two link deadlines and more: the dead one is dialed, and holds up nobody.
    for round in range(3, 20):
        post(round, a, b)
        a.do("receive", c, round=round)
        expect(round, a, b)
        assert a.wait(event="came", id=c.id, round=round)["why"] == f"round {round} has ended"
        time.sleep(0.75)

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
    b.do("forget", a)  # without a close, its end may look like a line that is down
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


def test_rounds_that_nobody_receives_hold_up_no_other_and_leave_nothing(members: Members) -> None:
    a, b = members.start("a"), members.start("b")
    a.know(b)
    b.know(a)
    early = range(100, 118)  # more than the credit for what nobody waits for
    for round in early:
        a.do("send", b, round=round)
    for round in range(2):  # both under way at once
        post(round, a, b)
    for round in range(2):
        expect(round, a, b)
    for round in early:
        b.do("end", round=round)  # before the sender does, whose bytes are still on their way
    a.do("send", b, round=early[0])
    b.do("receive", a, round=early[0])
    assert b.wait(event="came", id=a.id, round=early[0])["digest"] is None
    for round in early:
        a.do("end", round=round)
    # All of the credit is there again: this comes whole before anybody receives it.
    for round in range(200, 213):
        a.do("send", b, round=round)
    for round in range(200, 213):
        b.do("receive", a, round=round)
        expected = digest_of(content_of("a", round))
        assert b.wait(event="came", id=a.id, round=round)["digest"] == expected


_own: dict[str, Any] = {}
"""Of a rank below."""


def _open_mail() -> tuple[bytes, int]:
    from geocomm.core.native import native
    from geocomm.group.backend.runtime import runtime
    from geocomm.group.membership.own_address import own_address

    assert runtime.world is not None
    with runtime.endpoint(runtime.world.options, own_address()) as endpoint:
        _own["mail"] = native().Mail(endpoint=endpoint, token=bytes(16), max_bytes=1000)
    return _own["mail"].id, _own["mail"].port


def _sum_beside_mail(others: list[tuple[bytes, int]], round: int) -> tuple[float, list[int]]:
    mail = _own["mail"]
    came: queue.Queue[torch.Tensor | None] = queue.Queue()
    id, port = others[1 - dist.get_rank()]
    mail.peer(id, "127.0.0.1", port, "", "the other")
    mail.receive(id, round, 0, lambda content, why: came.put(content))
    mail.send(id, round, 0, torch.full((3,), dist.get_rank() + 1, dtype=torch.uint8))
    total = torch.ones(1)
    dist.all_reduce(total)
    content = came.get(timeout=PATIENCE_S)
    dist.barrier()  # what the other has not got yet would not be sent any more
    mail.end_round(round)
    return float(total), [] if content is None else content.tolist()


def test_mail_and_groups_of_one_site_share_a_port(tmp_path: Path) -> None:
    JobCa.create(tmp_path / "keys", "run7", ["a"], 30)
    ports = free_ports(2)
    keys = {"GEOCOMM_KEYS": str(tmp_path / "keys/a")}
    variables = {rank: keys | {"GEOCOMM_PORT": str(ports[rank])} for rank in range(2)}
    with joined(["a", "a"], environment_of=variables) as ranks:
        opened = ranks.run(_open_mail)
        assert [port for _, port in opened] == ports
        assert ranks.run(_sum_beside_mail, opened, 0) == [(2.0, [2, 2, 2]), (2.0, [1, 1, 1])]
        ranks.destroy()
        ranks.init()  # over the port that the mail has
        assert ranks.run(_sum_beside_mail, opened, 1) == [(2.0, [2, 2, 2]), (2.0, [1, 1, 1])]
