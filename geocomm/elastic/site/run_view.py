"""The run as the agent of a site knows it, the other agents that it hears, and how its own part ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from geocomm.core.addresses import Address
from geocomm.elastic.files.fetch import Fetcher
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.message_lines import said
from geocomm.elastic.journal.messages import (
    Applied,
    Due,
    Hold,
    Lost,
    Offer,
    Open,
    Pass,
    Peers,
    SumChecked,
    Summed,
    Up,
    Wanted,
    Welcome,
)
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.elastic.leading.agent_link import LeaderLink
from geocomm.elastic.leading.leader import Leader, LeaderChanged
from geocomm.elastic.leading.questions import LeaderAnswer, MembersAsked, ask
from geocomm.security.key_folder import Keys, KeysError

Sources = Callable[[], Awaitable[list[str]]]
"""Where other agents give out files, now."""
_T = TypeVar("_T")


class AgentEnded(Exception):
    """The site's part in the run is over; `refused`: not in good order, and the message says why."""

    def __init__(self, why: str, *, refused: bool) -> None:
        super().__init__(why)
        self.refused = refused


class AgentLife:
    """The life of one agent, from its start to its end. Used in one event loop."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises AgentEnded, LeaderChanged, or the error of what was started."""
        self._tasks: set[asyncio.Task[Any]] = set()

    def end(self, why: str, *, refused: bool) -> None:
        """The site's part is over."""
        self.fail(AgentEnded(why, refused=refused))

    def start_again(self, why: str) -> None:
        """This agent begins anew from its run folder."""
        self.fail(LeaderChanged(why))

    def fail(self, error: BaseException) -> None:
        """This agent cannot go on. The first error counts."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def start(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin work, whose error ends the agent."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    async def stop(self) -> None:
        """Cancel what was started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


@dataclass
class RunView:
    """Shared by the parts of an agent. Used in one event loop."""

    site: str
    hub: str
    """Where all sites look for the leader at the start."""
    keys: Keys
    store: FragmentStore
    state: RunState
    """What the journal says."""
    journal: SqliteJournal
    known: KnownAgents
    leader: Leader | None
    """Where this agent leads too."""
    link: LeaderLink
    fetcher: Fetcher
    life: AgentLife
    own_fetch: str = ""
    """host:port where others reach this agent."""
    peers: Peers | None = None
    """Who takes part, or is about to."""
    opens: dict[int, Open] = field(default_factory=dict[int, Open])
    """The open rounds, by fragment."""
    welcome: Welcome | None = None
    """What the leader said first, while it is connected."""
    is_current: bool = False
    """The leader has welcomed this agent, and its journal has what the leader's had then."""
    _asking_leader: asyncio.Task[dict[str, str]] | None = None

    @property
    def leader_at(self) -> str:
        """host:port."""
        return self.known.leader or self.hub

    @property
    def is_member(self) -> bool:
        """Whether the journal says that this site takes part, or may come back."""
        known = self.state.sites.get(self.site)
        return known is not None and known.standing not in (Standing.LEFT, Standing.REMOVED)

    def say(self, up: Up) -> None:
        """Tell the leader, if it has welcomed this agent."""
        if self.welcome is not None:
            self.link.say(said(up))

    def say_of_round(self, up: Due | Offer | Pass | Summed | SumChecked | Hold | Applied | Lost) -> None:
        """What a site says of rounds is to be taken as said by one that knows the journal."""
        if self.is_current:
            self.say(up)

    def leave_leader(self) -> None:
        """What the leader before still says is not heard."""
        self.welcome, self.is_current = None, False

    # ---- the agents that this one, or its leader, hears now

    @property
    def near(self) -> frozenset[str]:
        """host:port of those of the own region, as the leader says; none: it has no other site."""
        peers = () if self.peers is None else self.peers.peers
        own = next((peer.region for peer in peers if peer.site == self.site), None)
        return frozenset(peer.fetch for peer in peers if own is not None and peer.region == own)

    @property
    def proxy(self) -> str | None:
        """The agent that gets what this one cannot; None: this one is that."""
        return None if self.leader is not None else self.leader_at

    def last_known(self, wanted: Wanted | None = None) -> list[str]:
        """The last known host:port of each whose site trains, asking nobody; for a frame see `sources`."""
        return self._in_order({site: self.known.addresses.get(site, "") for site in self.state.live}, wanted)

    def holders(self) -> Sources:
        """Where states may be: those last known, and each later time those whom the leader hears.

        To ask the leader takes a second across the world.
        """
        once = iter([self.last_known()])

        async def next_ones() -> list[str]:
            return next(once, None) or await self.sources()

        return next_ones

    async def sources(self, wanted: Wanted | None = None) -> list[str]:
        """host:port of each. For a frame, those too that have left since its round, and first who has made it."""
        found = {peer.site: peer.fetch for opened in self.opens.values() for peer in opened.peers}
        if self.leader is not None:
            found |= {site: one.fetch for site, one in self.leader.sequencer.sites.items() if one.connected}
        else:
            found |= await self._agents_at_leader()
        return self._in_order(found, wanted)

    def _in_order(self, found: dict[str, str], wanted: Wanted | None) -> list[str]:
        first = "" if wanted is None else wanted.site
        entry = None if wanted is None else next(self.journal.rounds(wanted.fragment, wanted.version), None)
        for name, site in self.state.sites.items():
            # The leader does not hear it. It gives out the frames that it has for a while.
            gives = name == first or (entry is not None and site.since > entry.index)
            if gives and site.standing is Standing.LEFT:
                found.setdefault(name, self.known.addresses.get(name, ""))
        found.pop(self.site, None)
        sites = sorted((site for site, fetch in found.items() if fetch), key=lambda site: (site != first, site))
        return [found[site] for site in sites]

    async def _agents_at_leader(self) -> dict[str, str]:
        """By site, where the agents that the leader hears give out files; none: it does not say.

        Who wants to know meanwhile gets the same answer: a site that was away for long wants hundreds of frames at
        once, and the leader would do nothing but shake hands with it.
        """
        if self._asking_leader is None:
            self._asking_leader = asyncio.create_task(self._ask_leader())
            self._asking_leader.add_done_callback(self._leader_answered)
        return await asyncio.shield(self._asking_leader)

    def _leader_answered(self, _: asyncio.Task[dict[str, str]]) -> None:
        self._asking_leader = None

    async def _ask_leader(self) -> dict[str, str]:
        """Where it does not answer, others may be there all the same."""
        with contextlib.suppress(OSError, KeysError):
            answered = await ask(Address.parse(self.leader_at), self.keys, MembersAsked(), LeaderAnswer)
            for seen in answered.sites:
                self.known.learn(seen.site, seen.fetch)
            return {seen.site: seen.fetch for seen in answered.sites if seen.connected}
        return dict(self.known.addresses)
