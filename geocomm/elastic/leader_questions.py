"""What may be asked of a run's leader beside the link of an agent: who is there, and that a site be removed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from geocomm.core.addresses import HubAddress
from geocomm.elastic.leader import Leader
from geocomm.journal.entries import Record, SiteName, Text, line_of
from geocomm.journal.messages import Beat
from geocomm.rendezvous.store_session import Greeting, PacketKind, ProtocolError, Purpose, offset_bytes, write_packet
from geocomm.rendezvous.tls_stream import TlsStream
from geocomm.rendezvous.tunnel import dial
from geocomm.security.keys import Keys

_LIMIT_S = 15.0
_MAX_QUESTION_BYTES = 64 * 1024
_MAX_ANSWER_BYTES = 4 << 20


class MembersAsked(Record):
    """Who is there now."""

    kind: Literal["members"] = "members"


class RemovalAsked(Record):
    """Remove a site."""

    kind: Literal["remove"] = "remove"
    site: SiteName
    why: Text


Question = Annotated[MembersAsked | RemovalAsked, Field(discriminator="kind")]
_QUESTION: TypeAdapter[Question] = TypeAdapter(Question)


class SeenSite(Record):
    """A site as the leader sees it now."""

    site: SiteName
    connected: bool
    heard_s: float
    """Seconds since its last line."""
    fetch: Text
    """host:port where it gives out files; empty: it does not."""
    beat: Beat | None


class LeaderAnswer(Record):
    """The answer to all questions."""

    problem: Text = ""
    """Why what was asked for was not done; empty: it was."""
    head: int
    """Of the leader's journal."""
    term: int
    sites: tuple[SeenSite, ...]


async def answer(stream: TlsStream, leader: Leader) -> None:
    """Answer the one question of a connection. ProtocolError where it is none."""
    await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
    async with asyncio.timeout(_LIMIT_S):
        line = await stream.read_line(_MAX_QUESTION_BYTES)
    try:
        asked = _QUESTION.validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"not a question to a leader: {error.errors()[0]['msg']}") from None
    problem = leader.remove(asked.site, asked.why) if isinstance(asked, RemovalAsked) else ""
    now = asyncio.get_running_loop().time()
    sites = tuple(
        SeenSite(
            site=site, connected=seen.connected, heard_s=max(0.0, now - seen.heard), fetch=seen.fetch, beat=seen.beat
        )
        for site, seen in sorted(leader.seen.items())
    )
    told = LeaderAnswer(problem=problem, head=leader.state.head.index, term=leader.state.term, sites=sites)
    async with asyncio.timeout(_LIMIT_S):
        await stream.write(line_of(told).encode() + b"\n")


async def ask(leader: HubAddress, keys: Keys, question: MembersAsked | RemovalAsked) -> LeaderAnswer:
    """The leader's answer. OSError, KeysError: there is none; Refused: who answers there does not lead."""
    stream, _ = await dial(leader, keys, Greeting(Purpose.ASK, bytes(16), 0, "ask"))
    with contextlib.closing(stream):
        async with asyncio.timeout(_LIMIT_S):
            await stream.write(line_of(question).encode() + b"\n")
            line = await stream.read_line(_MAX_ANSWER_BYTES)
    try:
        return LeaderAnswer.model_validate_json(line)
    except ValidationError as error:
        raise ProtocolError(f"not the answer of a leader: {error.errors()[0]['msg']}") from None
