"""Rounds of one rank with the ranks of its place at the other sites, as messages of the default process group.

A rank sends a header and then the frames of each round, in the order of its rounds, to each of the others. It takes
one header of each site at a time, as long as it has a round that the site owes it a header for. A site that begins no
more rounds says so in its last header. So no receive is left behind, whatever becomes of a run.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from geocomm.backend.reserved_tags import KINDS, ReservedTags
from geocomm.codecs.tensor_codec import compress_bound
from geocomm.core.errors import (
    CorruptDataError,
    InvalidArgumentError,
    OperationTimeoutError,
    PeerLostError,
    error_of,
)
from geocomm.local_sgd.delta_frames import DeltaFrames, average_frames, encode_delta
from geocomm.local_sgd.fragments import Fragment
from geocomm.local_sgd.host_memory import Scratch
from geocomm.local_sgd.pace import LineClock
from geocomm.local_sgd.round_header import (
    Digest,
    EndHeader,
    FailureHeader,
    Header,
    OfferHeader,
    decode_header,
    empty_header,
    encode_header,
)
from geocomm.local_sgd.rounds import Average, Coding, Entry, Offer, decide

_HEADER, _CODED, _EXACT, _NUMBER = range(KINDS)
"""Kinds of messages, each with tags of its own."""


Relay = tuple[str, str, str]
"""From a site, over a site, to a site."""


class Awaited(Protocol):
    """What a rank waits for from the other sites."""

    @property
    def future(self) -> Future[Any]:
        """The result, once it is there."""
        ...

    @property
    def missing(self) -> list[str]:
        """The sites that have not sent all of it."""
        ...


@dataclass(eq=False)
class Exchange:
    """A round that is under way."""

    offer: Offer
    digest: Digest | None
    fragment: Fragment
    delta: torch.Tensor
    residual: torch.Tensor | None
    coding: Coding
    sites: Sequence[str]
    future: Future[Average] = field(default_factory=Future)
    offers: dict[str, Offer] = field(default_factory=dict)
    frames: dict[str, DeltaFrames] = field(default_factory=dict)
    entry: Entry | None = None
    new_residual: torch.Tensor | None = None

    @property
    def missing(self) -> list[str]:
        """The sites that have not begun the round; where all have, those whose frames have not come."""
        absent = [site for site in self.sites if site not in self.offers]
        return absent or [site for site in self.sites if site not in self.frames]

    def check_sizes(self, site: str, header: OfferHeader) -> None:
        """Raise CorruptDataError for frames of a size that no codec gives. They are not larger than exact ones."""
        coded = self.fragment.coded_elems
        for size, part in ((header.coded_bytes, self.delta[:coded]), (header.exact_bytes, self.delta[coded:])):
            most = max(compress_bound(part, codec) for codec in (self.coding.codec, "none")) if part.numel() else 0
            if not (0 < size <= most or size == most == 0):
                raise CorruptDataError(
                    f"local steps, round {self.offer.round}: site {site!r} announces a frame of {size} bytes for "
                    f"{part.numel()} elements, which take at most {most}"
                )


@dataclass(eq=False)
class Question:
    """A number of every site."""

    sites: Sequence[str]
    said: dict[str, int]
    future: Future[int] = field(default_factory=Future)

    @property
    def missing(self) -> list[str]:
        """The sites that have not answered."""
        return [site for site in self.sites if site not in self.said]


@dataclass(eq=False)
class End:
    """The end of the run at all sites."""

    sites: Sequence[str]
    ended: set[str]
    future: Future[None] = field(default_factory=Future)

    @property
    def missing(self) -> list[str]:
        """The sites that have not ended it."""
        return [site for site in self.sites if site not in self.ended]


@dataclass(eq=False)
class _Message:
    """What a site sends."""

    content: torch.Tensor
    is_there: bool = False


@dataclass(eq=False)
class _Peer:
    """What comes from one other site."""

    site: str
    index: int
    """Of the site; the tags of what it sends have it, whoever passes it on."""
    rank: int
    source: int
    """The rank that passes on what the site sends to this one; else `rank`."""
    takes_directly: bool
    """Whether no other site passes on what this one sends to it."""
    forward_to: tuple[int, ...]
    """The ranks to which this one passes on what the site sends."""
    expected: deque[Exchange | End] = field(default_factory=deque)
    """What the next headers are to belong to."""
    is_receiving: bool = False
    """Whether the next header is being received."""
    passing: tuple[deque[_Message], ...] = field(default_factory=lambda: tuple(deque[_Message]() for _ in range(KINDS)))
    """By kind: what is being received, in the order in which the site sends it."""


class RoundExchange:
    """Exchanges rounds in one thread, which waits for none of them: so many are under way at a time.

    The thread is a daemon: a process that ends does not wait for a line that is down. Methods are called by the thread
    that trains. After a round has failed, all that are under way fail with the same error, here and at the other sites.
    """

    def __init__(
        self,
        ranks: Mapping[str, int],
        own: str,
        relays: Sequence[Relay],
        tags: ReservedTags,
        timeout: timedelta,
        line: LineClock,
        check_digest: Callable[[str, Digest], None],
    ) -> None:
        """ranks: the ranks at this rank's place, by site, in the order in which deltas are added.
        own: the site of this rank.
        relays: (from, over, to): sites that send to another one over a third.
        tags: of the messages.
        timeout: of the default process group.
        line: runs while frames are coded or on the line.
        check_digest: is called with what a site says that it has committed, and may raise.
        """
        self._sites = tuple(ranks)
        self._own = own
        self._tags = tags
        self._timeout_s = timeout.total_seconds()
        self._line = line
        self._check_digest = check_digest
        over = {(src, dst): ranks[by] for src, by, dst in relays}
        self._peers = [
            _Peer(
                site,
                index,
                rank,
                source=over.get((site, own), rank),
                takes_directly=(own, site) not in over,
                forward_to=tuple(ranks[dst] for src, by, dst in relays if (src, by) == (site, own)),
            )
            for index, (site, rank) in enumerate(ranks.items())
            if site != own
        ]
        self._place = self._sites.index(own), len(self._sites)
        self._under_way: deque[Exchange | Question | End] = deque()
        self._failure: BaseException | None = None
        self._has_ended = False
        self._scratch = Scratch()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def begin(
        self,
        offer: Offer,
        digest: Digest | None,
        fragment: Fragment,
        delta: torch.Tensor,
        residual: torch.Tensor | None,
        coding: Coding,
    ) -> Exchange:
        """Begin a round; see `Rounds.reduce`. digest: of the last round that this site has committed."""
        exchange = Exchange(offer, digest, fragment, delta, residual, coding, self._sites)
        self._submit(lambda: self._begin(exchange))
        return exchange

    def ask(self, number: int) -> Question:
        """Find the largest of the numbers that the sites give."""
        question = Question(self._sites, {self._own: number})
        self._submit(lambda: self._ask(question, number))
        return question

    def end(self, digest: Digest | None) -> End:
        """Say that no more rounds begin here, and wait for the other sites to say so. digest: as in `begin`."""
        end = End(self._sites, {self._own})
        self._submit(lambda: self._end(end, digest))
        return end

    def stop(self) -> None:
        """End the thread, once it has done what was submitted."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread = None

    def _submit(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="geocomm-rounds", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # it is raised where the results are asked for
                self._fail(error)

    def _begin(self, exchange: Exchange) -> None:
        self._take_in(exchange)
        if self._failure is not None:
            return
        with self._line.running():
            frames, exchange.new_residual = encode_delta(
                exchange.offer.round,
                exchange.fragment,
                exchange.delta,
                exchange.residual,
                exchange.coding,
                place=self._place,
                counts=exchange.offer.weight > 0,
            )
        exchange.offers[self._own], exchange.frames[self._own] = exchange.offer, frames
        header = encode_header(OfferHeader(exchange.offer, *frames.sizes, exchange.digest))
        for message, kind in ((header, _HEADER), (frames.coded, _CODED), (frames.exact, _EXACT)):
            if message is not None:
                self._send_to_all(message, kind)
        for peer in self._peers:
            self._expect(peer, exchange)

    def _ask(self, question: Question, number: int) -> None:
        self._take_in(question)
        if self._failure is not None:
            return
        self._send_to_all(torch.tensor([number]), _NUMBER)
        for peer in self._peers:
            said = torch.empty(1, dtype=torch.int64)
            self._receive(said, peer, _NUMBER, lambda peer=peer, said=said: self._answered(question, peer, said))

    def _answered(self, question: Question, peer: _Peer, said: torch.Tensor) -> None:
        question.said[peer.site] = int(said)
        if not question.missing:
            self._finish(question, max(question.said.values()))

    def _end(self, end: End, digest: Digest | None) -> None:
        self._take_in(end)
        if self._failure is not None:
            return
        self._say_last(EndHeader(digest))
        for peer in self._peers:
            self._expect(peer, end)

    def _expect(self, peer: _Peer, what: Exchange | End) -> None:
        """Take the header of `what`, after those of what came before."""
        peer.expected.append(what)
        self._receive_header(peer)

    def _receive_header(self, peer: _Peer) -> None:
        if peer.expected and not peer.is_receiving:
            header = empty_header()
            self._receive(header, peer, _HEADER, lambda: self._on_header(peer, header))
            peer.is_receiving = True

    def _on_header(self, peer: _Peer, received: torch.Tensor) -> None:
        peer.is_receiving = False
        what = peer.expected.popleft()
        header = decode_header(received, peer.site)
        if isinstance(header, FailureHeader):
            peer.expected.clear()  # it sends no more
            reason = header.reason.removeprefix("local steps: ")
            raise error_of(header.code, f"local steps: site {peer.site!r} has failed: {reason}")
        if isinstance(header, OfferHeader) and isinstance(what, Exchange):
            what.check_sizes(peer.site, header)
            self._receive_frames(peer, what, header)
            self._receive_header(peer)
            if header.digest is not None:
                self._check_digest(peer.site, header.digest)
            what.offers[peer.site] = header.offer
            if len(what.offers) == len(self._sites) and self._failure is None:
                what.entry = decide([(site, what.offers[site]) for site in self._sites])
            return
        if isinstance(header, EndHeader):
            peer.expected.clear()
            if isinstance(what, Exchange):
                raise PeerLostError(
                    f"local steps, round {what.offer.round}: site {peer.site!r} has ended its run; all sites call "
                    "finish()"
                )
            if header.digest is not None:
                self._check_digest(peer.site, header.digest)
            what.ended.add(peer.site)
            if not what.missing:
                self._finish(what, None)
            return
        peer.expected.clear()
        raise InvalidArgumentError(
            f"local steps: site {peer.site!r} begins another round, and this site has ended its run; all sites call "
            "finish() after the same round"
        )

    def _receive_frames(self, peer: _Peer, exchange: Exchange, header: OfferHeader) -> None:
        """Take the frames that the header announces, also where the round has failed: nothing else takes them."""
        on_line = ExitStack()
        on_line.enter_context(self._line.running())
        coded, exact = (
            torch.empty(size, dtype=torch.uint8) if size else None for size in (header.coded_bytes, header.exact_bytes)
        )
        left = (coded is not None) + (exact is not None)

        def arrived() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                on_line.close()
                exchange.frames[peer.site] = DeltaFrames(coded, exact)
                self._average(exchange)

        for part, kind in ((coded, _CODED), (exact, _EXACT)):
            if part is not None:
                self._receive(part, peer, kind, arrived)

    def _average(self, exchange: Exchange) -> None:
        """Decode and average, once all frames are there."""
        if exchange.missing or exchange.entry is None or exchange.future.done():
            return
        values = None
        if any(exchange.entry.weights):
            values = exchange.delta  # it is in the frames by now
            with self._line.running():
                average_frames(
                    [exchange.frames[site] for site in self._sites],
                    exchange.fragment,
                    exchange.entry.weights,
                    exchange.coding.averaging,
                    self._scratch,
                    values,
                )
        wire_bytes = exchange.frames[self._own].wire_bytes
        self._finish(exchange, Average(exchange.entry, values, exchange.new_residual, wire_bytes))

    def _take_in(self, what: Exchange | Question | End) -> None:
        if self._failure is not None:
            what.future.set_exception(self._failure)
        else:
            self._under_way.append(what)

    def _finish(self, what: Exchange | Question | End, result: Any) -> None:
        if not what.future.done():
            self._under_way.remove(what)
            what.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        """End everything with the first error, and tell the other sites."""
        if self._failure is not None:
            return
        self._failure = error = self._explained(error)
        under_way, self._under_way = self._under_way, deque()
        for what in under_way:
            what.future.set_exception(error)
        with suppress(Exception):  # a process group that has failed tells them itself
            self._say_last(FailureHeader(getattr(error, "code", type(error).__name__), str(error)))

    def _explained(self, error: BaseException) -> BaseException:
        """A time-out of the process group says which message did not come; this says of which sites, in which round."""
        if not isinstance(error, OperationTimeoutError) or not self._under_way:
            return error
        first = self._under_way[0]
        what = f"round {first.offer.round}" if isinstance(first, Exchange) else type(first).__name__.lower()
        return OperationTimeoutError(
            f"local steps, {what}: {sites_text(first.missing)} sent nothing within {self._timeout_s:g} s, the time-out "
            f"of the process group (init_process_group(timeout=...)): {error}"
        )

    def _say_last(self, header: Header) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._send_to_all(encode_header(header), _HEADER)

    def _send_to_all(self, message: torch.Tensor, kind: int) -> None:
        """Send what begins here. Nobody waits for it: a send that fails fails the process group, and the receives."""
        for peer in self._peers:
            if peer.takes_directly:
                dist.isend(message, peer.rank, tag=self._tags.tag(kind, self._place[0]))

    def _forward(self, peer: _Peer, kind: int) -> None:
        """Pass on what a site has sent, in its order, to those that it does not send to itself."""
        passing = peer.passing[kind]
        while passing and passing[0].is_there:
            message = passing.popleft()
            for rank in peer.forward_to:
                dist.isend(message.content, rank, tag=self._tags.tag(kind, peer.index))

    def _receive(self, room: torch.Tensor, peer: _Peer, kind: int, then: Callable[[], None]) -> None:
        """Take a message, and call `then` in the thread of this exchange when it is there."""
        work = dist.irecv(room, peer.source, tag=self._tags.tag(kind, peer.index))
        message = _Message(room)
        peer.passing[kind].append(message)

        def arrived() -> None:
            if work is not None:
                work.wait()  # raises what has become of it
            message.is_there = True
            self._forward(peer, kind)
            then()

        if work is not None:
            work.get_future().add_done_callback(lambda _: self._calls.put(arrived))


def sites_text(sites: Sequence[str]) -> str:
    """For messages: "site 'a'", "sites 'a', 'b'"."""
    return f"site{'s' if len(sites) > 1 else ''} {', '.join(map(repr, sites))}"
