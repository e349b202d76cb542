"""Where the leader of a run folder is, for other processes of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from geocomm.elastic.known_agents import KnownAgents

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


def _about(run_dir: Path) -> dict[str, Any]:
    """Empty: it cannot be read."""
    try:
        return json.loads((run_dir / ABOUT_FILE).read_text())
    except (OSError, ValueError):
        return {}
