"""One rank of a site in the rounds of its own fragments: pure logic, which knows no tensors, files or sockets.

The caller tells what has happened, and does what the returned acts say, in their order. For each own fragment, at
version v:

1. Its schedule says so: `due`. Or OPEN comes.
2. At the next step hook, `begins` has that OPEN: the caller makes a frame of its delta, writes it to disk (fsync), and
   tells `made`; where that takes a while, it tells `begun` first. The acts send it and say OFFER.
3. A frame of another site lies on disk (fsync): `arrived`. The act says HOLD. A disk may lose it again: `lost`, and the
   acts say so, and again where the leader counts on the frame.
4. The entry comes, and all its frames are there: `next_settled` has it. The caller takes the outer step and tells
   `applied`. It replaces its residual, and takes steps off its uncounted ones, by what `Settled.counted` names: the
   frame that counts need not be the newest that the site has made. Where nobody has the frames any more,
   `next_settled` names a state instead, which the caller takes over.

All calls come from one thread, or under one lock.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import AnyRound, Digest, Entry, Skip
from geocomm.elastic.journal.mailed_frames import averager, mailed
from geocomm.elastic.journal.messages import (
    Applied,
    Check,
    Down,
    Due,
    EntrySaid,
    Fetched,
    Hold,
    Need,
    Offer,
    Open,
    Owner,
    Pass,
    Peer,
    RankWelcome,
    Repair,
    Sum,
    Summed,
    TakeState,
    Up,
    Welcome,
)

MOST_OWN_FRAMES = 3
"""The own frames of one round that are on its disk: a site keeps what counts of each. After these it offers the newest
again."""


@dataclass(frozen=True)
class Say:
    """Tell the agent, which tells the leader."""

    message: Up


@dataclass(frozen=True)
class SendFrame:
    """Send an own frame, or an average that this site has made, to these sites by mail: not to those that have been
    sent this one before."""

    offer: Offer | Summed
    peers: tuple[Peer, ...]
    """Without the own site."""


@dataclass(frozen=True)
class MakeSum:
    """Average these frames, which are on disk, and keep the frame of the average there; then tell `summed`."""

    asked: Sum


@dataclass(frozen=True)
class CheckSum:
    """Average these frames, which are on disk, and say SumChecked: what their aggregator should have made."""

    asked: Check


@dataclass(frozen=True)
class Recompute:
    """Compute the state of the fragment again from the disk: state file and listed frames."""

    fragment: int


@dataclass(frozen=True)
class StartAgain:
    """The ranks must end and start again: this rank has applied an entry that is void now, and cannot go back; or the
    site's place in its data is behind what does not count any more."""

    fragment: int
    version: int
    """The first of the void rounds: states of later versions are void too."""
    why: str


Act = Say | SendFrame | MakeSum | CheckSum | Recompute | StartAgain


class Frame(NamedTuple):
    """A frame that lies on disk."""

    fragment: int
    version: int
    site: str
    hash: Hash


@dataclass(frozen=True)
class Settled:
    """A round that is decided, and whose frames are all on disk here; or several, whose outcome is."""

    fragment: int
    version: int
    """The fragment goes from this one to `after`."""
    entry: AnyRound | None
    """None: the round is void, and the state stays; or the state is taken over."""
    counted: Offer | None
    """The own frame that the entry lists; None: none, so the uncounted steps and the residual stay."""
    state: int | None = None
    """The version whose state, on disk, is the outcome of all rounds before it; None: one round is applied."""

    @property
    def after(self) -> int:
        """The version of the fragment once it is applied."""
        return self.version + 1 if self.state is None else self.state


@dataclass
class _Fragment:
    version: int
    due: bool = False
    open: Open | None = None
    begun: int = -1
    """The highest attempt at `version` for which a frame is made, or was."""
    tried: int = -1
    """The highest attempt that has an own frame or a pass."""
    passed: int = -1
    """The highest attempt that has a pass."""
    own: list[Offer] = field(default_factory=list[Offer])
    """Own frames of the round, the newest last."""
    sent: dict[Hash, set[tuple[Owner, ...]]] = field(default_factory=dict[Hash, set[tuple[Owner, ...]]])
    """By own frame: the processes to which it was sent. Where their agent is may change with the leader."""
    on_disk: set[tuple[int, str, Hash]] = field(default_factory=set[tuple[int, str, Hash]])
    """(version, site, hash), of `version` and later ones."""
    summing: int = -1
    """The highest charge to average at `version` that this site has begun."""
    summed: Summed | None = None
    """The average that it has made in that charge."""
    rounds: dict[int, AnyRound] = field(default_factory=dict[int, AnyRound])
    void: set[int] = field(default_factory=set[int])
    state: int = 0
    """The newest version of which a state lies on disk that is to be taken over."""


