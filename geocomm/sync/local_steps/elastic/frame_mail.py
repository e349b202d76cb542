"""The frames of an elastic run by mail: from rank to rank, between those that own a fragment at each site."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from geocomm.core.errors import GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.elastic.journal.mailed_frames import mailed_to
from geocomm.elastic.journal.messages import Offer, Open, Owner, Peer, Summed
from geocomm.group.backend.runtime import runtime

if TYPE_CHECKING:
    from geocomm._C import Mail


class Expected(NamedTuple):
    """A frame that may come."""

    fragment: int
    version: int
    attempt: int
    site: str


Arrived = Callable[[Expected, torch.Tensor | None, str], None]


class FrameMail:
    """The mail of one rank. Used by one thread."""

    def __init__(self, mail: Mail, site: str, fragments: int, arrived: Arrived) -> None:
        """site: the own one. fragments: of the run. arrived: called once for each frame that is expected, on a thread
        of the native core, with the frame's bytes, or with None and why it will not come; `stop_expecting` is to
        follow.
        """
        self._mail, self._site, self._count, self._arrived = mail, site, fragments, arrived
        self._owners_of: dict[str, set[bytes]] = {}
        self._expected: set[Expected] = set()
        self._sent: set[tuple[bytes, int, int]] = set()
        self._unreachable: set[Owner] = set()

    def meet(self, peers: Iterable[Peer], fragments: Iterable[int]) -> None:
        """Connect to the ranks of other sites that own these fragments there: across the world that takes seconds."""
        for peer in peers:
            if peer.site == self._site or not peer.owners:
                continue
            gone = self._owners_of.get(peer.site, set[bytes]()) - {bytes.fromhex(owner.id) for owner in peer.owners}
            for owner in gone:  # its ranks have started again before they took part
                self._owners_of[peer.site].remove(owner)
                self._mail.forget(owner)
            for fragment in fragments:
                self._meet(peer.site, peer.owners, fragment)

    def send(self, offer: Offer | Summed, peers: Iterable[Peer], content: torch.Tensor) -> None:
        """Send an own frame to those of the sites that were not sent it before."""
        number = self._number(offer.fragment, offer.version)
        for peer in peers:
            owner = self._meet(peer.site, peer.owners, offer.fragment)
            if owner is None:
                continue
            sent = (owner, number, offer.attempt)
            if sent not in self._sent:  # the same mail a second time would end the channel
                self._sent.add(sent)
                self._mail.send(owner, number, offer.attempt, content)

    def expect(self, opened: Open) -> None:
        """Receive the frames of the other members of a round that are mailed here."""
        for peer, attempt in mailed_to(opened, self._site):
            expected = Expected(opened.fragment, opened.version, attempt, peer.site)
            if not peer.owners or expected in self._expected:
                continue
            owner = self._meet(peer.site, peer.owners, opened.fragment)
            if owner is None:
                continue
            self._expected.add(expected)
            number = self._number(opened.fragment, opened.version)
            self._mail.receive(owner, number, attempt, partial(self._arrived, expected))

    def stop_expecting(self, expected: Expected) -> None:
        """It has arrived, or will not come."""
        self._expected.discard(expected)

    def forget(self, site: str) -> None:
        """The ranks of a site are gone: what is under way to and from them is dropped."""
        for owner in self._owners_of.pop(site, set[bytes]()):
            self._mail.forget(owner)

    def end_rounds(self, fragment: int, begin: int, end: int) -> None:
        """Drop what is under way of versions `begin` to before `end`; `end` itself a slow peer may still be taking."""
        last = self._number(fragment, end)
        self._sent = {one for one in self._sent if one[1] % self._count != fragment or one[1] > last}
        for version in range(max(0, begin), end):
            self._mail.end_round(self._number(fragment, version))

    def _number(self, fragment: int, version: int) -> int:
        return version * self._count + fragment

    def _meet(self, site: str, owners: Sequence[Owner], fragment: int) -> bytes | None:
        """The rank of another site that owns the fragment there, and the way to it. None: there is none by mail, and
        agents fetch the frames. What a site says of its ranks must not end those of others."""
        place = fragment % len(owners)
        owner = owners[place]
        name = bytes.fromhex(owner.id)
        described = f"rank {place} of site {site!r}"
        try:
            if name == self._mail.id or any(name in ids for other, ids in self._owners_of.items() if other != site):
                raise InvalidArgumentError(f"it calls itself {owner.id[:12]}, as another rank does")
            self._mail.peer(name, owner.host, owner.port, site, described)
        except GeocommError as error:
            if owner not in self._unreachable:
                self._unreachable.add(owner)
                logger().warning(f"local steps: no mail to {described} at {owner.host}:{owner.port}: {error}")
            return None
        self._owners_of.setdefault(site, set()).add(name)
        runtime.name_peer(described, place, site)
        return name
