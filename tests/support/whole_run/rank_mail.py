"""Frames from rank to rank in a simulated run: a channel resumes where a cut is short."""

from __future__ import annotations

import random
from collections.abc import Callable

from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.messages import Offer, Summed
from support.whole_run.machines import Machine, World
from support.whole_run.registry import Registry

_RESUMES_S = 2.0


class RankMail:
    """That of a rank. later: calls after so many seconds, while the rank lives: what one that ends has sent does not
    come."""

    def __init__(
        self,
        world: World,
        machine: Machine,
        store: FragmentStore,
        chance: random.Random,
        registry: Registry,
        later: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._world, self._here, self._store = world, machine.name, store
        self._chance, self._registry, self._later = chance, registry, later

    def send(self, site: str, process: str, made: Offer | Summed) -> None:
        """Send an own frame to a rank of a site."""
        lines, machines, here = self._world.lines, self._world.machines, self._here
        try:
            content = self._store.read_frame(made.fragment, made.version, here, made.frame)
        except FileNotFoundError:  # this disk has lost it
            return

        self._registry.regions.mailed(made, here, site)

        def arrives() -> None:
            peer = self._registry.ranks.get(process)
            if peer is None:
                return
            is_open = machines[here].takes_mail and machines[site].takes_mail
            if is_open and lines.reach(here, site) and lines.reach(site, here):
                peer.mail_came(made, here, content)
            elif is_open and self._chance.random() < 0.7:
                self._later(_RESUMES_S, arrives)

        takes = len(content) / lines.bytes_per_s(here, site)
        self._later(lines.latency(here, site) + takes + self._chance.uniform(0.01, 0.2), arrives)
