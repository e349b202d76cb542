"""Who leads a run, and where this site's agent listens: the agent at the hub's address, unless a person has promoted
another. `etcd_leadership` is of the other kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from asyncio import Event
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from geocomm.core.addresses import Address, AddressError, listen_everywhere, listen_on
from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.elastic.files.known_agents import KnownAgents, about
from geocomm.elastic.journal.journal import SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.etcd import EtcdJournal
from geocomm.elastic.leading.questions import StandingAsked, leads_there, standings
from geocomm.security.key_folder import Keys

_ASK_FIRST_S = 3.0
_ANSWER_LIMIT_S = 60.0
"""How long a site that led waits for the leader that another one follows: its agent may be about to start again."""


@dataclass(frozen=True)
class Begun:
    """What an agent begins with."""

    state: RunState
    """As the journal says it now."""
    listener: socket.socket
    leader: str
    """host:port, unless the agent knows of a later one."""
    leads: bool
    """This agent does."""
    term: int = 0
    """In which this agent begins an empty journal."""
    shared: EtcdJournal | None = None
    """Where this agent's entries are to be before they are in its own journal."""


class Leadership(Protocol):
    """Who leads the run, for the agents that follow each other in one process. Used in one event loop."""

    @property
    def passes_on(self) -> bool:
        """Another site leads by itself where the leader is gone: nobody is promoted."""
        ...

    async def begin(self, journal: SqliteJournal, known: KnownAgents, leaving: Event) -> Begun | None:
        """Listen, and find who leads. None: the site was asked to leave before that was known.

        OSError, AddressError: it cannot listen. NoJournalError: the run is not that of `journal`.
        """
        ...

    async def watch(
        self, begun: Begun, journal: SqliteJournal, known: KnownAgents, hear: Callable[[int, str], None]
    ) -> None:
        """`hear` the term and the address of another leader, until cancelled. LeaderChanged: this agent begins to lead,
        or ceases to."""
        ...

    async def resign(self) -> None:
        """Another site may lead at once."""
        ...


class HubLeadership:
    """Leads who is at the address that all sites name, or was promoted last."""

    passes_on = False

    def __init__(
        self, hub: str, listen: str | None, run_dir: Path, keys: Keys, *, lead: bool, again: bool = False
    ) -> None:
        """hub: that address. listen: address:port; None: the hub's port on all addresses. lead: it is this agent's,
        though translated. again: the agent of this run folder has just died."""
        self._led_just_now = again and about(run_dir).leads
        self._hub, self._listen, self._run_dir, self._keys, self._lead = hub, listen, run_dir, keys, lead

    async def begin(self, journal: SqliteJournal, known: KnownAgents, leaving: Event) -> Begun | None:
        """Ask the others first, where this agent is to lead: one may have been promoted while it was away. Across the
        world that takes seconds, so who led a moment ago asks while it leads."""
        state = journal.state()
        taken_over = state.taken_over is not None
        if state.taken_over is not None:
            known.saw(state.term, state.taken_over.address)
        listener, at_hub = open_port(
            self._hub, self._listen, _port_before(self._run_dir), lead=self._lead, taken_over=taken_over
        )
        try:
            leads = await self._leads(state, known, at_hub, leaving)
            if leads and known.lost_journal and not state.ended and state.genesis is not None:
                leads = False  # it promotes itself
                address = self._hub if state.taken_over is None else state.taken_over.address
                known.claim(max(known.term, state.term), address, force=False)
                log(
                    f"this site led the run, and has its journal from another site, which may lack entries that others "
                    f"have: it leads again with term {known.term}, once most members agree"
                )
        except BaseException:
            listener.close()
            raise
        return Begun(state, listener, self._hub, leads)

    async def watch(
        self, begun: Begun, journal: SqliteJournal, known: KnownAgents, hear: Callable[[int, str], None]
    ) -> None:
        """Agents tell each other."""
        await Event().wait()

    async def resign(self) -> None:
        """A person has another site lead."""

    async def _leads(self, state: RunState, known: KnownAgents, at_hub: bool, leaving: Event) -> bool:
        site = self._keys.identity.site
        leads = at_hub if state.taken_over is None else state.taken_over.site == site
        others = {address for name, address in known.addresses.items() if name != site}
        clock, waiting = asyncio.get_running_loop().time, Waiting(log)
        end = clock() + _ANSWER_LIMIT_S
        if self._led_just_now:
            others = set[str]()
            self._led_just_now = False
        while leads and known.term <= state.term and state.genesis is not None and not leaving.is_set():
            asked = StandingAsked(run=state.genesis.run, term=known.term, leader=known.leader)
            told = [
                one
                for one in (await standings(others, self._keys, asked, _ASK_FIRST_S)).values()
                if one.run == state.genesis.run and one.term > known.term and known.may_be(one.term)
            ]
            for one in told:
                if await leads_there(one.term, one.leader, self._keys, asked, _ASK_FIRST_S):
                    known.saw(one.term, one.leader)
            if known.term > state.term or not told or clock() > end:
                break
            waiting.tell(
                lambda told=told: (
                    f"the leader of term {told[0].term}, at {told[0].leader}, which site {told[0].site} follows; for "
                    f"{max(0.0, end - clock()):.0f} s more, then this site leads again"
                )
            )
            await asyncio.sleep(_ASK_FIRST_S)
        return leads and known.term <= state.term


def open_port(
    hub: str, listen: str | None, port_before: int, *, lead: bool = False, taken_over: bool = False
) -> tuple[socket.socket, bool]:
    """The listening socket of an agent, and whether it is at the address where all sites look for the leader at the
    start. port_before: where it listened the last time, and others look for it; 0: nowhere. taken_over: a site was
    promoted, so that nobody looks for the leader at that address any more.

    OSError, AddressError: it cannot listen there.
    """
    leader = Address.parse(hub)
    if listen is not None:
        listener = listen_on(listen)
        same_port = listener.getsockname()[1] == leader.port
        return listener, lead or (same_port and leader.is_here)
    if taken_over and port_before:
        with contextlib.suppress(OSError):
            return listen_everywhere(port_before), False
    listener = None if taken_over else leader.listen()
    if listener is not None:
        return listener, True
    if not taken_over and lead:
        raise AddressError(
            f"cannot listen at {leader}: {leader.why_not_free()}. Behind a translated address, add --listen "
            f"[::]:{leader.port}"
        )
    try:
        return listen_everywhere(leader.port), False
    except OSError as error:
        try:
            listener = listen_everywhere(port_before)
        except OSError:
            listener = listen_everywhere(0)
        log(
            f"port {leader.port} cannot be listened on ({error.strerror}): files are given out on port "
            f"{listener.getsockname()[1]}; --listen chooses another"
        )
        return listener, False


def _port_before(run_dir: Path) -> int:
    """Where the agent of this run folder listened the last time; 0: not known."""
    try:
        return Address.parse(about(run_dir).agent).port
    except AddressError:
        return 0
