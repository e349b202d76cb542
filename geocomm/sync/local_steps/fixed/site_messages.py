"""Messages between the ranks of one place at all sites, over the default process group, and the header of a round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
import torch.distributed as dist
from pydantic import Field, NonNegativeInt, TypeAdapter, ValidationError

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.errors import CorruptDataError
from geocomm.core.typed_torch import future_of
from geocomm.group.backend.runtime import KINDS, ReservedTags
from geocomm.group.planning.regions import Relay
from geocomm.sync.local_steps.outer.rounds import SiteOffer

# The header of a round: 512 bytes, one of the classes here as JSON, with spaces behind it. An aggregator sends one more
# for each round. What is received is hostile until it is checked.

HEADER_BYTES = 512

Digest = tuple[NonNegativeInt, Annotated[str, Field(pattern="^[0-9a-f]{32}$")]]
"""A round, and 32 hexadecimal digits: what a fragment is after it."""


@dataclass(frozen=True)
class OfferHeader:
    """A site begins a round; its frames follow."""

    offer: SiteOffer
    coded_bytes: NonNegativeInt
    exact_bytes: NonNegativeInt
    digest: Digest | None
    """The digest of the last round that the site has committed."""
    kind: Literal["offer"] = "offer"


@dataclass(frozen=True)
class AverageHeader:
    """The aggregator of a round has averaged, or the head of a region for it; its frames follow, unless no site
    counted."""

    round: NonNegativeInt
    coded_bytes: NonNegativeInt
    exact_bytes: NonNegativeInt
    kind: Literal["average"] = "average"


@dataclass(frozen=True)
class EndHeader:
    """A site begins no more rounds."""

    digest: Digest | None
    """The digest of the last round that the site has committed."""
    kind: Literal["end"] = "end"


@dataclass(frozen=True)
class FailureHeader:
    """A site has failed and begins no more rounds."""

    code: str
    """The code of the error: `GeocommError.code`."""
    reason: str
    """Its beginning travels."""
    kind: Literal["failure"] = "failure"


Header = OfferHeader | AverageHeader | EndHeader | FailureHeader
_HEADER: TypeAdapter[Header] = TypeAdapter(Annotated[Header, Field(discriminator="kind")])


def empty_header() -> torch.Tensor:
    """Room for a header that is to be received: uint8."""
    return torch.empty(HEADER_BYTES, dtype=torch.uint8)


def encode_header(header: Header) -> torch.Tensor:
    """The header as it travels: uint8, HEADER_BYTES of them."""
    content = _HEADER.dump_json(header)
    while len(content) > HEADER_BYTES and isinstance(header, FailureHeader):
        header = replace(header, reason=header.reason[: len(header.reason) * 9 // 10])
        content = _HEADER.dump_json(header)
    return torch.frombuffer(bytearray(content.ljust(HEADER_BYTES)), dtype=torch.uint8)


def decode_header(received: torch.Tensor, site: str) -> Header:
    """The header that a site sent: uint8, HEADER_BYTES of them. The sizes of frames are checked by who knows the codec.

    Raises CorruptDataError, which names the site, for what is no header.
    """
    try:
        return _HEADER.validate_json(received.numpy().tobytes())
    except ValidationError as error:
        raise CorruptDataError(
            f"local steps: the header of a round from site {site!r} is damaged: {problem_text(first_problem(error))}"
        ) from None


@dataclass(eq=False)
class _Message:
    """What a site sends."""

    content: torch.Tensor
    is_there: bool = False


@dataclass(eq=False)
class _SitePeer:
    """The rank of another site."""

    rank: int
    index: int
    """The index of the site; the tags of what it sends have it, also where another site passes it on."""
    source: int
    """The rank that passes on what the site sends to this one; else `rank`."""
    takes_directly: bool
    """Whether no other site passes on what this one sends to it."""
    forward_to: tuple[int, ...]
    """The ranks to which this one passes on what the site sends."""
    passing: tuple[deque[_Message], ...] = field(default_factory=lambda: tuple(deque[_Message]() for _ in range(KINDS)))
    """The messages being received, by kind, in the order in which the site sends them."""


class SiteMessages:
    """Sends to all other sites at once, and receives from each. Messages of a kind arrive in the order of their sends.

    Where the links between two sites are slow, a third one passes messages on, as soon as it has received them itself.
    Methods are called by one thread. A message that fails, fails the process group.
    """

    def __init__(
        self,
        ranks: Mapping[str, int],
        own: str,
        relays: Sequence[Relay],
        tags: ReservedTags,
        call: Callable[[Callable[[], None]], None],
    ) -> None:
        """ranks: the ranks of one place, by site.
        own: the site of this rank.
        relays: sites that send to another one over a third.
        tags: of the messages.
        call: has the thread that calls the methods run something; called by any thread.
        """
        self._tags = tags
        self._own = list(ranks).index(own)
        self._call = call
        over = {(src, dst): ranks[by] for src, by, dst in relays}
        self._peers = {
            site: _SitePeer(
                rank,
                index,
                source=over.get((site, own), rank),
                takes_directly=(own, site) not in over,
                forward_to=tuple(ranks[dst] for src, by, dst in relays if (src, by) == (site, own)),
            )
            for index, (site, rank) in enumerate(ranks.items())
            if site != own
        }

    def send(self, message: torch.Tensor, kind: int, to: str | None = None) -> None:
        """Send a message to all other sites, or to one, which receives it by `receive_own`. It is not to be changed any
        more. Nobody waits for its arrival."""
        directly = [peer for peer in self._peers.values() if peer.takes_directly]
        for peer in directly if to is None else [self._peers[to]]:
            dist.isend(message, peer.rank, tag=self._tags.tag(kind, self._own))

    def receive(self, room: torch.Tensor, site: str, kind: int, then: Callable[[], None]) -> None:
        """Receive the next message of a kind that a site sends to all: `room` is as large as it is. `then` runs when it
        is there."""
        peer = self._peers[site]
        message = _Message(room)
        peer.passing[kind].append(message)

        def arrived() -> None:
            message.is_there = True
            self._pass_on(peer, kind)
            then()

        self._receive(room, peer.source, kind, peer.index, arrived)

    def receive_own(self, room: torch.Tensor, site: str, kind: int, then: Callable[[], None]) -> None:
        """The same for the next message of a kind that a site sends to this one alone."""
        peer = self._peers[site]
        self._receive(room, peer.rank, kind, peer.index, then)

    def _receive(self, room: torch.Tensor, source: int, kind: int, index: int, then: Callable[[], None]) -> None:
        work = dist.irecv(room, source, tag=self._tags.tag(kind, index))

        def arrived() -> None:
            if work is not None:
                work.wait()  # raises what has become of it
            then()

        if work is not None:
            future_of(work).add_done_callback(lambda _: self._call(arrived))

    def _pass_on(self, peer: _SitePeer, kind: int) -> None:
        """Send on what has arrived, in the order of its site."""
        passing = peer.passing[kind]
        while passing and passing[0].is_there:
            message = passing.popleft()
            for rank in peer.forward_to:
                dist.isend(message.content, rank, tag=self._tags.tag(kind, peer.index))
