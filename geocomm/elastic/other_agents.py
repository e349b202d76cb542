"""Where the other agents of a run give out files."""

from __future__ import annotations

import asyncio
import contextlib

from geocomm.core.addresses import HubAddress
from geocomm.elastic.questions import LeaderAnswer, MembersAsked, ask
from geocomm.elastic.run_view import RunView
from geocomm.security.keys import Keys, KeysError


class OtherAgents:
    """Those that this agent, or its leader, hears now. Used in one event loop."""

    def __init__(self, view: RunView, keys: Keys) -> None:
        self._view, self._keys = view, keys
        self._asking_leader: asyncio.Task[dict[str, str]] | None = None

    @property
    def proxy(self) -> str | None:
        """The agent that gets what this one cannot; None: this one is that."""
        return None if self._view.leader is not None else self._view.leader_at

    def known(self, first: str = "") -> list[str]:
        """The last known host:port of each whose site trains, asking nobody; that of the site `first` comes first."""
        found = {site: self._view.known.addresses.get(site, "") for site in self._view.state.live}
        return self._in_order(found, first)

    async def sources(self, first: str = "") -> list[str]:
        """host:port of each; that of the site `first` comes first."""
        found = {peer.site: peer.fetch for opened in self._view.opens.values() for peer in opened.peers}
        if self._view.leader is not None:
            found |= {site: seen.fetch for site, seen in self._view.leader.seen.items() if seen.connected}
        else:
            found |= await self._agents_at_leader()
        return self._in_order(found, first)

    def _in_order(self, found: dict[str, str], first: str) -> list[str]:
        found.pop(self._view.site, None)
        sites = sorted((site for site, fetch in found.items() if fetch), key=lambda site: (site != first, site))
        return [found[site] for site in sites]

    async def _agents_at_leader(self) -> dict[str, str]:
        """By site, where the agents that the leader hears give out files; none: it does not say.

        Who wants to know meanwhile gets the same answer: a site that was away for long wants hundreds of frames at
        once, and the leader would do nothing but shake hands with it.
        """
        if self._asking_leader is None:
            self._asking_leader = asyncio.create_task(self._ask_leader())
            self._asking_leader.add_done_callback(self._leader_answered)
        return await asyncio.shield(self._asking_leader)

    def _leader_answered(self, _: asyncio.Task[dict[str, str]]) -> None:
        self._asking_leader = None

    async def _ask_leader(self) -> dict[str, str]:
        """Where it does not answer, others may be there all the same."""
        with contextlib.suppress(OSError, KeysError):
            answered = await ask(HubAddress.parse(self._view.leader_at), self._keys, MembersAsked(), LeaderAnswer)
            return {seen.site: seen.fetch for seen in answered.sites if seen.connected}
        return dict(self._view.known.addresses)
