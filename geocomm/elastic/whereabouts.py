"""Where the leader of a run folder is, for other processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path

from geocomm.elastic.known_agents import KnownAgents

ABOUT_FILE = "run.json"
"""In the run folder: where agent and leader are, and which keys, for commands that look at the run."""


def leads(run_dir: Path) -> bool:
    """Whether this site leads."""
    try:
        return bool(json.loads((run_dir / ABOUT_FILE).read_text())["leads"])
    except (OSError, ValueError, KeyError):
        return False


def site_of(run_dir: Path) -> str:
    """The site whose run folder it is; empty: of none, or not known."""
    try:
        return str(json.loads((run_dir / ABOUT_FILE).read_text())["site"])
    except (OSError, ValueError, KeyError):
        return ""


def leader_address(run_dir: Path) -> str:
    """host:port of the leader's agent, as this site's agent knows it; empty: this site leads, or it is not known."""
    if leads(run_dir):
        return ""
    try:
        about = json.loads((run_dir / ABOUT_FILE).read_text())
        return KnownAgents(run_dir, lambda _: None).leader or str(about["leader"])
    except (OSError, ValueError, KeyError):
        return ""
