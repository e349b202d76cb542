"""A person has another site lead, since the leader is gone for good.

The agent of that site takes the longest chain of the highest term among the agents that it reaches. These have to be
most of the members that this chain lists, and to agree. Then it appends an entry with a term that nobody has seen, and
leads. So what most members hold is never lost, and no two sides can do that. The others follow the highest term: they
ask all agents that they know of once they have no leader, and the new one tells them.

A promotion with --force does not need most of the members. So its term is one that none without force claims, and it
does not begin where somebody has agreed to the same term of another site. Two that cannot hear of each other may begin
the same one all the same. When such leaders meet, the one with more entries begins a later term, and the other gives
way, as to any later one.

Who has agreed to the term follows nobody else, unless another site has begun that very term. So the claim lies on the
disk first, and the agent goes on with it until the entry is there, also after a restart, or until it hears of a later
leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from geocomm.core.addresses import Address, AddressError
from geocomm.elastic.files.known_agents import is_forced
from geocomm.elastic.journal.admission import are_most, members_of
from geocomm.elastic.journal.entries import BadLineError, Entry
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.questions import (
    AgentStanding,
    PromotionAnswer,
    PromotionAsked,
    StandingAsked,
    read_journal,
    standings,
)
from geocomm.elastic.site.run_view import RunView
from geocomm.security.key_folder import KeysError

ASK_LIMIT_S = 5.0
"""An agent that has not answered by then is not reached."""


class _RefusedError(Exception):
    """Why the site is not promoted."""


@dataclass(frozen=True)
class Candidate:
    """The agent that is to lead."""

    view: RunView
    address: str
    """For the others, host:port."""
    take: Callable[[Sequence[Entry]], None]
    """Adds the next entries to state and journal. BadLineError: they are not the next ones."""
    hear: Callable[[str | None, int, str], Awaitable[bool]]
    """Hears of a run's leader: its term and address. Whether that one answers and says so; it is followed then."""
    told: set[str]
    """Sites that have told of a later leader which does not answer: a person knows of it, and promotes again."""

    async def promote(self, asked: PromotionAsked) -> PromotionAnswer:
        """Make it the leader, as far as its journal says so: the caller leads then."""
        try:
            return await self._promote(asked)
        except _RefusedError as refused:
            return PromotionAnswer(problem=str(refused))

    async def _promote(self, asked: PromotionAsked) -> PromotionAnswer:
        state, known = self.view.state, self.view.known
        if state.genesis is None or state.ended:
            raise _RefusedError(f"site {self.view.site} has no journal of a run that goes on: promote one that has")
        try:
            Address.parse(self.address)
        except AddressError as error:
            raise _RefusedError(str(error)) from None
        leader = self.view.leader_at
        question = StandingAsked(run=state.genesis.run, term=known.term, leader=leader)
        addresses = {at for name, at in known.addresses.items() if name != self.view.site} | {leader, self.view.hub}
        answered = await standings(addresses - {self.address}, self.view.keys, question, ASK_LIMIT_S)
        found = {
            at: one
            for at, one in answered.items()
            if one.run == state.genesis.run and one.site != self.view.site and known.may_be(max(one.term, one.chain))
        }
        await self._refuse_if_led(found)
        await self._take_longest(found, force=asked.force)
        self._most_of_members(found, asked)
        # Most members have seen the term before it begins, so that nobody else who reaches most begins the same one.
        goes_on = known.claims_after(state.term) and known.leader == self.address
        goes_on = goes_on and is_forced(known.term) == asked.force
        # Half of them may have agreed to the same term of another site, and none of the two would ever lead with it.
        goes_on = goes_on and not any(one.term == known.term and one.leader != self.address for one in found.values())
        if not goes_on:
            seen = max(known.term, state.term, *(one.term for one in found.values()))
            known.claim(seen, self.address, force=asked.force)
        term = known.term
        question = StandingAsked(run=state.genesis.run, term=term, leader=self.address)
        answered = await standings(found, self.view.keys, question, 2 * ASK_LIMIT_S)  # each asks this one back
        follow = {at: one for at, one in answered.items() if (one.term, one.leader) == (term, self.address)}
        try:
            await self._take_longest(follow, force=asked.force)  # what they heard last of the leader before
            away = self._most_of_members(follow, asked)
            self._refuse_rivals(answered, asked)
        except _RefusedError as refused:
            raise _RefusedError(
                f"{refused}. Some may have agreed to term {term}: this site asks again until it leads, or until "
                "another one is promoted"
            ) from None
        if (known.term, known.leader) != (term, self.address):
            raise _RefusedError(
                f"another site is promoted at the same time: the leader of term {known.term} is at {known.leader}"
            )
        head = self.view.journal.head
        self.view.journal.append(self.view.journal.term_begun(term, self.view.site, self.address), head)
        return PromotionAnswer(term=term, address=self.address, away=tuple(away))

    def _most_of_members(self, found: dict[str, AgentStanding], asked: PromotionAsked) -> list[str]:
        """The members that are not among those found. _RefusedError: half of them or more."""
        members = members_of(self.view.state)
        reached = {self.view.site, *(one.site for one in found.values())}
        away = sorted(set(members) - reached)
        if not are_most(reached, members) and not asked.force:
            raise _RefusedError(
                f"{len(away)} of {len(members)} members are not reached: {', '.join(away)}. They may have entries that "
                "the others lack: those would be lost. They may follow another leader: one side would be lost when the "
                "two meet. --force promotes all the same"
            )
        return away

    def _refuse_rivals(self, answered: dict[str, AgentStanding], asked: PromotionAsked) -> None:
        """With force: somebody has agreed to the same term of another site, which may begin it too."""
        known = self.view.known
        for one in answered.values() if asked.force else ():
            if one.term == known.term and one.leader != known.leader:
                raise _RefusedError(f"another site is promoted with --force at the same time, at {one.leader}")

    async def _refuse_if_led(self, found: dict[str, AgentStanding]) -> None:
        known = self.view.known
        for at, one in found.items():
            rivals = one.leader != self.address and one.term == known.term and known.claims_after(self.view.state.term)
            if one.term > known.term or rivals:
                leads = await self.hear(one.run, one.term, one.leader)
                if leads or (one.site not in self.told and not rivals):
                    self.told.add(one.site)
                    raise _RefusedError(
                        f"site {one.site} knows of a later leader, at {one.leader} (term {one.term}), which "
                        f"{'answers' if leads else 'does not answer'}. If that one is gone too, promote again"
                    )
            # Two lines of one term end where one of them begins a later one.
            is_equal = self.view.leader is not None and one.chain == self.view.state.term
            is_ahead = (one.chain, one.head) >= (self.view.state.term, self.view.journal.head.index)
            if one.leads and is_ahead and not is_equal:
                raise _RefusedError(
                    f"site {one.site} leads, and answers at {at}. To have another one lead, end that agent first"
                )

    async def _take_longest(self, found: dict[str, AgentStanding], *, force: bool) -> None:
        """Have the longest chain of the highest term in the own journal; with force, of those that give theirs."""
        for at, best in sorted(found.items(), key=lambda one: (one[1].chain, one[1].head), reverse=True):
            if (best.chain, best.head) <= (self.view.state.term, self.view.journal.head.index):
                return
            try:
                await self._take_from(at, best)
                return
            except _RefusedError:
                if not force:
                    raise

    def _lacks_too_many(self, state: RunState) -> None:
        raise BadLineError(f"its first entries, up to {state.head.index}, are gone, and this site lacks some of them")

    async def _take_from(self, at: str, best: AgentStanding) -> None:
        try:
            first = self.view.journal.head.index + 1
            await read_journal(Address.parse(at), self.view.keys, first, self._lacks_too_many, self.take)
            if (self.view.state.term, self.view.journal.head.index) < (best.chain, best.head):
                raise BadLineError("it has other entries")  # fewer, of a later leader
        except BadLineError:
            raise _RefusedError(
                f"the journal of site {best.site} is of a higher term, and this site's is no part of it: promote "
                f"{best.site}"
            ) from None
        except (OSError, KeysError) as error:
            raise _RefusedError(
                f"site {best.site} has the longest journal, and does not give it ({str(error) or 'silent'}): promote "
                f"again, or promote {best.site}"
            ) from None
