"""One round of an elastic run in one process: what the docstring of `geocomm.elastic.journal` shows.

`Sequencer` decides for the leader, `Member` for a rank. Both take what has happened and return what is to be done. This
is their caller for two sites with one rank each, on an invented clock.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from geocomm.elastic import journal
from geocomm.elastic.journal.entries import EMPTY, Entry
from geocomm.elastic.journal.member import Act, Member, Say, SendFrame
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Down,
    EntrySaid,
    Hello,
    Model,
    Offer,
    Owner,
    RanksUp,
    ReadySaid,
)
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import Append, Came, Event, LeaderSettings, Said, Send, SendEntries


class TwoSites:
    """A leader and a rank at each of two sites; what they do is in `told`, line by line."""

    def __init__(self) -> None:
        number = itertools.count(1)
        self.some_id = lambda: f"{next(number):032x}"
        self.journal: list[Entry] = []
        self.mail: list[tuple[str, str, Offer]] = []
        self.told: list[str] = []
        self.rank = {site: Member(site, {0: 0}) for site in "ab"}  # fragment 0 is at version 0
        settings = LeaderSettings(wait_for=frozenset("ab"))
        self.leader = Sequencer(RunState.of([]), settings, self._hash_at, self.some_id)

    def _hash_at(self, index: int) -> str:
        return self.journal[index].hash if index >= 0 else EMPTY.hash

    def lead(self, event: Event) -> None:
        """The leader's loop (`elastic/leading/leader.py`): an entry is on disk before anything after it is done."""
        for action in self.leader.on(event, now=0.0):
            match action:
                case Append(entry):
                    self.journal.append(entry)
                    self.told.append(f"leader: {entry.kind} is in the journal")
                case Send(site, message):
                    self.hear(site, message)
                case SendEntries(site, first, last):
                    for entry in self.journal[first : last + 1]:
                        self.hear(site, EntrySaid(entry=entry))
                case _:
                    pass

    def hear(self, site: str, message: Down) -> None:
        """The agent's loop (`elastic/site/agent.py`): it keeps entries in its own journal, and tells its ranks."""
        self.act(site, self.rank[site].on_down(message))

    def act(self, site: str, acts: Iterable[Act]) -> None:
        """The rank's loop (`member_rounds.py`): frames go by mail, everything else through the agent."""
        for one in acts:
            match one:
                case SendFrame(offer, peers):
                    self.mail.extend((peer.site, site, offer) for peer in peers)
                case Say(message):
                    self.told.append(f"{site}: {message.kind}")
                    self.lead(Said(site, message))
                case _:
                    pass

    def frame(self) -> Offer:
        """An offer of the frame that a rank would have made of its delta, and written to disk."""
        return Offer(
            fragment=0,
            version=0,
            attempt=0,
            frame=self.some_id() * 2,
            coded_bytes=9,
            exact_bytes=0,
            weight=1,
            step=30,
            squared_norm=1.0,
            lr=0.1,
            every=0,
        )

    def join(self, site: str) -> None:
        """The agent connects."""
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            geocomm="0",
            store=self.some_id(),
            run=None,
            head=-1,
            head_hash=None,
            term=0,
            fetch="",
        )
        self.lead(Came(site))
        self.lead(Said(site, hello))

    def begin(self, site: str) -> None:
        """The site's ranks are there."""
        trained = Model(settings={"codec": "int4", "frame_bytes": "9"}, layout="1" * 32, fragments=1, every=30)
        owner = Owner(id=self.some_id(), host="host", port=1)
        self.lead(Said(site, RanksUp(owners=(owner,), model=trained, digests=("2" * 32,))))
        self.lead(Said(site, ReadySaid()))


def test_round_closes_once_both_sites_hold_both_frames_as_the_docstring_shows() -> None:
    run = TwoSites()
    for site in "ab":
        run.join(site)
    for site in "ab":
        run.begin(site)
    run.act("a", run.rank["a"].due(0))  # 30 steps are done at a; the leader opens a round
    for site in "ab":  # each at its next optimizer step
        for _ in run.rank[site].begins():
            run.act(site, run.rank[site].made(run.frame()))
    for to, by, offer in run.mail:  # frames arrive, and are on disk
        run.act(to, run.rank[to].arrived(0, 0, by, offer.frame, by_mail=True))
    for site in "ab":  # each at its next optimizer step: the outer step
        while settled := run.rank[site].next_settled():
            run.act(site, run.rank[site].applied(settled, digest="3" * 32))
    assert [entry.kind for entry in run.journal] == ["genesis", "join", "join", "ready", "ready", "round"]
    assert all(run.rank[site].versions == {0: 1} for site in "ab")
    assert run.told == re.findall(r"^    (.+)$", journal.__doc__ or "", re.MULTILINE)
