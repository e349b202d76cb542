"""Whom an agent follows, and how it comes to lead: it asks the others, answers them, and is promoted."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence

from geocomm.core.addresses import Address
from geocomm.core.message_log import log
from geocomm.core.patience import Waiting, comes
from geocomm.elastic.files.known_agents import is_forced, tell_led
from geocomm.elastic.journal.entries import BadLineError, Entry, Head
from geocomm.elastic.journal.message_lines import journal_said
from geocomm.elastic.leading.questions import (
    AgentStanding,
    EntriesAsked,
    LeaderAnswer,
    MembersAsked,
    PromotionAnswer,
    PromotionAsked,
    RemovalAsked,
    StandingAsked,
    answer_of,
    leads_there,
    read_question,
    standings,
    tell,
    tell_journal,
)
from geocomm.elastic.site.promotion import ASK_LIMIT_S, Candidate
from geocomm.elastic.site.run_view import RunView
from geocomm.group.membership.own_address import own_address
from geocomm.wire.tls_stream import TlsStream

FIND_AFTER_S = 9.0
"""Without a leader for this time, an agent asks all others whom they follow, and again each time it has passed."""
_LEAST_PAUSE_S = 2.0
"""A leader that hears of another one asks the others no more often than this."""
_MOST_RIVALS = 16


class Following:
    """Used in one event loop."""

    def __init__(
        self, view: RunView, own_at: Address, append: Callable[[Sequence[Entry]], None], *, passes_on: bool
    ) -> None:
        """own_at: where the agent listens, on this machine. append: takes entries that follow the last one here.
        passes_on: another site leads by itself where the leader is gone."""
        self._view, self._own_at, self._append, self._passes_on = view, own_at, append, passes_on
        self._promoting = asyncio.Lock()
        self._terms_told: set[str] = set()
        """Sites that told a promotion of a later leader which does not answer."""
        self._rivals: set[str] = set()
        """Where other agents lead, or may."""
        self._in_doubt: set[str] = set()
        self._equals: list[AgentStanding] = []
        """Others that lead this run with the term with which this agent does: two promotions with --force did not hear
        of each other."""

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
        """A leader tells those that are not connected to it that it leads, hears of later ones, and says whether it is
        the only one, until cancelled."""
        while (leader := self._view.leader) is not None:
            connected = leader.others_connected(self._view.site)
            addresses = {at for site, at in self._view.known.addresses.items() if site not in connected}
            in_doubt = await self._ask_others(addresses | self._rivals)
            for why in sorted(in_doubt - self._in_doubt):
                log(f"this site may not be the only one that leads: {why}")
            self._in_doubt = in_doubt
            if self._equals:
                await self._end_two_lines(self._equals)
            led = leader.sequencer
            heard = leader.others_connected("")
            tell_led(self._view.store.run_dir, [*led.doubt, *sorted(in_doubt)], led.deals.undealt_tokens, heard)
            await asyncio.sleep(_LEAST_PAUSE_S)
            await comes(leader.questioned, FIND_AFTER_S - _LEAST_PAUSE_S)
            leader.questioned.clear()

    async def answer(self, stream: TlsStream, site: str) -> None:
        """A question of some site."""
        match await read_question(stream):
            case MembersAsked() | RemovalAsked() as asked:
                other = LeaderAnswer(
                    problem=f"the agent of {self._view.site} does not lead; the leader is at {self._view.leader_at}"
                )
                leader = self._view.leader
                await tell(stream, other if leader is None else answer_of(leader, self._view.site, asked))
            case StandingAsked(run=run, term=term, leader=leader):
                async with self._hearing(run, term, leader, by=site) as heard:
                    await tell(stream, self._standing)
                if not heard and leader != self._view.leader_at and term >= self._view.known.term:
                    self._is_asked_by_another(leader)
            case EntriesAsked(first=first):
                try:
                    await tell_journal(stream, self._standing, journal_said(self._view.journal, first))
                except (BadLineError, sqlite3.Error) as error:  # the next agent looks at all of the file
                    self._view.life.fail(error)
            case PromotionAsked() as asked:
                async with self._promoting:
                    answer = await self._promote(asked, site)
                    try:
                        await tell(stream, answer)
                    finally:
                        self._lead_if(answer)

    def _is_asked_by_another(self, leader: str) -> None:
        """Who asks follows another leader than this one, and no earlier: is there one?"""
        if self._view.leader is not None and len(self._rivals) < _MOST_RIVALS:
            self._rivals.add(leader)
            self._view.leader.questioned.set()

    def hear(self, term: int, leader: str) -> None:
        """This one leads the run, as etcd says."""
        if term > self._view.known.term:
            self._view.known.saw(term, leader)
            self._follow_leader()

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
        if self._view.life.ended.done():
            return PromotionAnswer(problem=f"the agent of site {self._view.site} starts anew: ask again")
        if site != self._view.site:
            return PromotionAnswer(problem=f"site {self._view.site} alone may promote itself, not {site}")
        if self._passes_on:
            return PromotionAnswer(
                problem="the journal of this run is in etcd, where another site takes over by itself: end the leader's "
                "agent, and wait for 10 s"
            )
        host = await asyncio.to_thread(own_address, Address.parse(self._view.hub).host)  # it may ask a name server
        address = asked.address or self._view.own_fetch or str(Address(host, self._own_at.port))
        if self._view.leader is not None and address == self._view.leader_at and not asked.force:
            return PromotionAnswer(
                problem=f"site {self._view.site} leads already, at {address}. Where others follow a later leader that "
                "is gone for good, --force has it begin a later term"
            )
        candidate = Candidate(self._view, address, take=self._take_next, hear=self._heard_of, told=self._terms_told)
        try:
            answer = await candidate.promote(asked)
        except sqlite3.OperationalError as error:
            return PromotionAnswer(
                problem=f"the journal of site {self._view.site} cannot be written ({error}): free room there first"
            )
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

    async def _end_two_lines(self, equals: Sequence[AgentStanding]) -> None:
        """Of several that lead with one term, the one with most entries begins a later one, which all follow."""
        own = self._view.journal.head.index, self._view.site
        if max((one.head, one.site) for one in equals) < own:
            async with self._promoting:
                answer = await self._promote(PromotionAsked(address=self._view.leader_at, force=True), self._view.site)
                self._lead_if(answer)
            if answer.problem:
                log(
                    f"this site has most entries of those that lead with term {self._view.state.term}: {answer.problem}"
                )

    def _lead_if(self, answer: PromotionAnswer) -> None:
        if not answer.problem:
            self._view.life.start_again(
                f"site {self._view.site} leads from now on, at {answer.address}: term {answer.term}"
            )

    def _take_next(self, entries: Sequence[Entry]) -> None:
        """Entries that another agent has. BadLineError: they do not follow the last one here."""
        functools.reduce(Head.then, entries, self._view.journal.head)
        self._append(entries)

    async def _heard_of(self, run: str | None, term: int, leader: str) -> bool:
        """An agent of that run follows this leader. Whether it leads, as it says itself, and this one follows it now:
        the higher term counts."""
        async with self._hearing(run, term, leader) as heard:
            return heard

    @contextlib.asynccontextmanager
    async def _hearing(self, run: str | None, term: int, leader: str, by: str = "") -> AsyncGenerator[bool]:
        """Whether that is the highest term of this run so far. It is kept then, and followed at the end, whatever comes
        of what is done within: nobody is told of a kept term twice. by: the site that asks for it."""
        if heard := await self._believes(run, term, leader, by):
            if self._has_not_begun(term):
                self._view.known.yield_to(leader)
            self._view.known.saw(term, leader)
        try:
            yield heard
        finally:
            if heard:
                self._follow_leader()

    async def _believes(self, run: str | None, term: int, leader: str, by: str) -> bool:
        genesis, known = self._view.state.genesis, self._view.known
        if run is None or (genesis is not None and run != genesis.run) or not self._is_later(term, leader):
            return False
        if not self._passes_on and not known.may_be(term):
            return False
        asked = StandingAsked(run=run, term=known.term, leader=self._view.leader_at)
        by = "" if self._has_not_begun(term) else by  # who only asks for the same term may not get it
        leads = await leads_there(term, leader, self._view.keys, asked, ASK_LIMIT_S, by)
        agreed_meanwhile = bool(by) and term == known.term  # to another one, which only asks for it too
        return leads and self._is_later(term, leader) and not agreed_meanwhile

    def _is_later(self, term: int, leader: str) -> bool:
        """Whether a leader of this term, if it leads, is to be followed in place of the one that is."""
        return term > self._view.known.term or (self._has_not_begun(term) and leader != self._view.leader_at)

    def _has_not_begun(self, term: int) -> bool:
        """Whether this agent knows who is to lead with this term, itself or another one, and has no entry of it: most
        others may have agreed to another one, which has begun it."""
        return term == self._view.known.term > self._view.state.term

    def _follow_leader(self) -> None:
        """Go to the leader of the highest term; what the one before still says is not heard."""
        told = f"another site leads since term {self._view.known.term}, at {self._view.leader_at}: this one follows it"
        if self._view.leader is not None:
            self._view.life.start_again(told)
        else:
            log(told)
            self._view.leave_leader()
            self._view.link.move(Address.parse(self._view.leader_at))

    async def _ask_others(self, addresses: set[str]) -> set[str]:
        """Follow the leader of the highest term that they know of. Why this agent may not be the only one that leads;
        none: it is, or does not lead."""
        genesis, known = self._view.state.genesis, self._view.known
        run = None if genesis is None else genesis.run
        asked = StandingAsked(run=run, term=known.term, leader=self._view.leader_at)
        own = {self._view.own_fetch, str(self._own_at), known.addresses.get(self._view.site, "")}
        found = await standings(addresses - own, self._view.keys, asked, ASK_LIMIT_S)
        self._rivals = {at for at, one in found.items() if one.leads and one.site != self._view.site}
        self._equals = []
        for term, leader, of in sorted(
            {(one.term, one.leader, one.run) for one in found.values() if one.run}, reverse=True
        ):
            if await self._heard_of(of, term, leader):
                return set()
        if self._view.leader is None:
            return set()
        of_run = [one for one in found.values() if one.run == run is not None and one.site != self._view.site]
        self._equals = [one for one in of_run if one.leads and self._is_of_other_line(one)]
        return {why for one in of_run if (why := self._doubt(one))}

    def _is_of_other_line(self, other: AgentStanding) -> bool:
        """Whether the journal of another agent is of another leader that has begun this one's term."""
        term = self._view.state.term
        may_be = not self._passes_on and term in self._view.state.terms and is_forced(term)
        return may_be and other.chain == other.term == term and other.leader != self._view.leader_at

    def _doubt(self, other: AgentStanding) -> str:
        """Why this agent, which leads, may not be the only one, by what another one says."""
        known = self._view.known
        if self._is_of_other_line(other):
            what = f"both with term {other.term}, after two promotions with --force that did not hear of each other"
            if other.leads:
                return (
                    f"site {other.site} leads the same run, at {other.leader}, {what}. The one with more entries "
                    "begins a later term, and the sites of the other follow it"
                )
            return (
                f"site {other.site} follows another leader, at {other.leader}, {what}. Where that one is gone for "
                "good, run geocomm members promote --force at the site that is to lead"
            )
        if other.term > known.term and known.may_be(other.term):
            return (
                f"site {other.site} follows a later leader, at {other.leader} (term {other.term}), which does not "
                "answer. If it is gone, run geocomm members promote at one of the sites"
            )
        return ""
