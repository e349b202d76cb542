"""A leader's `Sequencer` that tests drive event by event."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from geocomm.data.deal_records import DealtShards, text_of
from geocomm.elastic.journal.entries import EMPTY, FRAME_BYTES, Entry, Round
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Beat,
    Down,
    Due,
    Hello,
    Hold,
    Model,
    Offer,
    Open,
    Owner,
    RanksUp,
    ReadySaid,
    Up,
)
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import (
    Append,
    Came,
    Close,
    Event,
    LeaderSettings,
    Log,
    Said,
    Send,
    SendEntries,
    Tick,
)

D = TypeVar("D", bound=Down)
STORES = {name: f"{ord(name):032x}" for name in "abcde"}
MODEL = Model(
    settings={"codec": "int4", "every": "auto, 10 at first", FRAME_BYTES: "1000"},
    layout="1" * 32,
    fragments=2,
    every=10,
)
DIGESTS = ("2" * 32, "3" * 32)
OF_A_DEAL = 4
"""Sequences of a shard."""


class Led:
    """A leader with its journal and clock, and what it has sent."""

    def __init__(
        self,
        terms: LeaderSettings | None = None,
        entries: Sequence[Entry] = (),
        start: int = 0,
        model: Model = MODEL,
    ) -> None:
        self.entries = [*entries]
        self._model = model
        self.now = 1000.0
        self.sent: list[Send | SendEntries | Close] = []
        self.logged: list[str] = []
        numbers = itertools.count(1)
        state, terms = RunState.of(self.entries), terms or LeaderSettings()
        self.sequencer = Sequencer(state, terms, self._hash_at, lambda: f"{next(numbers):032x}", "leader:1", start)

    def _hash_at(self, index: int) -> str | None:
        return EMPTY.hash if index < 0 else self.entries[index].hash if index < len(self.entries) else None

    def on(self, event: Event) -> None:
        for action in self.sequencer.on(event, self.now):
            if isinstance(action, Append):
                self.entries.append(action.entry)
            elif isinstance(action, Send | SendEntries | Close):
                self.sent.append(action)
            elif isinstance(action, Log):
                self.logged.append(action.text)

    def say(self, site: str, message: Up) -> None:
        self.on(Said(site, message))

    def wait(self, seconds: float, beating: str = "") -> None:
        """Tick by tick; these sites beat."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            for site in beating:
                self.say(site, Beat(step=0, tokens=0, step_s=0.1, line_s=0, free_bytes=0))
            self.on(Tick())

    def hello_of(self, site: str, **changes: Any) -> Hello:
        """That of a site that has all of the journal."""
        genesis = self.sequencer.state.genesis
        fields: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "geocomm": "1",
            "store": STORES.get(site, ""),
            "run": genesis.run if genesis else None,
            "head": len(self.entries) - 1,
            "head_hash": self._hash_at(len(self.entries) - 1) if self.entries else None,
            "term": self.sequencer.state.term,
            "fetch": f"{site}:1",
        }
        return Hello(**fields | changes)

    def hello(self, site: str, **changes: Any) -> None:
        for one in self.sequencer.sites.values():
            if one.connected:  # it has written what it heard
                one.head = max(one.head, len(self.entries) - 1)
        hello = self.hello_of(site, **changes)
        if refused := self.sequencer.turned_away(site, hello, self.now):
            self.sent.append(Send(site, refused))
            return
        self.on(Came(site))
        self.say(site, hello)

    def ranks_up(self, site: str, model: Model | None = None, owner: str = "") -> None:
        owners = (Owner(id=owner or STORES[site], host=site, port=1),)
        self.say(site, RanksUp(owners=owners, model=model or self._model, digests=DIGESTS))

    def take_part(self, sites: str) -> Led:
        for site in sites:
            self.hello(site)
            self.ranks_up(site)
            self.say(site, ReadySaid())
        assert set(sites) <= set(self.sequencer.state.live)
        return self

    def offer(
        self,
        site: str,
        held_by: str = "",
        *,
        fragment: int = 0,
        attempt: int | None = None,
        lr: float = 0.0,
        step: int | None = None,
        by_mail: bool = True,
        taken: int = 0,
        length: float = 1.0,
        weight: int = 5,
    ) -> str:
        """The frame that the site makes in the last attempt; who else holds it."""
        attempt = self.messages(Open)[-1].attempt if attempt is None else attempt
        version = self.sequencer.state.versions[fragment]
        frame = f"{ord(site):032x}{fragment:08x}{version:012x}{attempt:012x}"
        offer = Offer(
            fragment=fragment,
            version=version,
            attempt=attempt,
            frame=frame,
            coded_bytes=10,
            exact_bytes=2,
            weight=weight,
            step=10 * version if step is None else step,
            squared_norm=length * length,
            lr=lr,
            every=0,
            taken=taken,
        )
        self.say(site, offer)
        for other in held_by:
            self.say(other, Hold(fragment=fragment, version=version, site=site, frame=frame, by_mail=by_mail))
        return frame

    def due(self, site: str = "a", fragment: int = 0) -> None:
        self.say(site, Due(fragment=fragment, version=self.sequencer.state.versions[fragment]))

    def messages(self, kind: type[D], site: str | None = None) -> list[D]:
        sends = [one for one in self.sent if isinstance(one, Send) and site in (None, one.site)]
        return [one.message for one in sends if isinstance(one.message, kind)]

    def kinds(self) -> list[str]:
        return [entry.kind for entry in self.entries]

    @property
    def last_members(self) -> str:
        entry = self.entries[-1]
        assert isinstance(entry, Round)
        return "".join(one.site for one in entry.members)


class EndlessShards:
    """A `RunData`, one shard a deal."""

    def __init__(self, number: int = 1, readers: str = "abc", of_a_pass: int = 10**6) -> None:
        self.number, self.sha256 = number, f"{number:064x}"
        self._readers, self._of_a_pass = readers, of_a_pass
        self.speeds: Mapping[str, float] = {}

    def next_deal(self, state: RunState, site: str, speeds: Mapping[str, float]) -> tuple[str, int] | None:
        self.speeds = speeds
        return (text_of([(0, len(state.deals))]), OF_A_DEAL) if site in self._readers else None

    def may_read(self, state: RunState, site: str, deal: DealtShards) -> bool:
        return site in self._readers

    def readable(self, site: str) -> int:
        return self._of_a_pass

    def undealt(self, state: RunState) -> int:
        return 100 - len(state.deals)

    def waits(self, state: RunState, sites: Collection[str]) -> list[str]:
        return [] if any(site in self._readers for site in sites) else [f"it waits for {self._readers}"]
