"""What may be asked of an agent beside the link to its leader: one question a connection, by any site of the job.

The leader says who is there, and removes sites. Every agent says whom it follows, gives its journal's entries, and is
promoted where its own site asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from geocomm.core.addresses import Address, AddressError
from geocomm.core.records import Hash, Record, Text, Whole, line_of
from geocomm.data.deal_records import StoreId
from geocomm.elastic.journal.entries import BadLineError, Entry, SiteName
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES, down_of
from geocomm.elastic.journal.messages import MAX_STATE_CHARS, Beat, EntrySaid, StatePart
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.leading.leader import Leader
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, PacketKind, ProtocolError, Purpose, offset_bytes, write_packet
from geocomm.wire.tls_stream import TlsStream

PROMOTION_LIMIT_S = 90.0
"""A promotion asks all agents, and may fetch a long journal."""
_LIMIT_S = 15.0
_MAX_QUESTION_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 4 << 20
_ENTRIES_AT_ONCE = 100

_A = TypeVar("_A", bound=Record)


class MembersAsked(Record):
    """Who is there now."""

    kind: Literal["members"] = "members"


class RemovalAsked(Record):
    """Remove a site."""

    kind: Literal["remove"] = "remove"
    site: SiteName
    why: Text


class StandingAsked(Record):
    """Whom does this agent follow? Who asks says the same of itself: the lower term gives way."""

    kind: Literal["standing"] = "standing"
    run: StoreId | None
    """None: who asks knows of no run yet."""
    term: Whole
    """The highest that it has seen."""
    leader: Text
    """The leader of that term, host:port."""


class EntriesAsked(Record):
    """The agent's journal, from the entry of this index on: see `read_journal`."""

    kind: Literal["entries"] = "entries"
    first: Whole


class PromotionAsked(Record):
    """This site is to lead from now on. Only it may ask that of its agent."""

    kind: Literal["promote"] = "promote"
    address: Text = ""
    """host:port where the other sites reach it; empty: where it gives out files."""
    force: bool = False
    """Though half of the members or more are not reached."""


Question = Annotated[
    MembersAsked | RemovalAsked | StandingAsked | EntriesAsked | PromotionAsked, Field(discriminator="kind")
]
_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)


class SeenSite(Record):
    """A site as the leader sees it now."""

    site: SiteName
    connected: bool
    heard_s: float
    """Seconds since its last Beat."""
    fetch: Text
    """host:port where it gives out files; empty: it does not."""
    beat: Beat | None
    waits: Text = ""
    """What keeps it from being ready, while it is connected."""


class LeaderAnswer(Record):
    """To MembersAsked and RemovalAsked."""

    problem: Text = ""
    """Why what was asked for was not done; empty: it was."""
    sites: tuple[SeenSite, ...] = ()
    waits: tuple[Text, ...] = ()
    """Data that no site which is there may read."""
    undealt_tokens: Whole | None = None
    """The tokens of this pass over the run's data that are not dealt yet."""


class AgentStanding(Record):
    """What an agent says of itself: its run, its journal, and whom it follows."""

    site: SiteName
    run: StoreId | None
    head: int
    """The index of the last entry of its journal."""
    head_hash: Hash
    chain: Whole
    """The term of its journal."""
    term: Whole
    """The highest that it has seen."""
    leader: Text
    """The leader of that term, host:port."""
    leads: bool
    """It is the leader itself."""


class PromotionAnswer(Record):
    """How a promotion went."""

    problem: Text = ""
    """Why the site does not lead; empty: it does."""
    term: Whole = 0
    address: Text = ""
    away: tuple[Text, ...] = ()
    """Members that were not reached."""


async def read_question(stream: TlsStream) -> Question:
    """The question of a connection. ProtocolError where it is none."""
    await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
    async with asyncio.timeout(_LIMIT_S):
        line = await stream.read_line(_MAX_QUESTION_BYTES)
    try:
        return _QUESTION.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"not a question to an agent: {error.errors()[0]['msg']}") from None


async def tell(stream: TlsStream, answer: Record) -> None:
    """Answer a question."""
    async with asyncio.timeout(_LIMIT_S):
        await stream.write(line_of(answer).encode() + b"\n")


