"""Whom an agent follows, and how it comes to lead: it asks the others, answers them, and is promoted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from geocomm.core.addresses import HubAddress, HubAddressError
from geocomm.elastic.agent_life import AgentLife
from geocomm.elastic.promotion import ASK_LIMIT_S, Candidate
from geocomm.elastic.questions import (
    AgentStanding,
    EntriesAnswer,
    EntriesAsked,
    LeaderAnswer,
    MembersAsked,
    PromotionAnswer,
    PromotionAsked,
    RemovalAsked,
    StandingAsked,
    answer_of,
    read_question,
    standings,
    tell,
)
from geocomm.elastic.run_view import RunView
from geocomm.journal.entries import BadLineError, Entry
from geocomm.membership.own_address import own_address
from geocomm.rendezvous.store_process import log
from geocomm.rendezvous.tls_stream import TlsStream
from geocomm.rendezvous.waiting import Waiting
from geocomm.security.keys import Keys

FIND_AFTER_S = 9.0
"""Without a leader for so long, an agent asks all others whom they follow; and so often again."""
_ENTRIES_AT_ONCE = 100


class Following:
    """Used in one event loop."""

    def __init__(
        self,
        view: RunView,
        keys: Keys,
        own_at: HubAddress,
        append: Callable[[Entry], None],
        life: AgentLife,
        *,
        passes_on: bool,
    ) -> None:
        """own_at: where the agent listens, on this machine. append: takes an entry that follows the last one here.
        passes_on: another site leads by itself where the leader is gone."""
        self._view, self._keys, self._own_at, self._append, self._life = view, keys, own_at, append, life
        self._passes_on = passes_on
        self._promoting = asyncio.Lock()

    async def look(self) -> None:
        """Where there is no leader, ask the others for it, until cancelled."""
        clock = asyncio.get_running_loop().time
        since, waiting = clock(), Waiting(log)
        while True:
            await asyncio.sleep(1)
            if self._view.known.claims_after(self._view.state.term):
                why = await self._promote_again()
                waiting.tell(lambda why=why: f"enough sites to agree that this one leads ({why})")
            elif self._view.welcome is not None:
                since, waiting = clock(), Waiting(log)
            elif clock() - since >= FIND_AFTER_S:
                await self._ask_others({self._view.hub, *self._view.known.addresses.values()})
                since = clock()

    async def tell_others(self) -> None:
        """A leader tells those that are not connected to it that it leads, and hears of later ones, until cancelled."""
        while self._view.leader is not None:
            connected = {site for site, seen in self._view.leader.seen.items() if seen.connected}
            await self._ask_others({at for site, at in self._view.known.addresses.items() if site not in connected})
            await asyncio.sleep(FIND_AFTER_S)

    async def answer(self, stream: TlsStream, site: str) -> None:
        """A question of some site."""
        match await read_question(stream):
            case MembersAsked() | RemovalAsked() as asked:
                other = LeaderAnswer(
                    problem=f"the agent of {self._view.site} does not lead; the leader is at {self._view.leader_at}"
                )
                await tell(stream, other if self._view.leader is None else answer_of(self._view.leader, asked))
            case StandingAsked(run=run, term=term, leader=leader):
                heard = self._sees(run, term, leader)
                await tell(stream, self._standing)
                if heard:
                    self._follow_leader()
            case EntriesAsked(first=first):
                entries = tuple(itertools.islice(self._view.journal.read(first), _ENTRIES_AT_ONCE))
                await tell(stream, EntriesAnswer(entries=entries))
            case PromotionAsked() as asked:
                async with self._promoting:
                    answer = await self._promote(asked, site)
                    try:
                        await tell(stream, answer)
                    finally:
                        self._lead_if(answer)

    def hear(self, term: int, leader: str) -> None:
        """This one leads the run."""
        self._heard_of("" if self._view.state.genesis is None else self._view.state.genesis.run, term, leader)

    @property
    def _standing(self) -> AgentStanding:
        genesis, head = self._view.state.genesis, self._view.journal.head
        return AgentStanding(
            site=self._view.site,
            run=None if genesis is None else genesis.run,
            head=head.index,
            head_hash=head.hash,
            chain=self._view.state.term,
            term=self._view.known.term,
            leader=self._view.leader_at,
            leads=self._view.leader is not None,
        )

    async def _promote(self, asked: PromotionAsked, site: str) -> PromotionAnswer:
        if self._life.ended.done():
            return PromotionAnswer(problem=f"the agent of site {self._view.site} starts anew: ask again")
        if site != self._view.site:
            return PromotionAnswer(problem=f"site {self._view.site} alone may promote itself, not {site}")
        if self._passes_on:
            return PromotionAnswer(
                problem="the journal of this run is in etcd, where another site takes over by itself: end the leader's "
                "agent, and wait for 10 s"
            )
        host = own_address(HubAddress.parse(self._view.hub).host)
        address = asked.address or self._view.own_fetch or str(HubAddress(host, self._own_at.port))
        if self._view.leader is not None and address == self._view.leader_at:
            return PromotionAnswer(problem=f"site {self._view.site} leads already, at {address}")
        view = self._view
        candidate = Candidate(
            view.site,
            address,
            view.hub,
            self._keys,
            view.state,
            view.journal,
            view.known,
            take=self._take_next,
            hear=self._heard_of,
        )
        answer = await candidate.promote(asked)
        if not answer.problem:
            self._view.leave_leader()  # what the leader before still says is not heard
        return answer

    async def _promote_again(self) -> str:
        """Go on with a promotion that did not come to its end. Why that cannot be yet; empty: it can."""
        async with self._promoting:
            if not self._view.known.claims_after(self._view.state.term):
                return ""
            answer = await self._promote(
                PromotionAsked(address=self._view.leader_at, force=self._view.known.force), self._view.site
            )
            self._lead_if(answer)
            return answer.problem

    def _lead_if(self, answer: PromotionAnswer) -> None:
        if not answer.problem:
            self._life.start_again(f"site {self._view.site} leads from now on, at {answer.address}: term {answer.term}")

    def _take_next(self, entry: Entry) -> None:
        """An entry that another agent has, and that follows the last one here."""
        head = self._view.journal.head
        if entry.index != head.index + 1 or entry.prev != head.hash:
            raise BadLineError(f"entry {entry.index} does not follow entry {head.index}")
        self._append(entry)

    def _heard_of(self, run: str | None, term: int, leader: str) -> None:
        """An agent of that run follows this leader: the higher term counts."""
        if self._sees(run, term, leader):
            self._follow_leader()

    def _sees(self, run: str | None, term: int, leader: str) -> bool:
        """Whether that is the highest term of this run so far, which is kept then."""
        genesis = self._view.state.genesis
        if run is None or (genesis is not None and run != genesis.run) or term <= self._view.known.term:
            return False
        try:
            HubAddress.parse(leader)
        except HubAddressError:
            return False
        self._view.known.saw(term, leader)
        return True

    def _follow_leader(self) -> None:
        """Go to the leader of the highest term; what the one before still says is not heard."""
        told = f"another site leads since term {self._view.known.term}, at {self._view.leader_at}: this one follows it"
        if self._view.leader is not None:
            self._life.start_again(told)
        else:
            log(told)
            self._view.leave_leader()
            self._view.link.move(HubAddress.parse(self._view.leader_at))

    async def _ask_others(self, addresses: set[str]) -> None:
        genesis = self._view.state.genesis
        run = None if genesis is None else genesis.run
        asked = StandingAsked(run=run, term=self._view.known.term, leader=self._view.leader_at)
        own = {self._view.own_fetch, str(self._own_at), self._view.known.addresses.get(self._view.site, "")}
        for one in (await standings(addresses - own, self._keys, asked, ASK_LIMIT_S)).values():
            self._heard_of(one.run, one.term, one.leader)
