"""Who takes part in a run, as its leader tells all: ranks connect to theirs before the first frame is sent."""

from __future__ import annotations

from geocomm.elastic.journal.led_run import LedRun
from geocomm.elastic.journal.messages import Owner, Peer, Peers


class LedPeers:
    """A part of the `LeaderRounds`."""

    def __init__(self, run: LedRun) -> None:
        self._run = run
        self.live: tuple[Peer, ...] = ()
        """Who gets the frames of rounds that are open."""
        self._met: tuple[Peer, ...] = ()
        """Those, and the sites whose ranks are up and not ready yet."""
        self._told_of: tuple[list[tuple[str, tuple[Owner, ...], str]], list[str]] = [], []
        """What both are made of, which is compared after each event."""

    def tell(self) -> bool:
        """Tell all of who has come. Whether somebody gets frames now who did not before."""
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
        return bool(set(self.live) - set(before))

    def tell_again(self, name: str) -> None:
        """A site was welcomed: its agent may be another one than heard of them."""
        if self._met:
            self._run.send(name, Peers(peers=self._met))

    def _peer(self, name: str) -> Peer:
        return Peer(site=name, owners=self._run.sites[name].owners, fetch=self._run.sites[name].fetch)
