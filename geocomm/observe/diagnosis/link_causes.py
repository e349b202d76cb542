"""What the links between sites cost a run: their rate, their delay, loss, windows, and codecs."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from geocomm.core.units import bytes_text, rate_text
from geocomm.observe.diagnosis.link_use import LinkUse
from geocomm.observe.diagnosis.replay import Message, Replay, Way, Without
from geocomm.observe.diagnosis.run_window import RunWindow
from geocomm.observe.diagnosis.verdict import NAMED_FROM, Cause, Verdict, seconds_text

_STEADY = 0.8
"""Messages on a full line are equally fast. Losses strike some and not others."""
_ODD_MESSAGES = 2
"""So many of few messages may be far faster or slower than all others, such as those before a line changed."""
_ODD = 3.0
"""A message that takes more than this multiple of the median one's time waits for more than the line's rate."""
_HALF = 0.5
_QUEUE = 1.25
"""A queue fills where round trips take so many times the least."""
_IDLE_USE, _GOOD_USE = 0.3, 0.85
"""Shares of TCP's best rate: a line that carries less than the first, or more than the second, is idle, or full."""
_LOSS = 0.01
"""Where TCP sends a larger share of the bytes again, losses cost."""
_LIMITED = 0.2
"""Windows hold data back for more than this share of the time in which TCP has data."""
_FELL = 0.7
"""A line that delivers less than so much of what it did before has become slower."""
_RELAYS = 0.05
"""What a rank passes on for others is told of from this share of what it sends on."""
_MOST_PAIRS = 6
_MOST = 0.5
"""The link of two sites that has this share of what all links cost is named, else the site whose links have it."""
_ONE_WAY = 0.6
"""One direction is named that has this share of what both directions cost, with all that they carry: it takes two and a
half times as long as the other one."""


class Judged(NamedTuple):
    """A cause, and what a replay leaves out."""

    verdict: Verdict
    without: Without
    """To be without it."""
    explains: Without
    """What waits may come from it: also what would be left, since nobody knows what a line does that was never seen
    without it."""


def judge(
    replay: Replay,
    cause: Cause,
    where: str,
    without: Without,
    evidence: Sequence[tuple[str, str]],
    fix: str,
    *,
    at_most: bool = False,
    explains: Without | None = None,
) -> Judged:
    """A cause with what a replay without it saves. explains: None: that alone."""
    saved = max(0.0, replay.seen - replay.seconds(without))
    verdict = Verdict(cause, where, saved, saved / replay.window.step_seconds, evidence, fix, at_most)
    return Judged(verdict, without, explains or without)


def pair_name(one: str, other: str) -> str:
    """The link between two sites."""
    return " - ".join(sorted((one, other)))


