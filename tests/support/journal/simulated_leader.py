"""The leader of a simulated run: its process, its machine, what it says and hears, and who leads once it is lost."""

from __future__ import annotations

from collections.abc import Mapping

from geocomm.core.records import Hash
from geocomm.elastic.journal.entries import AnyRound, Deal, End, Entry, Genesis, Kept, TakenBack, TermBegun
from geocomm.elastic.journal.message_lines import parts_of
from geocomm.elastic.journal.messages import Applied, Down, Due, EntrySaid, Hello, Hold, Offer, Pass, Summed, Up
from geocomm.elastic.journal.run_state import EMPTY, RunState, Standing
from geocomm.elastic.journal.sequencer import Sequencer
from geocomm.elastic.journal.sequencer_events import (
    Append,
    Came,
    Close,
    DataRead,
    Ended,
    Event,
    LeaderSettings,
    Said,
    Send,
    SendEntries,
    Tick,
)
from support.journal.simulated_chain import Chain
from support.journal.simulated_checks import BrokenRunError, Checks, RunHasEnded
from support.journal.simulated_data import SimulatedData, read_after
from support.journal.simulated_lines import LEADER, Lines, Link
from support.journal.simulated_site import Site
from support.journal.simulated_time import SimulatedTime

_MOST_SENT = 20
"""Entries that a site is sent which has none."""
_OF_RANKS = (Due, Offer, Pass, Summed, Hold, Applied)


