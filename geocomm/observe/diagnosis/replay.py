"""The last steps of a run once more, as they were or without one thing that cost time.

The program of each rank is what it did between its operations, which takes the time that it took, its calls, and its
waits. A message leaves when its operation has begun and those before it have left; it then takes the time that it took
on the link, and half a round trip. Where each site sums up a part of a tensor, it sends contributions to the others'
parts, and then the sum of its own, for which it needs the contributions of all. By regions a head of a reduce-scatter
sends sums to other regions, for which it needs the contributions of its own. So a replay that changes nothing gives
the times that were seen, and one that takes something away moves all that depended on it.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from geocomm.observe.diagnosis.link_use import LinkUse, Place
from geocomm.observe.diagnosis.run_window import Key, Operation, RankWindow, RunWindow, Step

Way = tuple[Place, Place]
"""From one rank to another."""
_CHUNK_BYTES, _LEAST_CHUNK_BYTES, _MOST_SMALL_CHUNKS = 1 << 20, 1 << 16, 4
"""A tensor is cut into chunks of so many bytes before coding, a small one into so many for each site
(`reduce_plan.cc`)."""
_ROUNDS = 8
"""How often the times of an operation's messages are found from each other."""
_LEAST_WAIT_S = 1e-3
"""A shorter wait that the log does not show is left out."""
_FEW = 0.25
"""Fewer messages than this, for each that was there early, do not say how fast a way is."""
_AT_ONCE_S = 2e-3
"""What comes so soon after the receiver asked for it lay there already."""


@dataclass(frozen=True)
class Message:
    """What went from one rank to another for one operation. Seconds."""

    way: Way
    """Its link."""
    size: int
    service: float
    """From the moment when it could leave to its last byte's, less the way."""
    coding: float
    """The part of that until the sender had made the last frame."""
    delay: float
    """Half a round trip of that link."""
    contributed: float = 1.0
    """Share of it which the sender can make at once. The rest are sums, for which it needs the contributions of all."""
    chunk: float = 0.0
    """Share of it which is the first or the last chunk."""

    @property
    def summed(self) -> float:
        """Share of it which are sums."""
        return 1 - self.contributed


@dataclass(frozen=True)
class Without:
    """What a replay leaves out; nothing: it shows what was seen."""

    service: Callable[[Message], float] = lambda message: message.service
    """What a message takes on the link then."""
    delay: Callable[[Message], float] = lambda message: message.delay
    coding: Callable[[Place], float] = lambda place: 1.0
    """By what to multiply a rank's time for decoding."""
    program: Callable[[RankWindow, Step, float], float] = lambda rank, step, own: own
    """What the program needs for itself in a step, of which `own` seconds were seen."""

    def and_also(self, other: Without) -> Without:
        """Without what either leaves out."""
        return Without(
            service=lambda message: min(self.service(message), other.service(message)),
            delay=lambda message: min(self.delay(message), other.delay(message)),
            coding=lambda place: min(self.coding(place), other.coding(place)),
            program=lambda rank, step, own: other.program(rank, step, self.program(rank, step, own)),
        )


@dataclass(frozen=True)
class Replayed:
    """A step of a replay, the mean over steps and ranks. Seconds."""

    seconds: float
    waited: float
    """The seconds of these that went by in waits for operations."""


@dataclass(frozen=True)
class _Event:
    """A call or a wait of a program, in its order."""

    own: float  # seconds of the program since the event before
    key: Key | None  # None: a step ends
    waits: bool = False
    late: float = 0.0  # seconds between the operation's end and the program's going on
    step: int = 0


