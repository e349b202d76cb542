"""What an agent keeps in its run folder of itself and the others: where they are, for the day on which the leader is
gone, who leads, and for other processes of this machine where the leader is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.core.file_systems import write_whole

_FILE_NAME = "agents.json"
_MOST_TERMS_MISSED = 1000
"""Promotions while an agent was away: a higher term is nobody's, and after it there would soon be no next one."""


class TermNotKeptError(RuntimeError):
    """What this agent has promised to others would be forgotten at its next start, so it ends. Not an OSError: those
    end a connection."""


class KnownAgents:
    """What a run folder knows of agents: the last known addresses of all agents, and the highest term that this one has
    seen.

    The term is on the disk before anything is done upon it: it is never undercut.
    """

    def __init__(self, run_dir: Path, log: Callable[[str], None]) -> None:
        self.addresses: dict[str, str] = {}
        """By site: host:port where it gives out files, and answers questions."""
        self.term = 0
        self.leader = ""
        """The leader of that term, host:port; empty: the one that all sites name at the start."""
        self.force = False
        """The claim holds also where half of the members or more do not agree."""
        self._claimed = 0
        self._starts = 0
        self._path, self._log = run_dir / _FILE_NAME, log
        try:
            content = json.loads(self._path.read_text())
            self.addresses = {str(site): str(address) for site, address in content["agents"].items()}
            self.term, self.leader = int(content["term"]), str(content["leader"])
            self._claimed, self.force = int(content.get("claimed", 0)), bool(content.get("force", False))
            self._starts = int(content.get("starts", 0))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            log(f"{self._path} cannot be read, and is made anew")

    def learn(self, site: str, address: str) -> None:
        """A site's agent is there; empty: it cannot be dialed."""
        if address and self.addresses.get(site) != address:
            self.addresses[site] = address
            try:
                self._write()
            except TermNotKeptError as error:  # another one tells
                self._log(str(error))

    def saw(self, term: int, leader: str) -> None:
        """An agent follows this leader. A term that is not higher than those seen changes nothing. TermNotKeptError:
        it cannot be kept."""
        if term > self.term:
            self.term, self.leader = term, leader
            self._write()

    def may_be(self, term: int) -> bool:
        """Whether somebody may have been promoted so often since."""
        return term <= self.term + _MOST_TERMS_MISSED

    def claim(self, term: int, address: str, *, force: bool) -> None:
        """This agent is to lead with that term, at this address. TermNotKeptError: that cannot be kept."""
        self.term, self.leader, self._claimed, self.force = term, address, term, force
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
        content = {"term": self.term, "leader": self.leader, "agents": self.addresses}
        content |= {"claimed": self._claimed, "force": self.force, "starts": self._starts}
        try:
            write_whole(self._path, json.dumps(content))
        except OSError as error:
            raise TermNotKeptError(
                f"cannot write {self._path}: {error.strerror or error}. Whom this site follows is kept there, so that "
                "no two sites lead"
            ) from None


ABOUT_FILE = "run.json"
"""In the run folder: where agent and leader are, and which keys, for commands that look at the run."""


def leads(run_dir: Path) -> bool:
    """Whether this site leads."""
    return bool(_about(run_dir).get("leads"))


def site_of(run_dir: Path) -> str:
    """The site whose run folder it is; empty: of none, or not known."""
    return str(_about(run_dir).get("site", ""))


def leader_address(run_dir: Path) -> str:
    """host:port of the leader's agent, as this site's agent knows it; empty: this site leads, or it is not known."""
    about = _about(run_dir)
    if not about or about.get("leads"):
        return ""
    return KnownAgents(run_dir, lambda _: None).leader or str(about.get("leader", ""))


def doubt(run_dir: Path) -> str:
    """Why this site, which leads, may not be the only one, or not the run's; empty: it is, or does not lead."""
    return str(_about(run_dir).get("doubt", ""))


def undealt_tokens(run_dir: Path) -> int | None:
    """What this site, which leads, is still to deal of this pass over the run's data; None: it is not known here."""
    return _about(run_dir).get("undealt_tokens")


def tell_led(run_dir: Path, doubt: Sequence[str], undealt_tokens: int | None) -> None:
    """Keep what the leader alone knows, as long as the agent lives."""
    about = _about(run_dir)
    told = about | {"doubt": "; ".join(doubt), "undealt_tokens": undealt_tokens}
    if about and about != told:
        write_about(run_dir, told)


def write_about(run_dir: Path, about: Mapping[str, Any]) -> None:
    """Keep where agent and leader are."""
    write_whole(run_dir / ABOUT_FILE, json.dumps(about) + "\n")


def _about(run_dir: Path) -> dict[str, Any]:
    """Empty: it cannot be read."""
    try:
        return json.loads((run_dir / ABOUT_FILE).read_text())
    except (OSError, ValueError):
        return {}