def answer_of(leader: Leader, own_site: str, asked: MembersAsked | RemovalAsked) -> LeaderAnswer:
    """Do what the leader of a site is asked for."""
    problem = ""
    if isinstance(asked, RemovalAsked) and asked.site == own_site:
        problem = f"site {own_site} leads the run: promote another one first (geocomm members promote at that site)"
    elif isinstance(asked, RemovalAsked):
        problem = leader.remove(asked.site, asked.why)
    now = leader.seconds()
    known = leader.state.sites
    sites = tuple(
        SeenSite(
            site=site,
            connected=one.connected,
            heard_s=max(0.0, now - one.heard),
            fetch=one.fetch,
            beat=one.beat,
            waits=one.waits(known[site].standing) if site in known else "",
        )
        for site, one in sorted(leader.sequencer.sites.items())
        if one.connected or one.beat  # others have not come since this leader began
    )
    deals = leader.sequencer.deals
    return LeaderAnswer(problem=problem, sites=sites, waits=tuple(deals.waits), undealt_tokens=deals.undealt_tokens)


async def ask(agent: Address, keys: Keys, question: Question, kind: type[_A], limit_s: float = _LIMIT_S) -> _A:
    """The answer of the agent at an address. OSError, KeysError: there is none."""
    async with _asked(agent, keys, question, kind, limit_s) as (answer, _):
        return answer


@contextlib.asynccontextmanager
async def _asked(
    agent: Address, keys: Keys, question: Question, kind: type[_A], limit_s: float
) -> AsyncGenerator[tuple[_A, TlsStream]]:
    """The agent's answer, and the connection, on which more may come."""
    stream, _ = await dial(agent, keys, Greeting(Purpose.ASK, bytes(16), 0, "ask"))
    with contextlib.closing(stream):
        async with asyncio.timeout(limit_s):
            await stream.write(line_of(question).encode() + b"\n")
            line = await stream.read_line(_MAX_ANSWER_BYTES)
        try:
            answer = kind.model_validate_json(line)
        except ValidationError as error:
            raise ProtocolError(f"not the answer of an agent: {error.errors()[0]['msg']}") from None
        yield answer, stream


async def read_journal(
    agent: Address,
    keys: Keys,
    first: int,
    begin_at: Callable[[RunState], None],
    add: Callable[[Sequence[Entry]], None],
) -> None:
    """Have the journal of the agent at an address, from entry `first` on. begin_at: with the state that stands in the
    place of entries that it has not got any more. add: with the next entries, some at a time.

    The agent says its standing, then lines as a leader does to a site. OSError, KeysError: it does not give them all.
    BadLineError: they are none, or what is called says so.
    """
    async with _asked(agent, keys, EntriesAsked(first=first), AgentStanding, _LIMIT_S) as (standing, stream):
        text, entries, last = "", list[Entry](), first - 1
        while last < standing.head:
            async with asyncio.timeout(_LIMIT_S):
                down = down_of(await stream.read_line(MAX_LINE_BYTES))
            if isinstance(down, StatePart) and not entries and len(text) < MAX_STATE_CHARS:
                text += down.text
                if down.last:
                    state = RunState.read(text)
                    begin_at(state)
                    last = state.head.index
            elif isinstance(down, EntrySaid):
                entries.append(down.entry)
                last = down.entry.index
                if len(entries) == _ENTRIES_AT_ONCE or last >= standing.head:
                    add(entries)
                    entries = []
            else:
                raise BadLineError(f"{down.kind} is no part of a journal")


async def tell_journal(stream: TlsStream, standing: AgentStanding, lines: Iterator[str]) -> None:
    """Answer EntriesAsked."""
    await tell(stream, standing)
    while some := list(itertools.islice(lines, _ENTRIES_AT_ONCE)):
        async with asyncio.timeout(_LIMIT_S):
            await stream.write("".join(f"{line}\n" for line in some).encode())


async def standings(
    addresses: Iterable[str], keys: Keys, asked: StandingAsked, limit_s: float
) -> dict[str, AgentStanding]:
    """By address, what those of these agents say, each of its own site, who answer within `limit_s`."""
    found: dict[str, AgentStanding] = {}

    async def ask_one(address: str) -> None:
        with contextlib.suppress(OSError, KeysError, AddressError):
            async with asyncio.timeout(limit_s):
                async with _asked(Address.parse(address), keys, asked, AgentStanding, limit_s) as (said, stream):
                    if said.site == keys.check_peer(stream.tls).site:
                        found[address] = said

    await asyncio.gather(*map(ask_one, sorted(set(addresses))))
    return found


async def leads_there(term: int, leader: str, keys: Keys, asked: StandingAsked, limit_s: float, by: str = "") -> bool:
    """Whether the agent at an address says itself that it leads the run with that term, and has begun it; or that it is
    about to, where site `by`, whose agent it is, asks for the others' agreement."""
    found = (await standings([leader], keys, asked, limit_s)).get(leader)
    if found is None or (found.term, found.leader) != (term, leader) or asked.run not in (None, found.run):
        return False
    return (found.leads and found.chain == term) or found.site == by
