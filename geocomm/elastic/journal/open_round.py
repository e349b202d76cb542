"""A round that is open: which sites have offered frames, and on whose disks these lie."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import Added, Listed
from geocomm.elastic.journal.messages import Aggregator, Offer, Summed

_MOST_OFFERS = 8
"""The most offers of a site that are kept: its newest ones."""
MOST_HOLDS = 1024
"""The most frames of which a site may say that it has them."""


@dataclass
class Charge:
    """A site is to average frames of a round: of all sites, or of its region for the one that averages all. From when
    it is named until the round is decided, or another one is named."""

    by: Aggregator
    since: float
    """When it was named, or the first frame was offered; of a region: when its site was asked first."""
    region: tuple[str, ...] = ()
    """The sites whose frames it averages; none: those that no other one does."""
    regions: tuple[Charge, ...] = ()
    """Those of other regions, which average for this one."""
    members: tuple[Listed, ...] = ()
    """The frames of sites that it was asked to average."""
    averages: tuple[Charge, ...] = ()
    """The regions whose averages are averaged with these."""
    frames: tuple[Added, ...] = ()
    """All that it was asked to average, by the names of who has made it; none: it was not asked yet."""
    asked: float = -math.inf
    """When it was asked last."""
    summed: Summed | None = None
    """That it has done so."""
    lags: str = ""
    """See `OpenRound`."""
    waits_for: Charge | None = None
    """A region whose average it waited for at the last look, which is looked at first, and mostly alone."""

    @property
    def counted(self) -> list[Listed]:
        """The frames of sites that are in its average, by name."""
        counts = () if self.summed is None else self.summed.counts
        found = [one for one in self.members if one.site in counts]
        for one in self.averages:
            found += one.counted if one.by.site in counts else []
        return sorted(found, key=lambda one: one.site)

    def of(self, maker: str) -> Charge:
        """Who averages the frame of a site."""
        return self._of.get(maker, self)

    @cached_property
    def _of(self) -> dict[str, Charge]:
        """By site: the head of its region. Asked for after each word of a site."""
        return {name: one for one in self.regions for name in one.region}

    def take(self, members: tuple[Listed, ...], averages: tuple[Charge, ...]) -> None:
        """What is to be averaged; nothing: that has changed, and is to be found anew."""
        self.members, self.averages = members, averages
        frames = [Added.of(one, one.site, one.weight) for one in members]
        for one in averages:
            if one.summed is not None:
                frames.append(Added.of(one.summed, one.by.site, sum(listed.weight for listed in one.counted)))
        self.frames = tuple(sorted(frames, key=lambda frame: frame.site))


@dataclass
class OpenRound:
    """A round that is open."""

    version: int
    attempt: int
    opened: float
    tried: float
    """When this attempt began."""
    offers: dict[str, list[Offer]] = field(default_factory=dict[str, list[Offer]])
    """By site, of all attempts, the newest last: each is a delta to the same version."""
    passes: dict[str, int] = field(default_factory=dict[str, int])
    """By site: the attempt."""
    newest: dict[Hash, str] = field(default_factory=dict[Hash, str])
    """Whose the newest frame of each site is."""
    mailed: set[tuple[str, Hash]] = field(default_factory=set[tuple[str, Hash]])
    """(holder, frame): those that came by mail."""
    fetches: dict[tuple[str, Hash], float] = field(default_factory=dict[tuple[str, Hash], float])
    """When the holder was told to fetch the frame."""
    charge: Charge | None = None
    """None: all average, or no aggregator is named yet."""
    charges: int = 0
    """How many there were."""
    left_out: set[Hash] = field(default_factory=set[Hash])
    """Frames that are far too long."""
    lags: str = ""
    """A site that the round waited for at the last look: it is looked at first, and mostly alone."""
    _held: dict[str, set[Hash]] = field(default_factory=dict[str, set[Hash]])
    """By site: the frames on its disk."""
    _holders: dict[Hash, set[str]] = field(default_factory=dict[Hash, set[str]])
    """The same, by frame."""

    def offer(self, name: str, offer: Offer) -> None:
        """A site offers a frame, which it holds."""
        own = self.offers.setdefault(name, [])
        if all(one.frame != offer.frame for one in own):
            before = own[-1].frame if own else ""
            own.append(offer)
            own.sort(key=lambda one: one.attempt)
            del own[:-_MOST_OFFERS]
            self.newest.pop(before, None)
            self.newest[own[-1].frame] = name
        self.hold(name, offer.frame)

    @property
    def named(self) -> tuple[Charge, ...]:
        """All that are to average frames, the aggregator last; none: all do, or nobody is named yet."""
        return () if self.charge is None else (*self.charge.regions, self.charge)

    def charge_of(self, maker: str) -> Charge | None:
        """In which charge the frame of a site is averaged; None: all average it, or nobody is named yet."""
        return None if self.charge is None else self.charge.of(maker)

    def makers_for(self, name: str) -> Iterable[str]:
        """Who has offered a frame that a site is to have: all, or those whose frames it averages."""
        charge = self.charge
        if charge is None or not charge.regions:
            return self.offers
        own = next((one for one in charge.regions if one.by.site == name), charge)
        return [maker for maker in own.region or self.offers if maker in self.offers and charge.of(maker) is own]

    def made(self, frame: Hash) -> tuple[str, Offer | Summed] | None:
        """Who has made a frame that all are to have, as it was told; None: it is none, or not known yet."""
        if self.charge is not None:
            summed = self.charge.summed
            return (self.charge.by.site, summed) if summed is not None and summed.frame == frame else None
        maker = self.newest.get(frame)
        return None if maker is None else (maker, self.offers[maker][-1])

    def take_back(self, name: str) -> None:
        """What a site has offered does not count."""
        for offer in self.offers.pop(name, []):
            self.newest.pop(offer.frame, None)
        if any(one.site == name for charge in self.named for one in charge.members):
            self.charge = None

    def hold(self, name: str, frame: Hash) -> bool:
        """A frame lies on a site's disk. Whether that can be: it names more frames than there are else."""
        held = self._held.setdefault(name, set())
        held.add(frame)
        self._holders.setdefault(frame, set()).add(name)
        return len(held) <= MOST_HOLDS

    def let_go(self, name: str, frame: Hash) -> None:
        """A frame that was offered, or averaged for an aggregator, lies on a site's disk no more: who averages it is
        asked for the average of what it has. Of others nothing is taken back, else a site could name any number of
        frames."""
        made = {one.summed.frame for one in self.named if one.summed is not None and one is not self.charge}
        if not self.holds(name, frame):
            return
        if frame not in made and all(frame != one.frame for own in self.offers.values() for one in own):
            return
        self._held[name].discard(frame)
        self._holders[frame].discard(name)
        for charge in self.named:
            if charge.by.site == name and charge.summed is None and any(frame == one.frame for one in charge.frames):
                charge.take((), ())

    def holds(self, name: str, frame: Hash) -> bool:
        """Whether a frame lies on a site's disk."""
        return name in self._holders.get(frame, ())

    def forget(self, name: str) -> None:
        """Nothing that a site has said counts."""
        self.lose_disk(name)
        self.passes.pop(name, None)

    def lose_disk(self, name: str) -> None:
        """What a site held is gone."""
        for frame in self._held.pop(name, ()):
            self._holders[frame].discard(name)
        self.take_back(name)

    def has_tried(self, name: str) -> bool:
        """Whether a site has offered or passed in this attempt."""
        offers = self.offers.get(name)
        return self.passes.get(name, -1) == self.attempt or (offers is not None and offers[-1].attempt >= self.attempt)

    def lacks(self, name: str) -> list[str]:
        """The sites whose newest frame is to be on a site's disk, and is not."""
        held = self._held.get(name, set[Hash]())
        if self.charge is None or not self.charge.regions:
            return [] if self.newest.keys() <= held else [self.newest[frame] for frame in self.newest.keys() - held]
        return [maker for maker in self.makers_for(name) if self.offers[maker][-1].frame not in held]

    def is_anywhere(self, frame: Hash, live: Sequence[str]) -> bool:
        """Whether a frame lies on a live site's disk: else nobody waits for it."""
        return not self._holders.get(frame, set[str]()).isdisjoint(live)

    def are_none_anywhere(self, live: Sequence[str]) -> bool:
        """Whether all live sites have offered or passed, and no frame lies on the disk of one."""
        frames = (one.frame for offers in self.offers.values() for one in offers)
        return all(map(self.has_tried, live)) and not any(self.is_anywhere(frame, live) for frame in frames)

    def is_safe(self, frame: Hash, live: Sequence[str]) -> bool:
        """Whether a frame lies on two live sites' disks, or on one where only one is live."""
        return bool(live) and len(self._holders.get(frame, set()).intersection(live)) >= min(2, len(live))

    def eligible(self, live: Sequence[str], charge: Charge | None = None) -> dict[str, Offer]:
        """By site: its newest frame that is safe; or of those that a charge is for, that lies on the disk of who
        averages, since what it makes of the frames will be."""
        eligible: dict[str, Offer] = {}
        for maker, offers in self.offers.items():
            if self.charge_of(maker) is not charge:
                continue
            for offer in offers:
                if offer.frame in self.left_out:
                    continue
                if charge is None:
                    is_there = self.is_safe(offer.frame, live)
                else:
                    is_there = self.holds(charge.by.site, offer.frame)
                if is_there:
                    eligible[maker] = offer
        return eligible
