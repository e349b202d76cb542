"""Where the leader of a run folder is, for other processes of this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from geocomm.core.file_systems import write_whole
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
