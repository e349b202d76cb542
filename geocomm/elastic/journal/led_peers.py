"""Who takes part in a run, as its leader tells all: ranks connect to theirs before the first frame is sent."""

from __future__ import annotations

from collections.abc import Sequence

from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.mailed_frames import mailed
from geocomm.elastic.journal.messages import Owner, Peer, Peers
from geocomm.group.planning.regions import Regions


class LedPeers:
    """A part of the `LeaderRounds`."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self._regions = Regions((), run.terms.regions)
        self.live: tuple[Peer, ...] = ()
        """Who gets the frames of rounds that are open."""
        self._met: tuple[Peer, ...] = ()
        """Those, and the sites whose ranks are up and not ready yet."""
        self._told_of: tuple[list[tuple[str, tuple[Owner, ...], str]], list[str]] = [], []
        """What both are made of, which is compared after each event."""
        self._mailed: dict[tuple[str, int], frozenset[str]] = {}
        """By maker and fragment, of those that are live now."""

    def tell(self) -> bool:
        """Tell all of who has come. Whether somebody gets frames now who did not before, by mail or at all."""
        run, live = self._run, self._run.state.live
        coming = [name for name, one in run.sites.items() if one.has_ranks and one.connected and one.welcomed]
        sites = [(name, run.sites[name].owners, run.sites[name].fetch) for name in sorted({*live, *coming})]
        if sites == self._told_of[0] and live == self._told_of[1]:
            return False
        self._told_of = sites, live
        met = tuple(self._peer(name) for name, _, _ in sites)
        gained, self._met = set(met) - set(self._met), met
        if gained:
            for name in (one.site for one in met if run.sites[one.site].welcomed):
                run.send(name, Peers(peers=met))
        before, self.live = self.live, tuple(map(self._peer, live))
        self._mailed.clear()
        changes_heads = self.live != before and any(peer.region for peer in before)
        return changes_heads or bool(set(self.live) - set(before))

    def tell_again(self, name: str) -> None:
        """A site was welcomed: its agent may be another one than heard of them."""
        if not self._met:
            return
        own = self._peer(name)
        is_new = own.region is not None and all(one.site != name for one in self._met)
        # It fetches before its ranks are up, from its own region first.
        self._run.send(name, Peers(peers=(*self._met, own) if is_new else self._met))

    def mailed(self, maker: str, fragment: int) -> frozenset[str]:
        """The live sites that get a frame by mail."""
        if (found := self._mailed.get((maker, fragment))) is None:
            found = frozenset(peer.site for peer in mailed(self.live, maker, fragment))
            self._mailed[maker, fragment] = found
        return found

    @property
    def regions(self) -> Sequence[tuple[str, ...]]:
        """The sites of each region that has several."""
        return self._regions.groups

    def region(self, name: str) -> tuple[str, ...]:
        """The sites of the region of a site, itself included."""
        return self._regions.of(name)

    def _peer(self, name: str) -> Peer:
        group = self._regions.of(name)
        region = group[0] if len(group) > 1 else None  # a site of a region of its own says nothing
        return Peer(site=name, owners=self._run.sites[name].owners, fetch=self._run.sites[name].fetch, region=region)
