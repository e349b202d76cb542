"""What an agent keeps in its run folder of itself and the others: where they are, for the day on which the leader is
gone, who leads, and for other processes of this machine where the leader is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from pydantic import ConfigDict

from geocomm.core.file_systems import write_whole
from geocomm.core.records import Record, line_of
from geocomm.core.run_dir import RunDir
from geocomm.elastic.files.fragment_store import StoreError

_MOST_TERMS_MISSED = 1000
"""By promotions while an agent was away: a higher term is nobody's, and after it there would soon be no next one."""


def is_forced(term: int) -> bool:
    """Whether a promotion with --force alone may claim this term. The others, to which most members agree, claim odd
    ones: so none of those begins the same term as one to which too few may have agreed."""
    return term % 2 == 0


class TermNotKeptError(RuntimeError):
    """What this agent has promised to others would be forgotten at its next start, so it ends. Not an OSError: those
    end a connection."""


class KnownAgents:
    """What a run folder knows of agents: the last known addresses of all agents, and the highest term that this one has
    seen.

    The term is on the disk before anything is done upon it: it is never undercut.
    """

    def __init__(self, run_dir: Path, log: Callable[[str], None]) -> None:
        """StoreError: what is kept there cannot be read."""
        self.addresses: dict[str, str] = {}
        """By site: host:port where it gives out files, and answers questions."""
        self.run = ""
        """The run that this site takes part in, also where its journal is damaged; empty: none yet."""
        self.term = 0
        self.leader = ""
        """The leader of that term, host:port; empty: the one that all sites name at the start."""
        self.force = False
        """The claim holds also where half of the members or more do not agree."""
        self.lost_journal = False
        """The journal here is what others had in the place of a damaged one. It may lack entries that this site had,
        and some have: so this site goes on leading with a later term alone."""
        self._claimed = 0
        self._starts = 0
        self._path, self._log = RunDir(run_dir).agents, log
        try:
            content = json.loads(self._path.read_text())
            self.addresses = {str(site): str(address) for site, address in content["agents"].items()}
            self.term, self.leader = int(content["term"]), str(content["leader"])
            self.run = str(content.get("run", ""))
            self._claimed, self.force = int(content.get("claimed", 0)), bool(content.get("force", False))
            self._starts = int(content.get("starts", 0))
            self.lost_journal = bool(content.get("lost_journal", False))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
            raise StoreError(
                f"{self._path} cannot be read ({type(error).__name__}: {error}). It says which leader this site has "
                "promised to follow, so that no two sites lead. Where the disk fails, mend that. Where the file is "
                "damaged, wait until another site leads the run, move the file away, and start this site again"
            ) from None

    def learn(self, site: str, address: str) -> None:
        """A site's agent is there; empty: it cannot be dialed."""
        if address and self.addresses.get(site) != address:
            self.addresses[site] = address
            try:
                self._write()
            except TermNotKeptError as error:  # another one tells
                self._log(str(error))

    def takes_part(self, run: str) -> None:
        """This site has a journal of that run. TermNotKeptError: that cannot be kept."""
        if run != self.run:
            self.run = run
            self._write()

    def saw(self, term: int, leader: str) -> None:
        """An agent follows this leader. A term that is not higher than those seen changes nothing. TermNotKeptError:
        it cannot be kept."""
        if term > self.term:
            self.term, self.leader = term, leader
            self._write()

    def may_be(self, term: int) -> bool:
        """Whether somebody may have been promoted so often since."""
        return term <= self.term + _MOST_TERMS_MISSED

    def claim(self, after: int, address: str, *, force: bool) -> int:
        """This agent is to lead at this address, with the next term after that one: returns it. TermNotKeptError: it
        cannot be kept."""
        term = after + 1 if is_forced(after + 1) == force else after + 2
        self.term, self.leader, self._claimed, self.force = term, address, term, force
        self.lost_journal = False
        self._write()
        return term

    def lose_journal(self) -> None:
        """The journal here is about to be what others have. If this agent claims the highest term, it may have begun
        it, and claims the next one: nobody begins a term twice. TermNotKeptError: that cannot be kept."""
        if self._claimed == self.term > 0:
            self.claim(self.term, self.leader, force=False)
        else:
            self.lost_journal = True
            self._write()

    def yield_to(self, leader: str) -> None:
        """Another site leads with the highest term seen than the one that was to, which may be this one.
        TermNotKeptError: that cannot be kept."""
        self.leader, self._claimed = leader, 0
        self._write()

    def next_start(self) -> int:
        """Counts the starts of this agent as a leader: higher than each before. TermNotKeptError: it cannot be kept."""
        self._starts += 1
        self._write()
        return self._starts

    def claims_after(self, term: int) -> bool:
        """Whether this agent is to lead with a later term, the highest seen: others may have agreed to that."""
        return term < self._claimed == self.term

    def _write(self) -> None:
        content = {"run": self.run, "term": self.term, "leader": self.leader, "agents": self.addresses}
        content |= {"claimed": self._claimed, "force": self.force, "starts": self._starts}
        content |= {"lost_journal": self.lost_journal}
        try:
            write_whole(self._path, json.dumps(content))
        except OSError as error:
            raise TermNotKeptError(
                f"cannot write {self._path}: {error.strerror or error}. Whom this site follows is kept there, so that "
                "no two sites lead"
            ) from None


class About(Record):
    """Where agent and leader are, and which keys, for commands that look at the run. Empty: not known."""

    model_config = ConfigDict(extra="ignore")

    leader: str = ""
    """Where all sites look for the leader at the start, host:port."""
    agent: str = ""
    """Where the site's agent listens, host:port."""
    keys: str = ""
    """The folder of the site's keys."""
    site: str = ""
    """The site whose run folder it is."""
    journal: str = ""
    """In etcd."""
    leads: bool = False
    """This site leads."""
    doubt: str = ""
    """Why this site, which leads, may not be the only one, or not the run's; empty: it is, or does not lead."""
    undealt_tokens: int | None = None
    """What this site, which leads, is still to deal of this pass over the run's data; None: it is not known here."""
    heard: tuple[str, ...] = ()
    """The sites whose agents are connected to this one, which leads."""

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """What a run folder says. OSError, ValueError: it cannot be read."""
        return cls.model_validate_json(RunDir(run_dir).about.read_bytes())

    def write(self, run_dir: Path) -> None:
        """Keep it."""
        write_whole(RunDir(run_dir).about, line_of(self) + "\n")


def about(run_dir: Path) -> About:
    """What a run folder says; nothing, where it cannot be read."""
    try:
        return About.read(run_dir)
    except (OSError, ValueError):  # ValidationError
        return About()


def leader_address(run_dir: Path) -> str:
    """host:port of the leader's agent, as this site's agent knows it; empty: this site leads, or it is not known."""
    said = about(run_dir)
    if said.leads or not said.leader:
        return ""
    try:
        return KnownAgents(run_dir, lambda _: None).leader or said.leader
    except StoreError:  # the agent says so
        return said.leader


def tell_led(run_dir: Path, doubt: Sequence[str], undealt_tokens: int | None, heard: Sequence[str] = ()) -> None:
    """Keep what the leader alone knows, as long as the agent lives."""
    said = about(run_dir)
    led = {"doubt": "; ".join(doubt), "undealt_tokens": undealt_tokens, "heard": tuple(heard)}
    told = said.model_copy(update=led)
    if said not in (told, About()):
        with contextlib.suppress(OSError):  # a full disk: it is only shown
            told.write(run_dir)