class LinkFacts:
    """What the messages and the counters of one way say."""

    def __init__(self, way: Way, link: LinkUse, messages: Sequence[Message]) -> None:
        sent, count = sum(message.size for message in messages), len(messages)
        # Of the connections one has control messages only, whose busy time is no data's.
        data_s = link.busy_s * link.streams / (link.streams + 1)
        paces = sorted(message.service / message.size for message in messages if message.size)
        fast = min(len(paces) - 1, max(_ODD_MESSAGES, len(paces) // 10))
        self.way = way
        self.busy = sum(message.service for message in messages)
        """Seconds that messages held it."""
        self.rate = _ratio(sent, self.busy)
        """Bytes per second meanwhile."""
        self.use = min(1.0, _ratio(self.rate, link.best_rate))
        """The rate's share of the best one that was seen; 0: not known."""
        self.queue = _ratio(link.rtt_s, link.min_rtt_s)
        """The loaded round trip over the least; 0: not known."""
        self.limited = min(1.0, _ratio(link.receiver_limited_s + link.buffer_limited_s, data_s))
        """The share of TCP's busy time in which a window held data back."""
        self.by_receiver = link.receiver_limited_s >= link.buffer_limited_s
        self.lost = _ratio(link.retransmitted, link.bytes_sent)
        """A share of the bytes."""
        self.spread = link.spread
        """The share of the bytes over which these losses are spread."""
        self.size = sent / count
        """The mean of a message."""
        self.fastest = paces[fast] if paces else 0.0
        """Seconds for a byte, of the fastest tenth of messages."""
        self.pace = statistics.median(paces) if paces else 0.0
        """Seconds for a byte, of the median message."""
        self.steady = _ratio(self.fastest, self.pace)
        """The median message's rate, over that of the fastest tenth."""
        self.even = _ratio(self.pace, paces[-1 - fast]) if self.fastest else 0.0
        """The rate of the slowest tenth, over the median message's."""
        self.capped = min(1.0, _ratio(link.good_rate, link.best_rate))
        """TCP's good rates over its best; 0: not known."""
        self.coding = _ratio(sum(message.coding for message in messages), self.busy)
        """The share of `busy` in which the sender still made frames."""
        self.lasting = self.busy / count >= link.min_rtt_s and self.size >= link.best_rate * link.min_rtt_s
        """Messages last for round trips, so that rates say something of the line."""

    @property
    def narrow(self) -> bool:
        """Windows hold data back."""
        return self.limited > _LIMITED

    @property
    def full(self) -> bool:
        """Whether the way's rate is what messages wait for: all flow equally fast, or they queue."""
        if self.narrow or not self.lasting or self.coding > _HALF or (self.use and self.use < _HALF):
            return False
        # Many losses delay many messages alike, and their repair looks like a queue: not both. Losses at once are those
        # of a queue that overflows, as where a line has become slower.
        if self.lost > _LOSS and self.spread > _HALF:
            if min(self.steady, self.even) >= _STEADY and self.capped >= _GOOD_USE:
                return True  # no queue is there to be seen, but a rate that TCP never goes beyond
            return self.steady >= _STEADY and (self.queue >= _QUEUE or self.use >= _GOOD_USE)
        return self.queue >= _QUEUE or self.steady >= _STEADY

    @property
    def loses(self) -> bool:
        """Packets are lost, all the time, and not since it is full."""
        return not self.full and not self.narrow and self.lost > _LOSS and self.spread > _HALF


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _fell(link: LinkUse) -> bool:
    return 0 < link.good_rate < _FELL * link.earlier_rate


def egress_row(window: RunWindow) -> list[tuple[str, str]]:
    """What the run pays for, where sites have told their prices."""
    dollars = window.egress_dollars_per_day
    return [] if dollars is None else [("egress at the sites' prices", f"${dollars:.2f} a day")]


def _without_bytes(ways: set[Way]) -> Without:
    """All but what the sender needs for making them."""
    return Without(service=lambda one: min(one.service, one.coding) if one.way in ways else one.service)


class LinkCauses:
    """Causes between the sites, each with the link of the two sites that it costs most at."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self._window = replay.window

    def verdicts(self) -> Iterable[Judged]:
        """In the order of the tests, also those that cost nothing."""
        yield from self._bandwidth()
        yield from self._windows()
        yield from self._loss()
        yield from self._codec()
        yield from self._latency()

    def at_best(self, without: Without) -> Without:
        """`without`, also without what bytes take on a line that is as fast as it ever was."""

        def service(one: Message) -> float:
            usual = self._facts[one.way].pace * one.size  # TCP's best rate is that of little to send, at times
            return max(0.0, without.service(one) - min(self._wire(one), usual))

        return replace(without, service=service)

    @cached_property
    def _facts(self) -> dict[Way, LinkFacts]:
        by_way: dict[Way, list[Message]] = defaultdict(list)
        for messages in self._replay.messages.values():
            for message in messages:
                by_way[message.way].append(message)
        return {way: LinkFacts(way, self._replay.link(way), messages) for way, messages in by_way.items()}

    def _wire(self, message: Message) -> float:
        """What the bytes of a message need on the link as fast as it ever was; 0 if that is not known."""
        best = self._replay.link(message.way).best_rate if self._facts[message.way].lasting else 0.0
        return min(message.service, message.size / best) if best else 0.0

    def _full(self, way: Way) -> bool:
        """Whether a way is full; also the way back of a full one, if it is not far from that itself."""
        own, back = self._facts[way], self._facts.get((way[1], way[0]))
        return own.full or (back is not None and back.full and own.use > _HALF and not own.narrow)

    def _loses(self, way: Way) -> bool:
        """Whether a way loses packets; also the way back of one that does, if it is not far from that itself."""
        own, back = self._facts[way], self._facts.get((way[1], way[0]))
        if self._full(way):
            return False
        return own.loses or (back is not None and back.loses and own.lost > _HALF * _LOSS)

    def _by_pairs(
        self,
        cause: Cause,
        ways: Iterable[LinkFacts],
        without: Callable[[set[Way]], Without],
        evidence: Callable[[LinkFacts], Sequence[tuple[str, str]]],
        fix: Callable[[LinkFacts], str],
        *,
        at_most: bool = False,
        explains: Callable[[set[Way]], Without] | None = None,
        has_direction: bool = True,
    ) -> Iterable[Judged]:
        """One verdict, of the narrowest place that most of it is at: one direction between two sites, or of all links
        of a site; the link of two sites; a site; or all links."""
        pairs: dict[str, list[LinkFacts]] = defaultdict(list)
        sites: dict[str, list[LinkFacts]] = defaultdict(list)
        directions: dict[str, dict[str, list[LinkFacts]]] = defaultdict(lambda: defaultdict(list))
        everywhere = list(ways)
        for facts in everywhere:
            here, there = (place[0] for place in facts.way)
            pair = pair_name(here, there)
            pairs[pair].append(facts)
            sites[here].append(facts)
            sites[there].append(facts)
            directions[pair][f"{here} -> {there}"].append(facts)
            directions[here][f"{here} -> all"].append(facts)
            directions[there][f"all -> {there}"].append(facts)
        if not pairs:
            return

        def worst(of: Mapping[str, Sequence[LinkFacts]]) -> Judged:
            busiest = sorted(of, key=lambda name: -max(one.busy for one in of[name]))[:_MOST_PAIRS]
            return max((verdict(name, of[name]) for name in busiest), key=lambda one: one.verdict.saved_seconds)

        def verdict(where: str, links: Sequence[LinkFacts]) -> Judged:
            busiest = max(links, key=lambda one: one.busy)
            ways = {one.way for one in links}
            return judge(
                *(self._replay, cause, where, without(ways), evidence(busiest), fix(busiest)),
                at_most=at_most,
                explains=explains(ways) if explains else None,
            )

        def directed(found: Judged) -> Judged:
            """The one direction that all of it is at, if the other one carries its part with ease."""
            where, whole = found.verdict.where, found.verdict.saved_seconds
            if not has_direction or not whole:
                return found
            one = max(
                (verdict(name, links) for name, links in directions[where].items()),
                key=lambda judged: judged.verdict.saved_seconds,
            )
            # Also without the other direction where that was not found to be the cause, such as by a hair.
            both = {way for way in self._facts if where in (pair_name(way[0][0], way[1][0]), way[0][0], way[1][0])}
            whole = max(whole, self._replay.seen - self._replay.seconds(without(both)))
            if one.verdict.saved_seconds < _ONE_WAY * whole:
                return found
            return one._replace(explains=found.explains)  # both directions are looked through

        if len(pairs) == 1:
            yield directed(verdict(*pairs.popitem()))
            return
        most = verdict("", everywhere)
        if most.verdict.share < NAMED_FROM:  # nor does a part of them cost more
            return
        for narrower in (worst(pairs), worst(sites)):
            if narrower.verdict.share >= max(NAMED_FROM, _MOST * most.verdict.share):
                yield directed(narrower)
                return
        yield most

    def _bandwidth(self) -> Iterable[Judged]:
        def without(ways: set[Way]) -> Without:
            # The bytes take no time, but what is left of the codec does; and what a message took beyond all others.
            def service(one: Message) -> float:
                if one.way not in ways:
                    return one.service
                odd = one.service - _ODD * one.size * self._facts[one.way].pace
                return max(min(one.service, one.coding), odd)

            return Without(service=service)

        yield from self._by_pairs(
            Cause.BANDWIDTH,
            [one for one in self._facts.values() if self._full(one.way)],
            without,
            self._evidence_of_rate,
            self._fix_of_rate,
        )

    def _evidence_of_rate(self, one: LinkFacts) -> list[tuple[str, str]]:
        link = self._replay.link(one.way)
        rows = [
            ("rate while messages were under way", rate_text(8 * one.rate)),
            ("the median message, to the fastest tenth", f"{one.steady:.0%}"),
            ("of the best that TCP ever delivered", f"{one.use:.0%}" if one.use else "not known"),
            ("round trip under load, over the least", f"{one.queue:.1f}" if one.queue else "not known"),
        ]
        if _fell(link):
            rows.append(("what TCP delivered in good times before", rate_text(8 * link.earlier_rate)))
        if self._relayed(one) > _RELAYS:
            rows.append((f"of what {one.way[0][0]} sends, passed on for others", f"{self._relayed(one):.0%}"))
        return [*rows, *egress_row(self._window)]

    def _fix_of_rate(self, one: LinkFacts) -> str:
        fix = ""
        if _fell(self._replay.link(one.way)):
            fix = "The line carried more before: it has other traffic now, or a provider's allowance is used up. "
        if self._relayed(one) > _RELAYS:
            fix += f"{one.way[0][0]} passes on what others send each other: repair their link. "
        return fix + (
            f"Send less: a coarser codec (GEOCOMM_CODEC), or local steps; or more than {rate_text(8 * one.rate)} of "
            "egress. geocomm plan says what each would bring."
        )

    def _relayed(self, one: LinkFacts) -> float:
        return next((rank.relayed for rank in self._window.ranks if rank.place == one.way[0]), 0.0)

    def _windows(self) -> Iterable[Judged]:
        # What the line would carry is not known: no more can be saved than all of it.
        yield from self._by_pairs(
            Cause.WINDOWS,
            [one for one in self._facts.values() if one.narrow],
            _without_bytes,
            lambda one: [
                (
                    f"{'receive window' if one.by_receiver else 'send buffer'} held data back",
                    f"{one.limited:.0%} of the busy time",
                ),
                ("rate while messages were under way", rate_text(8 * one.rate)),
            ],
            lambda one: (
                f"Raise net.ipv4.tcp_{'rmem' if one.by_receiver else 'wmem'} at "
                f"{one.way[1 if one.by_receiver else 0][0]} (geocomm doctor prints the values)."
            ),
            at_most=True,
        )

    def _loss(self) -> Iterable[Judged]:
        fastest = {one.way: one.fastest for one in self._facts.values()}

        def without(ways: set[Way]) -> Without:
            def service(one: Message) -> float:
                if one.way not in ways:
                    return one.service
                least = one.size * fastest[one.way]
                return min(one.service, max(min(self._wire(one) or least, least), one.coding))

            return Without(service=service)

        yield from self._by_pairs(
            Cause.LOSS,
            [one for one in self._facts.values() if self._loses(one.way)],
            without,
            lambda one: [
                ("bytes that TCP sent again", f"{one.lost:.1%}"),
                ("rate while messages were under way", rate_text(8 * one.rate)),
                ("the median message, to the fastest tenth", f"{one.steady:.0%}"),
                ("of the best that TCP ever delivered", f"{one.use:.0%}" if one.use else "not known"),
                ("congestion control", self._replay.link(one.way).congestion_control or "not known"),
            ],
            lambda one: (
                "Ask the carrier for the loss."
                if self._replay.link(one.way).congestion_control == "bbr"
                else "Load BBR at both ends (modprobe tcp_bbr): it does not slow down for single losses."
            ),
            explains=_without_bytes,
        )

    def _codec(self) -> Iterable[Judged]:
        coding = [operation.coding for rank in self._window.ranks for operation in rank.operations]
        if not any(coding):
            return
        full = {way for way in self._facts if self._full(way)}

        def service(one: Message) -> float:
            if one.way in full:
                return one.service
            return max(self._wire(one), one.service - one.coding)

        codecs = sorted({one.codec for rank in self._window.ranks for one in rank.operations if one.codec})
        steps = sum(len(rank.steps) for rank in self._window.ranks)
        made = sum(message.coding for messages in self._replay.messages.values() for message in messages)
        yield judge(
            self._replay,
            Cause.CODEC,
            "",
            Without(service=service, coding=lambda place: 0.0),
            [
                ("codecs", ", ".join(codecs) or "none"),
                ("all threads' time for making and decoding", f"{seconds_text(sum(coding) / steps)} a step and rank"),
                ("of that, messages waited for the sender", f"{seconds_text(made / steps)} a step and rank"),
            ],
            "Use a cheaper codec (geocomm bench codec compares them here), or give geocomm more threads "
            "(GEOCOMM_THREADS) and cores.",
        )

    def _latency(self) -> Iterable[Judged]:
        plain = {
            one.way
            for one in self._facts.values()
            if not self._full(one.way)
            and not one.narrow
            and one.lost <= _LOSS
            and (one.use < _IDLE_USE or not one.lasting)
        }

        def without(ways: set[Way]) -> Without:
            def service(one: Message) -> float:
                # TCP's slow start, and its pace after a pause, go by round trips as well.
                if one.way in ways & plain:
                    return min(one.service, max(self._wire(one), one.coding))
                return one.service

            return Without(service=service, delay=lambda one: 0.0 if one.way in ways else one.delay)

        steps = max(1, self._window.step_count)

        def evidence(one: LinkFacts) -> list[tuple[str, str]]:
            link = self._replay.link(one.way)
            count = sum(1 for _, messages in self._replay.messages.items() for each in messages if each.way == one.way)
            return [
                ("least round trip", seconds_text(link.min_rtt_s)),
                ("operations", f"{count / steps:.0f} a step, of {bytes_text(one.size)} each"),
                ("time on the link beyond the way", f"{seconds_text(one.busy / steps)} a step"),
                ("of the best rate that TCP delivered", f"{one.use:.0%}" if one.use else "not known, never filled"),
            ]

        yield from self._by_pairs(
            Cause.LATENCY,
            self._facts.values(),
            without,
            evidence,
            lambda one: (
                "Make fewer and larger operations (DDP: bucket_cap_mb), let them run behind the computation "
                "(async_op=True), or take local steps."
            ),
            has_direction=False,  # round trips do not tell
        )
