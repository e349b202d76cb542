"""Rounds of one rank with the ranks of its place at the other sites, as messages of the default process group.

A rank sends a header of each round, in the order of its rounds, to each of the others, and then its frames: to each of
them, or to the aggregator of the round alone, which sends a header and the frames of the average to all. In another
region frames go to its head, which sends a header to all, and the frames of the region's average to the aggregator. A
rank takes one header of each site at a time, as long as it has a round that the site owes it a header for. A site that
begins no more rounds says so in its last header. So no receive is left behind, whatever becomes of a run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch

from geocomm.core.errors import (
    CorruptDataError,
    GeocommError,
    InvalidArgumentError,
    OperationTimeoutError,
    PeerLostError,
    error_of,
)
from geocomm.core.records import MOST_FRAGMENTS
from geocomm.group.backend.runtime import KINDS, ReservedTags
from geocomm.group.planning.regions import Relay
from geocomm.sync.local_steps.fixed.exchanges import Awaited, Exchange, Meeting, sites_text
from geocomm.sync.local_steps.fixed.site_messages import (
    AverageHeader,
    Digest,
    EndHeader,
    FailureHeader,
    Header,
    OfferHeader,
    SiteMessages,
    decode_header,
    empty_header,
    encode_header,
)
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.host_memory import host_empty
from geocomm.sync.local_steps.outer.call_thread import CallThread
from geocomm.sync.local_steps.outer.delta_frames import (
    DeltaFrames,
    average_frames,
    encode_delta,
    through_frames,
)
from geocomm.sync.local_steps.outer.round_records import RoundRecord
from geocomm.sync.local_steps.outer.rounds import Average, Coding, Entry, SiteOffer, decide
from geocomm.sync.local_steps.outer.schedule import LineClock

_HEADER, _CODED, _EXACT, _OWN_CODED, _OWN_EXACT, _NUMBER = range(KINDS)
"""Kinds of messages, each with tags of its own."""
_FOR_ALL, _FOR_ONE = (_CODED, _EXACT), (_OWN_CODED, _OWN_EXACT)
"""Those of frames for all other sites, and for the one that adds them up."""
_FAILED = -1
"""The answer of a site that has failed, to a site that asks for its number."""


@dataclass(eq=False)
class _Owed:
    """The headers that a site owes this one."""

    what: deque[Awaited] = field(default_factory=deque[Awaited])
    """What the next ones are to belong to."""
    averages: dict[int, Exchange] = field(default_factory=dict[int, Exchange])
    """Rounds that the site averages and whose header of the average is still to come, by number."""
    early: deque[OfferHeader] = field(default_factory=deque[OfferHeader])
    """Those that came before this site has begun their rounds: they lay before an average that was waited for."""
    is_receiving: bool = False
    """Whether the next one is being received."""


class RoundExchange:
    """Exchanges rounds in one thread, which waits for none of them, so that several are under way at a time.

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
        check_digest: Callable[[str, Digest | None], None],
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
        self._timeout_s = timeout.total_seconds()
        self._line = line
        self._check_digest = check_digest
        self._place = self._sites.index(own)
        self._under_way: deque[Awaited] = deque()
        self._failure: BaseException | None = None
        self._has_ended = False
        self._thread = CallThread("geocomm-rounds", self._fail)  # results that are asked for raise the failure
        self._messages = SiteMessages(ranks, own, relays, tags, self._thread.post)
        self._owed = {site: _Owed() for site in ranks if site != own}

    def begin(
        self,
        offer: SiteOffer,
        digest: Digest | None,
        fragment: Fragment,
        delta: torch.Tensor,
        residual: torch.Tensor | None,
        coding: Coding,
        record: RoundRecord,
    ) -> Exchange:
        """Begin a round; see `Rounds.reduce`. digest: of the last round that this site has committed."""
        exchange = Exchange(offer, digest, fragment, delta, residual, coding, self._sites, self._own, record)
        self._submit(exchange, lambda: self._begin(exchange))
        return exchange

    def ask(self, number: int) -> Meeting:
        """Find the largest of the numbers that the sites give."""
        question = Meeting(self._sites, {self._own: number})
        self._submit(question, lambda: self._ask(question, number))
        return question

    def end(self, digest: Digest | None) -> Meeting:
        """Say that no more rounds begin here, and wait for the other sites to say so. digest: as in `begin`."""
        end = Meeting(self._sites, {self._own: 0})
        self._submit(end, lambda: self._end(end, digest))
        return end

    def stop(self) -> None:
        """End the thread, once it has done what was submitted."""
        self._thread.stop()

    def _submit(self, what: Awaited, call: Callable[[], None]) -> None:
        """Have the thread make a call that begins `what`; after a failure it fails in place of that."""

        def begin() -> None:
            self._under_way.append(what)
            if self._failure is None:
                call()
            else:
                self._end_all(self._failure)

        self._thread.post(begin)
        self._thread.start()

    def _begin(self, exchange: Exchange) -> None:
        exchange.record.awaits(exchange.senders)
        with self._line.running(), exchange.record.coding():
            frames, exchange.new_residual = encode_delta(
                exchange.fragment,
                exchange.delta,
                exchange.residual,
                exchange.coding,
                seed=exchange.offer.round * len(self._sites) + self._place,
                counts=exchange.offer.weight > 0,
            )
        exchange.offers[self._own], exchange.frames[self._own] = exchange.offer, frames
        self._messages.send(encode_header(OfferHeader(exchange.offer, *frames.sizes, exchange.digest)), _HEADER)
        if exchange.aggregator is None:
            self._send_frames(frames)
        else:
            for site in sorted(exchange.adders):
                self._send_frames(frames, site)
            for site in exchange.regions.adders(exchange.aggregator):
                if site != self._own:
                    self._owed[site].averages[exchange.offer.round] = exchange
        exchange.record.offered(frames.wire_bytes)
        self._expect(exchange)

    def _send_frames(self, frames: DeltaFrames, to: str | None = None) -> None:
        """To one other site or to all, after the header that says their sizes."""
        for message, kind in zip((frames.coded, frames.exact), _FOR_ALL if to is None else _FOR_ONE, strict=True):
            if message is not None:
                self._messages.send(message, kind, to)

    def _ask(self, question: Meeting, number: int) -> None:
        self._messages.send(torch.tensor([number]), _NUMBER)
        for site in self._owed:
            self._receive_answer(question, site)

    def _receive_answer(self, question: Meeting, site: str) -> None:
        said = torch.empty(1, dtype=torch.int64)
        self._messages.receive(said, site, _NUMBER, lambda: self._on_answer(question, site, int(said)))

    def _on_answer(self, meeting: Meeting, site: str, number: int) -> None:
        if number < 0:
            raise PeerLostError(f"local steps: site {site!r} has failed; its own log says why")
        meeting.said[site] = number
        if not meeting.missing:
            self._finish(meeting, max(meeting.said.values()))

    def _end(self, end: Meeting, digest: Digest | None) -> None:
        self._say_last(EndHeader(digest))
        self._expect(end)

    def _expect(self, what: Awaited) -> None:
        """Receive the headers of `what`, after those of what came before."""
        for site, owed in self._owed.items():
            owed.what.append(what)
            if owed.early:
                self._take_offer(site, owed, owed.early.popleft())
            self._receive_header(site, owed)

    def _receive_header(self, site: str, owed: _Owed) -> None:
        if (owed.what or owed.averages) and not owed.is_receiving:
            header = empty_header()
            self._messages.receive(header, site, _HEADER, lambda: self._on_header(site, owed, header))
            owed.is_receiving = True

    def _on_header(self, site: str, owed: _Owed, received: torch.Tensor) -> None:
        owed.is_receiving = False
        header = decode_header(received, site)
        if isinstance(header, AverageHeader):
            if header.round not in owed.averages:
                raise CorruptDataError(
                    f"local steps: site {site!r} sends an average of round {header.round}, not asked"
                )
            self._take_average(site, owed.averages.pop(header.round), header)
            self._receive_header(site, owed)
            return
        if isinstance(header, OfferHeader) and not owed.what:
            if len(owed.early) == MOST_FRAGMENTS:  # each has one round under way
                raise CorruptDataError(f"local steps: site {site!r} has begun {MOST_FRAGMENTS} rounds before this one")
            owed.early.append(header)
            self._receive_header(site, owed)
            return
        if isinstance(header, OfferHeader) and isinstance(owed.what[0], Exchange):
            self._take_offer(site, owed, header)
            return
        what = owed.what[0] if owed.what else next(iter(owed.averages.values()))
        owed.what.clear()  # the site sends no more headers
        owed.averages.clear()
        if not isinstance(header, EndHeader) or not isinstance(what, Meeting):
            raise _ended_early(site, what, header)
        self._check_digest(site, header.digest)
        self._on_answer(what, site, 0)

    def _take_offer(self, site: str, owed: _Owed, header: OfferHeader) -> None:
        """The next round of the site, which this one has begun, too."""
        what = owed.what.popleft()
        if not isinstance(what, Exchange):
            raise _ended_early(site, what, header)
        if what.parts.get(site) == (site,):
            what.check_sizes(site, header)
            self._receive_frames(site, what, header)
        self._receive_header(site, owed)
        self._on_offer(site, what, header)

    def _on_offer(self, site: str, exchange: Exchange, header: OfferHeader) -> None:
        self._check_digest(site, header.digest)
        size = header.coded_bytes + header.exact_bytes
        if site in exchange.senders:
            exchange.record.announced(site, size, header.offer.step, header.offer.weight)
        exchange.offers[site] = header.offer
        if len(exchange.offers) == len(self._sites) and self._failure is None:
            exchange.entry = entry = decide([(one, exchange.offers[one]) for one in self._sites])
            exchange.record.listed(one for one, weight in zip(entry.members, entry.weights, strict=True) if weight)
            self._average(exchange)  # a frame may have come before the last offer

    def _receive_frames(self, site: str, exchange: Exchange, header: OfferHeader) -> None:
        """Take the frames that the header announces, also where the round has failed: nothing else takes them."""

        def arrived(frames: DeltaFrames) -> None:
            exchange.frames[site] = frames
            exchange.record.arrived(site)
            self._average(exchange)

        self._receive_both(site, header, exchange.aggregator is not None, arrived)

    def _take_average(self, site: str, exchange: Exchange, header: AverageHeader) -> None:
        """Take the average of all, or of a region, also where the round has failed; it may be for another site."""
        of_all = site == exchange.aggregator
        if not of_all and not exchange.is_averaged_here:
            return

        def arrived(frames: DeltaFrames) -> None:
            if of_all:
                exchange.average = frames
            else:
                exchange.frames[site] = frames
            exchange.record.arrived(site, frames.wire_bytes)
            self._average(exchange)

        if header.coded_bytes or header.exact_bytes:
            exchange.check_sizes(site, header)
            self._receive_both(site, header, not of_all, arrived)
        else:
            arrived(DeltaFrames(None, None))

    def _receive_both(
        self, site: str, header: OfferHeader | AverageHeader, alone: bool, then: Callable[[DeltaFrames], None]
    ) -> None:
        """Receive the frames that a header announces. alone: they are for this site alone."""
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
                then(DeltaFrames(coded, exact))

        receive = self._messages.receive_own if alone else self._messages.receive
        for part, kind in zip((coded, exact), _FOR_ONE if alone else _FOR_ALL, strict=True):
            if part is not None:
                receive(part, site, kind, arrived)

    def _average(self, exchange: Exchange) -> None:
        """Add up, once all frames for that are there; then send the average on, or take that of the aggregator."""
        if exchange.entry is None or exchange.future.done():
            return
        if exchange.parts and exchange.own_average is None and exchange.parts.keys() <= exchange.frames.keys():
            values = self._added_up(exchange, exchange.entry)
            if exchange.aggregator is not None:
                exchange.own_average = self._frames_of(exchange, values)
            if exchange.own_average is not None and not exchange.is_checked_here:
                self._send_average(exchange, exchange.own_average)
            if exchange.is_averaged_here:
                self._averaged(exchange, exchange.entry, values)
                return
        if exchange.average is not None and not exchange.missing:
            exchange.check_average()
            values = None
            if exchange.average.wire_bytes:
                with self._line.running(), exchange.record.coding():
                    values = host_empty(exchange.fragment.numel, pinned=False)
                    exchange.average.decode(exchange.fragment, values)
            self._averaged(exchange, exchange.entry, values)

    def _added_up(self, exchange: Exchange, entry: Entry) -> torch.Tensor | None:
        """The average of the frames that are for this site. None: none of them counts."""
        weights = [entry.weight_of(part) for part in exchange.parts.values()]
        frames = [exchange.frames[site] for site in exchange.parts]
        for site, frame, weight in zip(exchange.parts, frames, weights, strict=True):
            if weight and not frame.wire_bytes:
                raise CorruptDataError(
                    f"local steps, round {entry.round}: site {site!r} sends no average of its region, where sites count"
                )
        with self._line.running(), exchange.record.coding():
            return average_frames(frames, exchange.fragment, weights, exchange.coding.averaging)

    def _averaged(self, exchange: Exchange, entry: Entry, values: torch.Tensor | None) -> None:
        exchange.record.averaged()
        wire_bytes = exchange.frames[self._own].wire_bytes
        self._finish(exchange, Average(entry, values, exchange.new_residual, wire_bytes))

    def _frames_of(self, exchange: Exchange, values: torch.Tensor | None) -> DeltaFrames:
        """An average as it travels; `values` become what is decoded of it. None: no site counted."""
        if values is None:
            return DeltaFrames(None, None)
        of_all = exchange.is_averaged_here or exchange.is_checked_here
        region = 0 if of_all else exchange.coding.of_region(self._own)
        with self._line.running(), exchange.record.coding():
            return through_frames(values, exchange.fragment, exchange.coding, exchange.offer.round, region=region)

    def _send_average(self, exchange: Exchange, frames: DeltaFrames) -> None:
        """That of all to all other sites, or that of a region to the aggregator."""
        self._messages.send(encode_header(AverageHeader(exchange.offer.round, *frames.sizes)), _HEADER)
        self._send_frames(frames, None if exchange.is_averaged_here else exchange.aggregator)

    def _finish(self, what: Awaited, result: Any) -> None:
        if not what.future.done():
            self._under_way.remove(what)
            what.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        """End everything with the first error, and tell the other sites."""
        if self._failure is not None:
            return
        self._failure = error = self._explained(error)
        self._end_all(error)
        with suppress(Exception):  # a process group that has failed tells them itself
            self._say_last(FailureHeader(getattr(error, "code", type(error).__name__), str(error)))
            self._messages.send(torch.tensor([_FAILED]), _NUMBER)

    def _end_all(self, error: BaseException) -> None:
        under_way, self._under_way = self._under_way, deque()
        for what in under_way:
            if isinstance(what, Exchange):
                what.record.fail()
            what.future.set_exception(error)

    def _explained(self, error: BaseException) -> BaseException:
        """A time-out of the process group says which message did not come; this says of which sites, in which round."""
        if not isinstance(error, OperationTimeoutError) or not self._under_way:
            return error
        first = self._under_way[0]
        what = f"round {first.offer.round}" if isinstance(first, Exchange) else "a meeting of the sites"
        return OperationTimeoutError(
            f"local steps, {what}: {sites_text(first.missing)} sent nothing within {self._timeout_s:g} s, the time-out "
            f"of the process group (init_process_group(timeout=...)): {error}"
        )

    def _say_last(self, header: Header) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._messages.send(encode_header(header), _HEADER)


def _ended_early(site: str, what: Awaited, header: Header) -> GeocommError:
    """The error where a site's header does not belong to what this site waits for."""
    if isinstance(header, FailureHeader):
        reason = header.reason.removeprefix("local steps: ")
        return error_of(header.code, f"local steps: site {site!r} has failed: {reason}")
    if isinstance(what, Exchange):
        return PeerLostError(
            f"local steps, round {what.offer.round}: site {site!r} has ended its run; all sites call finish()"
        )
    return InvalidArgumentError(
        f"local steps: site {site!r} begins another round, and this site has ended its run; all sites call finish() "
        "after the same round"
    )
