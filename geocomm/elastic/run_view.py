"""The run as the agent of a site knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from geocomm.elastic.agent_link import LeaderLink
from geocomm.elastic.known_agents import KnownAgents
from geocomm.elastic.leader import Leader
from geocomm.journal.journal import SqliteJournal
from geocomm.journal.messages import Applied, Due, Hold, Lost, Offer, Open, Pass, Peers, Up, Welcome, said
from geocomm.journal.run_state import RunState, Standing


@dataclass
class RunView:
    """Shared by the parts of an agent, and changed by `Agent` alone."""

    site: str
    hub: str
    """Where all sites look for the leader at the start."""
    state: RunState
    """What the journal says."""
    journal: SqliteJournal
    known: KnownAgents
    leader: Leader | None
    """Where this agent leads too."""
    link: LeaderLink
    own_fetch: str = ""
    """host:port where others reach this agent."""
    peers: Peers | None = None
    """Who takes part, or is about to."""
    opens: dict[int, Open] = field(default_factory=dict[int, Open])
    """The open rounds, by fragment."""
    welcome: Welcome | None = None
    """Of the leader, while it is connected."""
    is_current: bool = False
    """The leader has welcomed this agent, and its journal has what the leader's had then."""

    @property
    def leader_at(self) -> str:
        """host:port."""
        return self.known.leader or self.hub

    @property
    def is_member(self) -> bool:
        """Whether the journal says that this site takes part, or may come back."""
        known = self.state.sites.get(self.site)
        return known is not None and known.standing not in (Standing.LEFT, Standing.REMOVED)

    def say(self, up: Up) -> None:
        """Tell the leader, if it has welcomed this agent."""
        if self.welcome is not None:
            self.link.say(said(up))

    def say_of_round(self, up: Due | Offer | Pass | Hold | Applied | Lost) -> None:
        """What a site says of rounds is to be taken as said by one that knows the journal."""
        if self.is_current:
            self.say(up)

    def leave_leader(self) -> None:
        """What the leader before still says is not heard."""
        self.welcome, self.is_current = None, False
