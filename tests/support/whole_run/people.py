"""What a person does in a simulated run, since its logs say so."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from geocomm.elastic.journal.admission import members_of
from geocomm.elastic.leading.questions import LeaderAnswer, PromotionAnswer, PromotionAsked, RemovalAsked
from support.whole_run.agents import ask
from support.whole_run.machines import PORT
from support.whole_run.sites import Site

if TYPE_CHECKING:
    from support.whole_run.whole_run import WholeRun


class Person:
    """Promotes and removes sites."""

    def __init__(self, run: WholeRun) -> None:
        self._run = run
        self.to_outlive: dict[int, str] = {}
        """Entries that most sites had when journals were damaged: without --force the run has them."""
        self._knows_too_little = False
        """A site whose journal is damaged says that too few members answer."""
        self._is_held_back = False
        """A site is said to join once most members hold the last one's entry."""

    def hear(self, said: str) -> None:
        """A line of a log."""
        self._is_held_back = self._is_held_back or " joins once most members " in said
        self._knows_too_little = self._knows_too_little or "members answer to know what counted" in said

    async def look(self) -> None:
        """Do what the logs ask for."""
        if self._run.with_etcd:
            await self.give_etcd_its_end()
        if self._is_held_back:
            await self._give_up_lost()
        await self.lead_past_damage()

    async def lead_past_damage(self) -> None:
        """Promote a site with --force: too few members have a journal to know what counted."""
        if self._knows_too_little and not self._run.with_etcd:
            self._knows_too_little = False
            whole = [site for site in self._run.sites.values() if site.machine.up and not site.machine.is_damaged]
            with contextlib.suppress(OSError):
                if whole:
                    await self.ask_to_lead(self.with_most_entries(whole), force=True)

    async def _give_up_lost(self) -> None:
        """Remove the sites that are gone for good, as those are told whose coming waits for most members."""
        self._is_held_back = False
        leader, members = self._run.sites[self._run.leader_name()], members_of(self._run.newest()[0])
        for name in members:
            if self._run.sites[name].lost and leader.machine.up:
                with contextlib.suppress(OSError):
                    asked = RemovalAsked(site=name, why="it is gone for good")
                    answer = await ask(leader.machine, f"{leader.machine.host}:{PORT}", asked, LeaderAnswer)
                    self._run.say(f"person: remove {name}: {answer.problem or 'done'}")

    async def give_etcd_its_end(self) -> None:
        """Start the site that has the most entries with --lead, where etcd has lost some."""
        there = [site for site in self._run.sites.values() if site.machine.up]
        if not there:
            return
        newest = self.with_most_entries(there)
        if self._run.etcd_lacks_some() and not newest.fills_etcd:
            self._run.say(f"person: {newest.name} begins with --lead")
            newest.fills_etcd = True
            await newest.kill_agent()

    async def promote(self) -> None:
        """Until one leads; with --force after eight refusals."""
        refused = 0
        while True:
            await asyncio.sleep(self._run.chance.uniform(2, 8))
            there = [
                one for one in self._run.sites.values() if one.machine.up and one.agent is not None and not one.lost
            ]
            if not there:
                continue
            site = self._run.chance.choice(there)
            try:
                problem = await self.ask_to_lead(site, force=refused >= 8)
            except OSError as error:
                self._run.say(f"person: {site.name} does not answer: {error}")
                continue
            if not problem:
                return
            refused += 1
            if refused > 40:
                raise self._run.broke(f"nobody can be promoted: {problem}")

    async def ask_to_lead(self, site: Site, *, force: bool = False) -> str:
        """Why a site cannot be promoted; empty: it leads. Without force it has what most sites had."""
        held = self.held_by_most()
        if force:  # also where no answer comes: who has claimed a term goes on with it
            self.to_outlive.clear()
        at = f"{site.machine.host}:{PORT}"
        answer = await ask(site.machine, at, PromotionAsked(force=force), PromotionAnswer)
        self._run.say(f"person: promote {site.name}: {answer.problem or 'it leads'}")
        if not answer.problem:
            self._run.hub = site.machine
            own = {one.index: one.hash for one in site.state()[1]}
            lost = [index for index, said in held.items() if own.get(index, said) != said]
            if lost and not force:
                raise self._run.broke(f"{site.name} leads without entry {lost[0]}, which most sites had")
            for one in self._run.sites.values():
                if one.is_new and one.machine.up:  # it knows the address of the leader before alone
                    await one.stop()
                    self._run.start_again(one)
        return answer.problem

    @staticmethod
    def with_most_entries(sites: Sequence[Site]) -> Site:
        """By their journals."""
        return max(sites, key=lambda site: (site.state()[0].term, site.state()[0].head.index))

    def held_by_most(self) -> dict[int, str]:
        """The hashes of the entries that most sites have, by index."""
        held = Counter((one.index, one.hash) for site in self._run.sites.values() for one in site.state()[1])
        return {index: said for (index, said), copies in held.items() if 2 * copies > len(self._run.sites)}
