"""A round that is open: which sites have offered frames, and on whose disks these lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from geocomm.core.records import Hash
from geocomm.elastic.journal.messages import Offer

_MOST_OFFERS = 8
"""The most offers of a site that are kept: its newest ones."""
MOST_HOLDS = 1024
"""The most frames of which a site may say that it has them."""


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
    holds: set[tuple[str, Hash]] = field(default_factory=set[tuple[str, Hash]])
    """(holder, frame)."""
    mailed: set[tuple[str, Hash]] = field(default_factory=set[tuple[str, Hash]])
    """Those that came by mail."""
    fetches: dict[tuple[str, Hash], float] = field(default_factory=dict[tuple[str, Hash], float])
    """When the holder was told to fetch the frame."""

    def offer(self, name: str, offer: Offer) -> None:
        """A site offers a frame, which it holds."""
        own = self.offers.setdefault(name, [])
        if all(one.frame != offer.frame for one in own):
            own.append(offer)
            own.sort(key=lambda one: one.attempt)
            del own[:-_MOST_OFFERS]
        self.holds.add((name, offer.frame))

    def hold(self, name: str, frame: Hash) -> bool:
        """A frame lies on a site's disk. Whether that can be: it names more frames than there are else."""
        self.holds.add((name, frame))
        return sum(holder == name for holder, _ in self.holds) <= MOST_HOLDS

    def forget(self, name: str) -> None:
        """Nothing that a site has said counts."""
        self.lose_disk(name)
        self.passes.pop(name, None)

    def lose_disk(self, name: str) -> None:
        """What a site held is gone."""
        self.holds = {hold for hold in self.holds if hold[0] != name}
        self.offers.pop(name, None)

    def has_tried(self, name: str) -> bool:
        """Whether a site has offered or passed in this attempt."""
        offers = self.offers.get(name)
        return self.passes.get(name, -1) == self.attempt or (offers is not None and offers[-1].attempt >= self.attempt)

    def holders(self, frame: Hash, names: Iterable[str]) -> list[str]:
        """The sites of `names` on whose disks a frame lies."""
        return [name for name in names if (name, frame) in self.holds]

    def eligible(self, live: Sequence[str]) -> dict[str, Offer]:
        """By site: its newest frame that lies on two live sites' disks, or on one where only one is live."""
        enough = min(2, len(live))
        eligible: dict[str, Offer] = {}
        for maker, offers in self.offers.items():
            for offer in offers:
                if enough and len(self.holders(offer.frame, live)) >= enough:
                    eligible[maker] = offer
        return eligible