class Replay:
    """A window that can be replayed again and again."""

    def __init__(self, window: RunWindow) -> None:
        """window: its times are on one clock, as far as that is known."""
        self.window = window
        self._links = {(link.source, link.target): link for link in window.links}
        self._by_key: dict[Key, dict[Place, Operation]] = defaultdict(dict)
        for rank in window.ranks:
            for operation in rank.operations:
                self._by_key[operation.key][rank.place] = operation
        self.messages: dict[tuple[Key, Place], list[Message]] = defaultdict(list)
        """Those that a rank gets for an operation."""
        self._find_messages()
        self._events = {rank.place: _events(rank) for rank in window.ranks}

    @cached_property
    def seen(self) -> float:
        """A step's seconds in a replay that changes nothing."""
        return self.seconds(Without())

    def link(self, way: Way) -> LinkUse:
        """What is known of it."""
        return self._links.get(way) or LinkUse(*way)

    def operations(self, key: Key) -> Mapping[Place, Operation]:
        """An operation at all ranks that told of it."""
        return self._by_key[key]

    def seconds(self, without: Without) -> float:
        """A step's, the mean over steps and ranks."""
        return self.replayed(without).seconds

    def replayed(self, without: Without) -> Replayed:
        """The steps without something."""
        return _Run(self, self._events, without).replayed()

    def _find_messages(self) -> None:
        """How long each message held its link, from what was seen: they leave one after the other."""
        free: dict[Way, float] = defaultdict(lambda: float("-inf"))
        early: list[tuple[tuple[Key, Place], int]] = []
        for key, ranks in sorted(self._by_key.items(), key=lambda item: max(one.began for one in item[1].values())):
            begun = {place: operation.began for place, operation in ranks.items()}
            messages = {place: self._received(ranks, place) for place in ranks}
            left = {
                one.way: ranks[place].arrivals[one.way[0]] - one.delay
                for place, some in messages.items()
                for one in some
            }
            took = _times_on_links(messages, begun, free, left)
            for place, some in messages.items():
                for one in some:
                    free[one.way] = max(free[one.way], left[one.way])
                    sent = ranks.get(one.way[0])
                    made = 0.0 if sent is None or not sent.codec else min(sent.encoded - sent.began, sent.coding)
                    if ranks[place].arrivals[one.way[0]] < begun[place] + _AT_ONCE_S:
                        early.append(((key, place), len(self.messages[key, place])))
                    service = took[one.way]
                    told = replace(one, service=service, coding=max(0.0, min(service, made)))
                    self.messages[key, place].append(told)
        self._shorten(early)

    def _received(self, ranks: Mapping[Place, Operation], target: Place) -> list[Message]:
        """What a rank got for an operation, without the times."""
        operation, owned = ranks[target], _owned(ranks)
        by_region = not owned and bool(operation.of_regions)
        sites = len(_sites(ranks))
        found: list[Message] = []
        for source in operation.arrivals:
            there, back = self.link((source, target)), self.link((target, source))
            delay = min(filter(None, (there.min_rtt_s, back.min_rtt_s)), default=0.0) / 2
            plain = Message((source, target), operation.bytes_received // len(operation.arrivals), 0.0, 0.0, delay)
            if by_region:
                found.append(_of_regions(plain, operation, sites))
            else:
                found.append(_of_owners(plain, operation, owned) if source in owned else plain)
        return found

    def _shorten(self, early: Sequence[tuple[tuple[Key, Place], int]]) -> None:
        """Messages that were there before their receiver asked for them took less than was seen: what others take on
        that link, or on its way back where almost all were there before."""
        waited = set(early)
        paces: dict[Way, list[float]] = defaultdict(list)
        early_on: dict[Way, int] = defaultdict(int)
        for place, messages in self.messages.items():
            for i, message in enumerate(messages):
                if (place, i) in waited:
                    early_on[message.way] += 1
                elif message.size:
                    paces[message.way].append(message.service / message.size)
        for place, i in early:
            message = self.messages[place][i]
            way, back = message.way, (message.way[1], message.way[0])
            seen = paces[way]
            if len(seen) < _FEW * early_on[way]:  # such as the first ones, for which a line starts slowly
                seen = paces[back] or seen
            if seen:
                service = min(message.service, message.size * statistics.median(seen))
                self.messages[place][i] = replace(message, service=service, coding=min(service, message.coding))


class _Program:
    """What one rank's program does next in a replay."""

    def __init__(self, rank: RankWindow, events: Sequence[_Event], without: Without) -> None:
        self.events = events
        self.factors = _factors(rank, events, without)
        self.next = 0
        self.began = self.now = rank.steps[0].began if rank.steps else 0.0
        self.waited = 0.0


class _Run:
    """One replay, from its begin to its end."""

    def __init__(self, replay: Replay, events: Mapping[Place, Sequence[_Event]], without: Without) -> None:
        self._replay, self._without = replay, without
        self._programs = {rank.place: _Program(rank, events[rank.place], without) for rank in replay.window.ranks}
        self._free: dict[Way, float] = defaultdict(lambda: float("-inf"))
        self._begun: dict[Key, dict[Place, float]] = defaultdict(dict)
        self._ends: dict[tuple[Key, Place], float] = {}

    def replayed(self) -> Replayed:
        """Go through all events."""
        moving = True
        while moving:
            advanced = [self._advance(place, program) for place, program in self._programs.items()]
            moving = any(advanced) or self._unblock()
        count = max(1, sum(len(rank.steps) for rank in self._replay.window.ranks))
        programs = self._programs.values()
        total = sum(program.now - program.began for program in programs)
        return Replayed(total / count, sum(program.waited for program in programs) / count)

    def _advance(self, place: Place, program: _Program) -> bool:
        """Go on as far as the program comes by itself; whether it did anything."""
        first = program.next
        while program.next < len(program.events):
            event = program.events[program.next]
            asked = program.now + event.own * program.factors.get(event.step, 1.0)
            if event.waits and event.key is not None:
                end = self._ends.get((event.key, place))
                if end is None:
                    break
                program.now = max(asked, end) + event.late
                program.waited += program.now - asked
            else:
                program.now = asked
                if event.key is not None:
                    ranks = self._replay.operations(event.key)
                    operation = ranks[place]
                    self._begun[event.key][place] = program.now + operation.began - operation.issued
                    if len(self._begun[event.key]) == len(ranks):
                        self._exchange(event.key)
            program.next += 1
        return program.next > first

    def _exchange(self, key: Key) -> None:
        """When an operation, which has begun at all ranks, ends at each."""
        begun, ranks = self._begun[key], self._replay.operations(key)
        messages = {place: self._replay.messages.get((key, place), ()) for place in ranks if place in begun}
        flights, sums = _flights(messages, begun, self._free, self._without)
        for place, some in flights.items():
            operation, last = ranks[place], begun[place]
            for message, start, service, delay in some:
                left = start + service
                if message.summed:
                    first, all_in = sums[message.way[0]]
                    last_chunk = min(message.chunk, message.summed)
                    left = max(left, first + message.summed * service, all_in + last_chunk * service)
                self._free[message.way] = left
                last = max(last, left + delay)
            arrived = max([operation.began, *operation.arrivals.values()])
            decoding = max(0.0, operation.exchanged - arrived) if operation.arrivals else 0.0
            if not operation.arrivals:  # it only sends
                last += max(0.0, operation.exchanged - operation.began)
            inside = max(0.0, operation.ended - operation.exchanged)
            self._ends[key, place] = last + decoding * self._without.coding(place) + inside

    def _unblock(self) -> bool:
        """What the window's edge cuts off: an operation that a rank began before it. The wait that began first ends
        without the others. Whether there was one."""
        blocked: list[tuple[float, Place, Key]] = []
        for place, program in self._programs.items():
            key = program.events[program.next].key if program.next < len(program.events) else None
            if key is not None and (key, place) not in self._ends:
                blocked.append((program.now, place, key))
        if not blocked:
            return False
        now, place, key = min(blocked, key=lambda one: (one[0], one[1]))
        self._begun[key].setdefault(place, now)
        self._exchange(key)
        return True


def _factors(rank: RankWindow, events: Sequence[_Event], without: Without) -> dict[int, float]:
    """By how much longer the program takes for itself in each step."""
    seen: dict[int, float] = defaultdict(float)
    for event in events:
        seen[event.step] += event.own
    return {
        i: max(0.0, without.program(rank, step, seen[i]) / seen[i]) for i, step in enumerate(rank.steps) if seen[i] > 0
    }


def _owned(ranks: Mapping[Place, Operation]) -> dict[Place, float]:
    """How many bytes of the tensor each rank sums up for the others, before coding; nobody any where all send all
    others the whole, as all-reduces of two sites and small ones do."""
    told = list(ranks.values())
    sites = _sites(ranks)
    if told[0].kind != "all_reduce" or len(sites) < 3:
        return {}
    received, came = sum(one.raw_bytes_received for one in told), sum(len(one.arrivals) for one in told)
    whole = told[0].raw_bytes * (len(sites) - 1) * len({place[0] for place in ranks})
    if not came or received > whole * (1 + 2 / len(sites)) / 2:  # else it is whole * 2 / len(sites)
        return {}
    places = {*ranks, *(place for one in told for place in one.arrivals)}
    of_site = Counter(place[0] for place in places)
    if len(set(of_site.values())) > 1:
        return dict.fromkeys(ranks, received / came / 2)  # sites of several sizes: all owners are taken for equal
    # Each rank takes part in as much of the tensor: it gets its part of that from all others, and theirs from them.
    stripe = told[0].raw_bytes * len(sites) / len(places)
    found = {place: (one.raw_bytes_received - stripe) / (len(sites) - 2) for place, one in ranks.items()}
    return {place: min(stripe, max(0.0, owned)) for place, owned in found.items()}


def _sites(ranks: Mapping[Place, Operation]) -> set[str]:
    """Those that take part."""
    return {place[0] for one in ranks.values() for place in one.arrivals} | {place[0] for place in ranks}


def _of_regions(message: Message, operation: Operation, sites: int) -> Message:
    """A message of a reduce-scatter by regions: sums come from other regions, of each of them an equal piece in all;
    contributions come from the own one. Regions are taken for equally large."""
    heads = len(operation.of_regions)
    near = len(operation.arrivals) - heads
    others = sites / (1 + near) - 1  # regions
    is_sum = message.way[0] in operation.of_regions
    share = others / (sites - 1) / heads if is_sum else (1 - others / (sites - 1)) / near
    piece = operation.raw_bytes_received / (sites - 1)
    chunk = min(_CHUNK_BYTES, max(_LEAST_CHUNK_BYTES, piece / _MOST_SMALL_CHUNKS))
    return replace(
        message,
        size=round(operation.bytes_received * share),
        contributed=0.0 if is_sum else 1.0,
        chunk=min(1.0, chunk / max(1.0, operation.raw_bytes_received * share)),
    )


def _of_owners(message: Message, operation: Operation, owned: Mapping[Place, float]) -> Message:
    """A message where each rank sums up a part: what it gets of each other are its own part, and that one's sums."""
    source, target = message.way
    equal = sum(owned.values()) / len(owned)
    others = {place: owned.get(place, equal) for place in operation.arrivals}
    tensor, count = owned[target] + sum(others.values()), 1 + len(others)
    small = min(_MOST_SMALL_CHUNKS * count, tensor / _LEAST_CHUNK_BYTES)
    chunk = tensor / max(count, tensor / _CHUNK_BYTES, small)
    # Who owns anything has a chunk at least: less is what rounding leaves.
    contributions, sums = (one if 2 * one >= chunk else 0.0 for one in (owned[target], owned[source]))
    if not contributions + sums:
        return replace(message, size=0)
    size, of_all = contributions + sums, owned[target] * len(others) + sum(others.values())
    return replace(
        message,
        size=round(operation.bytes_received * size / of_all),
        contributed=contributions / size,
        chunk=chunk / size,
    )


def _flights(
    messages: Mapping[Place, Sequence[Message]],
    begun: Mapping[Place, float],
    free: Mapping[Way, float],
    without: Without,
) -> tuple[dict[Place, list[tuple[Message, float, float, float]]], dict[Place, tuple[float, float]]]:
    """By receiver, an operation's messages with when they can leave, what they take on the link, and the way; and when
    it has the first chunk of the contributions of all others, and when all, which come before what these have summed. A
    message whose sender does not tell leaves when its receiver calls."""
    flights: dict[Place, list[tuple[Message, float, float, float]]] = {}
    sums: dict[Place, tuple[float, float]] = {}
    for place, some in messages.items():
        own = first = all_in = begun[place]
        found: list[tuple[Message, float, float, float]] = []
        flights[place] = found
        for one in some:
            way = one.way
            start, service, delay = max(begun.get(way[0], own), free[way]), without.service(one), without.delay(one)
            found.append((one, start, service, delay))
            if not one.contributed:
                continue
            first = max(first, start + min(one.chunk, one.contributed) * service + delay)
            all_in = max(all_in, start + one.contributed * service + delay)
        sums[place] = first, all_in
    return flights, sums


def _times_on_links(
    messages: Mapping[Place, Sequence[Message]],
    begun: Mapping[Place, float],
    free: Mapping[Way, float],
    left: Mapping[Way, float],
) -> dict[Way, float]:
    """What each message of an operation took on its link, if it was all on its way at `left`. Where sums wait for
    contributions, the times of all depend on each other: each round goes half the way from what was thought before."""
    took = dict.fromkeys(left, 0.0)
    seen = Without(service=lambda one: took[one.way])
    summed = any(one.summed for some in messages.values() for one in some)
    for _ in range(_ROUNDS if summed else 1):
        flights, sums = _flights(messages, begun, free, seen)
        for message, start, _, _ in itertools.chain(*flights.values()):
            way = message.way
            service = left[way] - start
            if message.summed:
                first, all_in = sums[way[0]]
                last_chunk = min(message.chunk, message.summed)
                found = min(service, (left[way] - first) / message.summed, (left[way] - all_in) / last_chunk)
                service = (took[way] + max(0.0, found)) / 2
            took[way] = max(0.0, service)
    return took


def _events(rank: RankWindow) -> list[_Event]:
    """What the program did, in its order."""
    moments: list[tuple[float, float, Key | None, bool, float]] = []  # when, until when, which, waits, late
    begin, end = (rank.steps[0].began, rank.steps[-1].ended) if rank.steps else (0.0, 0.0)
    for operation in rank.operations:
        moments.append((operation.issued, operation.issued, operation.key, False, 0.0))
        if operation.wait_began is not None and operation.wait_ended is not None and operation.wait_ended <= end:
            late = max(0.0, operation.wait_ended - max(operation.wait_began, operation.ended))
            moments.append((operation.wait_began, operation.wait_ended, operation.key, True, late))
    moments += _hidden_waits(rank)
    moments += [(step.ended, step.ended, None, False, 0.0) for step in rank.steps]
    moments.sort(key=lambda moment: moment[0])  # of one time, an operation's call and wait come before the next one's
    events: list[_Event] = []
    now, step = begin, 0
    for at, until, key, waits, late in moments:
        events.append(_Event(max(0.0, at - now), key, waits, late, step))
        now = max(now, until)
        if key is None:
            step += 1
    return events


def waits(rank: RankWindow, step: Step) -> float:
    """Seconds of a step in which the program stood in `wait()`."""
    return sum(
        min(operation.wait_ended, step.ended) - max(operation.wait_began, step.began)
        for operation in rank.operations
        if operation.wait_began is not None
        and operation.wait_ended is not None
        and operation.wait_began < step.ended
        and operation.wait_ended > step.began
    )


def _hidden_waits(rank: RankWindow) -> list[tuple[float, float, Key | None, bool, float]]:
    """Who takes an operation's Future, as DDP does, waits where the log does not see it. The counter of exposed time
    says how long: that is taken to be before the step's last end of an operation."""
    found: list[tuple[float, float, Key | None, bool, float]] = []
    for step in rank.steps:
        hidden = (step.exposed or 0.0) - waits(rank, step)
        unseen = [
            operation
            for operation in rank.operations
            if operation.wait_began is None and step.began <= operation.issued and operation.ended <= step.ended
        ]
        if hidden < _LEAST_WAIT_S or not unseen:
            continue
        last = max(unseen, key=lambda operation: operation.ended)
        began = max(step.began, last.ended - hidden, max(operation.issued for operation in unseen))
        found.append((began, last.ended, last.key, True, 0.0))
    return found
