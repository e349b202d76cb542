"""A rank of an elastic run without torch: `python -m support.elastic_rank`, with the environment that ranks have.

It has one fragment. A round makes of its state the hash of it and of the listed frames, again and again: sites that
have applied the same entries have equal digests. Frames go from rank to rank over plain sockets; with --no-mail
they do not, as past a closed port. After SIGUSR1 it says a wrong digest of the next round that it applies; after
SIGUSR2 it leaves in order, and ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import socket
import statistics
import sys
import threading
import time
import uuid

from geocomm.elastic.files.fragment_store import FragmentStore, digest_of
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.entries import FRAME_BYTES, Join, Snapshot
from geocomm.elastic.journal.member import Act, Member, Recompute, Say, SendFrame
from geocomm.elastic.journal.messages import (
    Beat,
    Down,
    EntrySaid,
    Leave,
    Leaving,
    Model,
    Offer,
    Owner,
    Pass,
    RankHello,
    RankWelcome,
    Stop,
)
from geocomm.elastic.site.rank_socket import RankSocket

STEP_S = 0.05
EVERY = 4
_REPEATS = 20_000
"""Of the hash in the state: some rounds have fewer bytes of frames."""
FIRST_STATE = bytes(32 * _REPEATS)
MODEL = Model(settings={"codec": "none", FRAME_BYTES: str(64 * _REPEATS)}, layout="2" * 32, fragments=1, every=EVERY)


class FakeRank:
    """The rank, in one thread beside that of its socket."""

    def __init__(self, agent: str, run_dir: str, frame_bytes: int, *, mail: bool) -> None:
        self._mail = mail
        self._arrived: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._take_mail, daemon=True).start()
        self._store = FragmentStore(run_dir)
        self._frame_bytes = frame_bytes
        self._id = uuid.uuid4().hex
        self._state, self._version = FIRST_STATE, 0
        self._member: Member | None = None
        self._early: list[Down] = []
        """What was heard before the welcome."""
        self._site = ""
        self._step = 0
        self._steps_s: list[float] = []
        self._keep_state = False
        self._snapshots = Snapshots(self._store)
        self._snapshot: Snapshot | None = None
        self._has_wrong_bits = self._leaves = False
        signal.signal(signal.SIGUSR1, self._break_memory)
        signal.signal(signal.SIGUSR2, self._leave)
        self._said = queue.SimpleQueue[Down]()
        self._socket = RankSocket(agent, self._hello, self._said.put)
        self._socket.start()

    def _break_memory(self, *_: object) -> None:
        self._has_wrong_bits = True

    def _leave(self, *_: object) -> None:
        self._leaves = True

    def run(self) -> None:
        while not self._leaves:
            time.sleep(STEP_S)
            begun = time.monotonic()
            self.step()
            self._steps_s.append(time.monotonic() - begun + STEP_S)
        print(f"steps: median {statistics.median(self._steps_s):.4f} s, longest {max(self._steps_s):.4f} s", flush=True)
        self._socket.say(Leave(finished=True))
        self._socket.close(20.0)  # once the agent has it

    def step(self) -> None:
        while not self._said.empty():
            self._heard(self._said.get())
        if self._member is None:
            return
        while not self._arrived.empty():
            version, site, content = self._arrived.get()
            with contextlib.suppress(OSError):  # a full disk
                frame = self._store.write_frame(0, version, site, [content])
                self._do(self._member.arrived(0, version, site, frame, by_mail=True))
        self._step += 1
        if self._step % 20 == 0:
            self._socket.say(Beat(step=self._step, tokens=0, step_s=STEP_S, line_s=0, free_bytes=0))
        if self._step % EVERY == 0:
            self._do(self._member.due(0))
        if self._member.begins():
            self._make()
        while (settled := self._member.next_settled()) is not None:
            if settled.entry is not None:
                frames = [
                    self._store.read_frame(0, settled.version, one.site, one.frame) for one in settled.entry.members
                ]
                self._state = hashlib.sha256(self._state + b"".join(frames)).digest() * _REPEATS
            if settled.state is not None:
                self._state = self._store.read_state(0, settled.state)
            self._version = settled.after
            said = bytes(32) if self._has_wrong_bits else self._state
            self._has_wrong_bits = False
            self._do(self._member.applied(settled, digest_of(self._version, [said])))
            if self._keep_state:
                self._store.write_state(0, self._version, [self._state])
                self._store.remove_before(0, self._version)
                self._keep_state = False
        if self._snapshot is not None and self._version >= self._snapshot.versions[0]:
            self._take_snapshot(self._snapshot)
            self._snapshot = None

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        if self._version == snapshot.versions[0]:
            self._store.write_state(0, self._version, [self._state])
            self._snapshots.keep_state(snapshot.index, 0, self._version)

    def _hello(self) -> RankHello:
        return RankHello(
            place=0,
            owners=1,
            owner=Owner(id=self._id, host="127.0.0.1", port=self._listener.getsockname()[1]),
            model=MODEL,
            digests={0: digest_of(self._version, [self._state])},
            versions={0: self._version},
        )

    def _heard(self, down: Down) -> None:
        if isinstance(down, Stop):
            sys.exit(f"stopped: {down.why}")
        if isinstance(down, Leaving):
            self._socket.say(Leave())
        if isinstance(down, RankWelcome) and self._member is None:
            self._site = down.site
            if 0 in down.states:
                self._version = down.states[0]
                self._state = self._store.read_state(0, self._version)
            self._step = down.step
            self._member = Member(down.site, {0: self._version}, head=down.head)
            print(f"begins at version {self._version}", flush=True)
            early, self._early = self._early, []
            for one in early:
                self._heard(one)
        if self._member is None:
            self._early.append(down)
        else:
            if isinstance(down, EntrySaid) and isinstance(down.entry, Join) and down.entry.site != self._site:
                self._keep_state = True
            if isinstance(down, EntrySaid) and isinstance(down.entry, Snapshot):
                self._snapshot = down.entry
            self._do(self._member.on_down(down))

    def _make(self) -> None:
        assert self._member is not None
        opened = self._member._own[0].open
        assert opened is not None
        content = os.urandom(self._frame_bytes)
        try:
            frame = self._store.write_frame(0, opened.version, self._site, [content])
        except OSError:  # a full disk
            self._do(self._member.made(Pass(**opened.named)))
            return
        offer = Offer(
            **opened.named,
            frame=frame,
            coded_bytes=len(content),
            exact_bytes=0,
            weight=EVERY,
            step=self._step,
            squared_norm=1.0,
            lr=0,
            every=0,
        )
        self._do(self._member.made(offer))

    def _do(self, acts: list[Act]) -> None:
        for act in acts:
            if isinstance(act, Say):
                self._socket.say(act.message)
            elif isinstance(act, Recompute):
                sys.exit("has to start again, from its disk")
            elif isinstance(act, SendFrame) and self._mail:
                offer = act.offer
                head = json.dumps([offer.version, self._site]).encode() + b"\n"
                content = head + self._store.read_frame(0, offer.version, self._site, offer.frame)
                for peer in act.peers:
                    threading.Thread(target=_send, args=(peer.owners[0], content), daemon=True).start()

    def _take_mail(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as file, contextlib.suppress(OSError, ValueError):
                version, site = json.loads(file.readline())
                self._arrived.put((version, site, file.read()))


def _send(owner: Owner, content: bytes) -> None:
    with (
        contextlib.suppress(OSError, UnicodeError),
        socket.create_connection((owner.host, owner.port), 5) as connection,
    ):
        connection.sendall(content)


if __name__ == "__main__":
    rank = FakeRank(os.environ["GEOCOMM_AGENT"], os.environ["GEOCOMM_RUN_DIR"], 2000, mail="--no-mail" not in sys.argv)
    rank.run()