class Member:
    """A rank of `site` that has these fragments at these versions.

    After the construction, hand over the journal's entries of those versions, then what the agent says. head: the index
    of the entry after which the site was told where it is in its data.
    """

    def __init__(self, site: str, versions: Mapping[int, int], head: int = -1) -> None:
        self._site = site
        self._head = head
        self._own = {fragment: _Fragment(version) for fragment, version in versions.items()}

    @property
    def versions(self) -> dict[int, int]:
        """The versions of the own fragments."""
        return {fragment: own.version for fragment, own in self._own.items()}

    def on_down(self, message: Down) -> list[Act]:
        """The agent has said something: Open, EntrySaid, Welcome, RankWelcome, Fetched, TakeState or Repair; others do
        nothing."""
        match message:
            case Open():
                return self._opened(message)
            case Sum():
                return self._sums(message)
            case Check() if message.fragment in self._own:
                return [CheckSum(message)]
            case EntrySaid():
                return self._listed(message.entry)
            case Welcome():
                self._forget_opens(message.open)
                return self.reconnected()
            case RankWelcome():
                self._forget_opens(())
                return self.reconnected()
            case Fetched():
                return self.arrived(message.fragment, message.version, message.site, message.frame, by_mail=False)
            case TakeState() if message.fragment in self._own:
                own = self._own[message.fragment]
                own.state = max(own.state, message.version)
                return []
            case Repair() if message.fragment in self._own:
                return [Recompute(message.fragment)]
            case _:
                return []

    def begins(self) -> list[Open]:
        """The rounds for which a frame is to be made at this step hook: `made` follows for each."""
        return [own.open for own in self._own.values() if own.open is not None and self._begins(own, own.open)]

    def begun(self, opened: Open) -> None:
        """A frame is being made for it: `begins` does not have it any more."""
        own = self._own[opened.fragment]
        if opened.version == own.version:
            own.begun = max(own.begun, opened.attempt)

    def due(self, fragment: int) -> list[Act]:
        """The own schedule says that it is time for a round of the fragment."""
        own = self._own[fragment]
        if own.due or self._is_decided(own):
            return []
        own.due = True
        return [] if self._is_open(own) else [Say(Due(fragment=fragment, version=own.version))]

    def made(self, what: Offer | Pass) -> list[Act]:
        """The own frame lies on disk; or there is nothing to offer in this attempt.

        What comes too late, since its round is settled here, is dropped: the caller forgets that frame.
        """
        own = self._own[what.fragment]
        if what.version != own.version:
            return []
        own.tried = max(own.tried, what.attempt)
        if isinstance(what, Pass):
            own.passed = max(own.passed, what.attempt)
            return [Say(what)]
        own.own.append(what)
        own.on_disk.add((what.version, self._site, what.frame))
        return [*self._sends(own, what), Say(what)]

    def arrived(self, fragment: int, version: int, site: str, frame: Hash, *, by_mail: bool) -> list[Act]:
        """A frame of another site lies on disk, after fsync; the mail brought it, or the agent did."""
        own = self._own[fragment]
        if version >= own.version:
            own.on_disk.add((version, site, frame))
        if site == self._site:
            return []
        return [Say(Hold(fragment=fragment, version=version, site=site, frame=frame, by_mail=by_mail))]

    def lost(self, fragment: int, version: int, site: str, frame: Hash) -> list[Say]:
        """A frame that lay on disk does so no more, or had other bytes: it is asked for again where a round lists it,
        which waits until it has `arrived`; before, the leader is not to count on it here."""
        own = self._own[fragment]
        own.on_disk.discard((version, site, frame))
        if version in own.rounds or version < own.version:
            return self._needs(own, only=version)
        return [_no_more(fragment, version, site, frame)]

    def next_settled(self, known: Container[int] = ()) -> Settled | None:
        """The next decided round of a fragment of which every listed frame is here, or the state behind it.

        Of several fragments, the one that was decided first. known: fragments whose next one was taken already.
        """
        own = self._own.items()
        ready = [(fragment, one) for fragment, one in own if fragment not in known and self._is_complete(one)]
        if not ready:
            return None
        fragment, own = min(ready, key=lambda one: one[1].rounds[one[1].version].index)
        if own.version in own.void:
            return Settled(fragment, own.version, None, None)
        entry = own.rounds[own.version]
        counted = self._counted(own, entry)
        if own.state > own.version and not self._has_frames(own, entry):
            return Settled(fragment, own.version, None, counted, own.state)
        return Settled(fragment, own.version, entry, counted)

    def applied(self, settled: Settled, digest: Digest) -> list[Act]:
        """The caller has done what `next_settled` named: the fragment is at `settled.after` now, with this digest."""
        fragment, own = settled.fragment, self._own[settled.fragment]
        own.version = settled.after
        own.rounds = {version: entry for version, entry in own.rounds.items() if version >= own.version}
        own.void = {version for version in own.void if version >= own.version}
        own.due, own.begun, own.tried, own.passed = False, -1, -1, -1
        own.summing, own.summed = -1, None
        own.own.clear()
        own.sent.clear()
        own.on_disk = {one for one in own.on_disk if one[0] >= own.version}
        if own.open is not None and own.open.version < own.version:
            own.open = None
        return [Say(Applied(fragment=fragment, version=own.version, digest=digest))]

    def reconnected(self) -> list[Act]:
        """What was said before may be lost: say again all that still matters."""
        acts: list[Act] = []
        for fragment, own in self._own.items():
            acts += self._needs(own)
            if self._is_decided(own):
                continue
            if own.due and not self._is_open(own):
                acts.append(Say(Due(fragment=fragment, version=own.version)))
            acts += [Say(offer) for offer in self._kept(own)]
            acts += [] if own.summed is None else [Say(own.summed)]
            if own.passed >= 0 and own.passed == own.tried:
                acts.append(Say(Pass(fragment=fragment, version=own.version, attempt=own.passed)))
            acts += [
                Say(Hold(fragment=fragment, version=version, site=site, frame=frame, by_mail=False))
                for version, site, frame in sorted(own.on_disk)
                if site != self._site
            ]
        return acts

    def _opened(self, message: Open) -> list[Act]:
        own = self._own.get(message.fragment)
        if own is None or message.version < own.version:
            return []
        own.open = message
        if message.version > own.version or self._is_decided(own):
            return []
        if own.tried < message.attempt and len(self._kept(own)) >= MOST_OWN_FRAMES:
            own.tried = own.passed = message.attempt
            return [*self._offers_again(own), Say(Pass(**message.named))]
        return self._offers_again(own) if own.tried >= message.attempt else []

    def _offers_again(self, own: _Fragment) -> list[Act]:
        """Who came since then has not got the frame yet, and a leader that came since then does not know of it."""
        return [act for offer in self._kept(own)[-1:] for act in [*self._sends(own, offer), Say(offer)]]

    def _kept(self, own: _Fragment) -> list[Offer]:
        """The own frames that the disk has not lost."""
        return [offer for offer in own.own if (offer.version, self._site, offer.frame) in own.on_disk]

    def _sums(self, asked: Sum) -> list[Act]:
        """The site is to average what the leader believes to be here: where it is not, the leader hears so each time,
        and plans the round without it, or has it brought here."""
        own = self._own.get(asked.fragment)
        if own is None or asked.version != own.version or self._is_decided(own):
            return []
        if own.summing == asked.attempt:
            return [] if own.summed is None else [*self._sends(own, own.summed), Say(own.summed)]
        if own.summing > asked.attempt:
            return []
        lacks = [one for one in asked.members if (asked.version, one.site, one.frame) not in own.on_disk]
        if lacks:
            return [_no_more(asked.fragment, asked.version, one.site, one.frame) for one in lacks]
        own.summing, own.summed = asked.attempt, None
        return [MakeSum(asked)]

    def not_summed(self, asked: Sum) -> None:
        """There is no average of a `MakeSum`: where the leader asks again, it is tried again."""
        own = self._own[asked.fragment]
        if asked.version == own.version and asked.attempt == own.summing:
            own.summing -= 1

    def summed(self, said: Summed) -> list[Act]:
        """The average of a `MakeSum` is on disk; or `counts` has no site, and there is none."""
        own = self._own[said.fragment]
        if said.version != own.version or said.attempt != own.summing:
            return []
        own.summed = said
        if said.counts:
            own.on_disk.add((said.version, self._site, said.frame))
        return [*self._sends(own, said), Say(said)]

    def _sends(self, own: _Fragment, made: Offer | Summed) -> list[Act]:
        """A frame goes to who averages it, and the average of a region to the aggregator; other frames to all, by a
        head in each other region."""
        opened = own.open
        if opened is None or (isinstance(made, Summed) and not made.counts):
            return []
        to = averager(opened, self._site)
        if isinstance(made, Summed):
            of_region = any(made.attempt == one.attempt for one in opened.adders)
            to = opened.aggregator if of_region else None
            if not of_region and (opened.aggregator is None or made.attempt != opened.aggregator.attempt):
                return []  # of an earlier charge
        peers = mailed(opened.peers, self._site, made.fragment) if to is None else opened.peers
        sent = own.sent.setdefault(made.frame, set())
        new = tuple(
            peer
            for peer in peers
            if peer.site != self._site and peer.owners and peer.owners not in sent
            if to is None or to.site == peer.site
        )
        sent.update(peer.owners for peer in new)
        return [SendFrame(made, new)] if new else []

    def _listed(self, entry: Entry) -> list[Act]:
        if not isinstance(entry, AnyRound | Skip) or entry.fragment not in self._own:
            return []
        own = self._own[entry.fragment]
        if isinstance(entry, AnyRound):
            if entry.version >= own.version:
                own.rounds[entry.version] = entry
            return [*self._needs(own, only=entry.version)]
        what = f"round {entry.version} of fragment {entry.fragment} is void"
        if entry.version < own.version:
            return [StartAgain(entry.fragment, entry.version, f"{what}, and was applied here: {entry.why}")]
        own.void.add(entry.version)
        listed = own.rounds.get(entry.version)
        if listed is None or not listed.index <= self._head < entry.index:
            return []
        if self._site not in [one.site for one in listed.members]:
            return []
        why = f"{what}, so this site reads its data again from where that began: {entry.why}"
        return [StartAgain(entry.fragment, entry.version, why)]

    def _needs(self, own: _Fragment, only: int | None = None) -> list[Say]:
        return [
            Say(Need.listed(entry, listed))
            for version, entry in sorted(own.rounds.items())
            if version not in own.void and only in (None, version)
            for listed in entry.frames
            if (version, listed.site, listed.frame) not in own.on_disk
        ]

    def _forget_opens(self, still_open: Sequence[tuple[int, int, int]]) -> None:
        """What the leader does not name is not open, whatever this site believed."""
        for fragment, own in self._own.items():
            if own.open is not None and (fragment, own.open.version, own.open.attempt) not in still_open:
                own.open = None

    def _begins(self, own: _Fragment, opened: Open) -> bool:
        return self._is_open(own) and not self._is_decided(own) and opened.attempt > max(own.begun, own.tried)

    def _is_open(self, own: _Fragment) -> bool:
        return own.open is not None and own.open.version == own.version

    def _is_decided(self, own: _Fragment) -> bool:
        return own.version in own.rounds

    def _is_complete(self, own: _Fragment) -> bool:
        entry = own.rounds.get(own.version)
        if entry is None:
            return False
        return own.version in own.void or own.state > own.version or self._has_frames(own, entry)

    @staticmethod
    def _has_frames(own: _Fragment, entry: AnyRound) -> bool:
        return all((entry.version, listed.site, listed.frame) in own.on_disk for listed in entry.frames)

    def _counted(self, own: _Fragment, entry: AnyRound) -> Offer | None:
        listed = tuple(one.frame for one in entry.members if one.site == self._site)
        return next((offer for offer in own.own if offer.frame.startswith(listed)), None)


def _no_more(fragment: int, version: int, site: str, frame: Hash) -> Say:
    """A frame is not on this site's disk."""
    return Say(Hold(fragment=fragment, version=version, site=site, frame=frame, by_mail=False, held=False))