class SimulatedLeader:
    """It decides by a real `Sequencer`."""

    def __init__(
        self,
        time: SimulatedTime,
        lines: Lines,
        sites: Mapping[str, Site],
        chain: Chain,
        checks: Checks,
        terms: LeaderSettings,
        sequencer: type[Sequencer],
    ) -> None:
        self._time = time
        self._random = time.random
        self._lines = lines
        self._sites = sites
        self._checks = checks
        self._terms = terms
        self._sequencer_type = sequencer
        self._data = SimulatedData(self._random, sites)
        self.chain = chain
        """Its journal."""
        self.sequencer: Sequencer | None = None
        """None: its process has ended."""
        self.is_doomed = False
        """Its machine will be gone once one site has its next entry."""
        self._is_lost = False
        """It is gone, and nobody has been promoted yet."""
        self._first = 0
        """The first entry that its journal still has."""
        self._starts = 0
        self._clock_offset = 0.0
        self._links: dict[str, Link] = {}

    # ---- its process

    def start(self) -> None:
        """It begins, from its journal."""
        self._starts += 1
        self._clock_offset = self._random.uniform(0, 1e6)
        self.sequencer = self._sequencer_type(
            RunState.of(self.chain.entries),
            self._terms,
            self._hash_at,
            self._time.hex,
            LEADER,
            self._starts,
        )
        self.lead(DataRead(self._data))
        self._tick(self._starts)

    def _hash_at(self, index: int) -> Hash | None:
        if 0 <= index < self._first - 1:
            return None
        return self.chain.hashes[index] if 0 <= index < len(self.chain.hashes) else EMPTY.hash

    def _send_entries(self, name: str, first: int, last: int) -> None:
        """In place of those that are cut, or too many, a state."""
        if first < self._first or (first == 0 and last > _MOST_SENT):
            first = max(self._first, last - self._random.randrange(_MOST_SENT))
            for part in parts_of(RunState.of(self.chain.entries[:first])):
                self._send_down(name, part)
        for entry in self.chain.entries[first : last + 1]:
            self._send_down(name, EntrySaid(entry=entry))

    def _tick(self, start: int) -> None:
        if start == self._starts and self.sequencer is not None:
            self.lead(Tick())
            self._time.after(0.5, lambda: self._tick(start))

    def lead(self, event: Event) -> None:
        """Have it decide, if it is there."""
        sequencer = self.sequencer
        if sequencer is None:
            return
        for action in sequencer.on(event, self._time.now + self._clock_offset):
            match action:
                case Append():
                    self._append(action.entry, sequencer.state)
                case Send():
                    self._send_down(action.site, action.message)
                case SendEntries():
                    self._send_entries(action.site, action.first, action.last)
                case Close():
                    link = self._links.pop(action.site, None)
                    if link is not None:
                        # What was sent before still arrives; then the site notices.
                        site = self._sites[action.site]
                        at = max(link.sent_down, self._time.now)
                        self._time.at(at, lambda site=site, link=link: self._closed(site, link))
                case _:
                    pass

    def _append(self, entry: Entry, state: RunState) -> None:
        """Its disk has it."""
        if isinstance(entry, Genesis) and self.chain.entries:
            raise BrokenRunError("1: a second genesis")
        if isinstance(entry, AnyRound):
            self._checks.check_round(entry, self.chain, state.sites)
            for listed in entry.members:
                ranks = self._sites[listed.site].ranks
                made = [] if ranks is None or not ranks.parts else [*ranks.parts[entry.fragment].frames]
                if not any(frame.startswith(listed.frame) for frame in made):
                    self._checks.counts_late(listed.frame)
        self.chain.append(entry)
        if isinstance(entry, Deal) and not self._data.may_read(
            state, entry.site, state.deals[entry.rest or entry.index]
        ):
            raise BrokenRunError(f"15: {entry.site} is to read what it may not")
        if isinstance(entry, TakenBack):
            before = RunState.of(self.chain.entries[:-1])
            self._checks.reads_again(self.chain, read_after(before, entry.site, before.position(entry.site)))
        if state.head.index == entry.index:  # else others are to be appended too, which it knows already
            self._checks.check_read(self.chain, state)
        if isinstance(entry, Kept):
            self._first = max(self._first, state.needed_from)
        if isinstance(entry, End):
            raise RunHasEnded

    def kill(self) -> None:
        """It ends, and another process soon goes on."""
        if self.sequencer is None:
            return
        self.sequencer = None
        self._starts += 1
        for site in self._sites.values():
            self.break_link(site, 1)
        self._links.clear()
        self._time.after(self._random.uniform(0.3, 6), self.restart)

    def restart(self) -> None:
        """It goes on, where nothing but its process has ended."""
        if self.sequencer is None and not self._is_lost:
            self.start()

    def lose(self) -> None:
        """Its machine is gone, with its disk, until a site is promoted."""
        self.kill()
        self._is_lost = True
        self._time.after(self._random.uniform(3, 12), self._promote)

    # ---- promotion

    def _promote(self) -> None:
        """Have a site lead, if it reaches more than half of the members; with force if it reaches all that have a
        journal. Else a person tries again, there or elsewhere."""
        if not self._is_lost:
            return
        there = [site for site in self._sites.values() if site.up and site.paused_until <= self._time.now]
        if all(site.gone or site.disk.is_empty for site in self._sites.values()):
            if any(site.gone or site.disk.term for site in self._sites.values()):
                raise RunHasEnded  # the disks of all that take part are lost: there is nothing to go on from
            self._lead_with(self.chain.until(0), 0)  # the run had hardly begun
            return
        candidates = [site for site in there if site.state.genesis is not None]
        if candidates:
            site = self._random.choice(candidates)
            reached = [one for one in candidates if one is site or self._lines.reach(site.name, one.name)]
            over = (Standing.LEFT, Standing.REMOVED)
            members = {name for name, one in site.state.sites.items() if one.standing not in over}
            most = 2 * len(members - {one.name for one in reached}) < len(members)
            if most or len(reached) == sum(not one.disk.is_empty and not one.gone for one in self._sites.values()):
                self._begin_term(site, reached)
                return
        self._time.after(self._random.uniform(1, 4), self._promote)

    def _begin_term(self, site: Site, reached: list[Site]) -> None:
        best = max(reached, key=lambda one: (one.state.term, one.state.head.index))
        term = 1 + max(one.disk.term for one in reached)
        for one in reached:
            one.disk.term = term
        head = best.state.head
        chain = best.chain.until(head.index + 1)
        chain.append(TermBegun(index=head.index + 1, prev=head.hash, term=term, site=site.name, address=LEADER))
        self._lead_with(chain, best.disk.base.head.index + 1)

    def _lead_with(self, chain: Chain, first: int) -> None:
        self.chain, self._first, self._is_lost = chain, first, False
        self.start()

    # ---- connections

    def connect(self, site: Site, link: Link, hello: Hello) -> None:
        """A site's agent dials, and says this first."""
        site.link = link
        link.sent_up = self._time.now + self._time.way()
        self._time.at(link.sent_up, lambda: self._take_in(site, link, hello))

    def _take_in(self, site: Site, link: Link, hello: Hello) -> None:
        if not link.up or self.sequencer is None:
            return
        if self.sequencer.turned_away(site.name, hello, self._time.now + self._clock_offset):
            self._time.after(self._time.way(), lambda: self._closed(site, link))
            return
        self._links[site.name] = link
        self._checks.stores[site.name] = hello.store
        self.lead(Came(site.name))
        self.lead(Said(site.name, hello))

    def _closed(self, site: Site, link: Link) -> None:
        link.up = False
        if site.link is link:
            site.later(0, link.lost)

    def _send_down(self, name: str, message: Down) -> None:
        site, link = self._sites[name], self._links.get(name)
        if link is None or not link.up:
            return
        link.sent_down = max(link.sent_down, self._time.now + self._time.way())

        def arrives() -> None:
            if site.link is link and link.up:
                link.take(message)

        site.at(link.sent_down, arrives)

    def say(self, site: Site, message: Up) -> None:
        """What ranks say waits until they know all that the leader knew: `Welcome` makes them say it again."""
        if site.welcome is not None and (site.caught_up or not isinstance(message, _OF_RANKS)):
            self.send_up(site, message)

    def send_up(self, site: Site, message: Up) -> None:
        """The site says something over its connection."""
        link = site.link
        if link is None or not link.up:
            return
        link.sent_up = max(link.sent_up, self._time.now + self._time.way())

        def arrives() -> None:
            if link.up and self._links.get(site.name) is link:
                self.lead(Said(site.name, message))

        self._time.at(link.sent_up, arrives)

    def cut(self, pair: frozenset[str], duration: float) -> None:
        """Two machines do not reach each other for so long."""
        self._lines.cut(pair, duration)
        for name in pair - {LEADER}:
            if LEADER in pair:
                self.break_link(self._sites[name], 9)

    def break_link(self, site: Site, noticed_s: float) -> None:
        """Nothing goes through it any more; both ends notice after up to so many seconds, each for itself."""
        link = site.link
        if link is None or not link.up:
            return
        link.up = False

        def leader_notices() -> None:
            if self._links.get(site.name) is link:
                del self._links[site.name]
                self.lead(Ended(site.name))

        self._time.after(self._random.uniform(0, noticed_s), leader_notices)
        self._time.after(self._random.uniform(0, noticed_s), link.lost)
