"""The names of all files in a run folder: that of a site of an elastic run, or of a fixed run's collector."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from geocomm.core.addresses import socket_in


class RunDir:
    """Where each file is. Nothing here makes or reads one."""

    JOURNAL, ABOUT, LAYOUT, MANIFEST = "journal.sqlite", "run.json", "layout.json", "manifest.json"
    TELEMETRY = "telemetry.sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / self.JOURNAL
        """What the sites agreed on (`elastic.journal.journal`). Damaged and forgotten ones lie beside it."""
        self.agents = path / "agents.json"
        """Addresses of all agents, and whom this one follows (`elastic.files.known_agents`)."""
        self.about = path / self.ABOUT
        """Where agent, leader and keys are, for commands (`elastic.files.known_agents.About`)."""
        self.agent_lock = path / "agent.lock"
        """The agent holds it."""
        self.store_id = path / "store-id"
        """The name of the store of frames and states (`elastic.files.fragment_store`)."""
        self.fragments = path / "fragments"
        """The folder of frames and states."""
        self.layout = path / self.LAYOUT
        """Where the values of each parameter lie (`elastic.files.snapshots`); each snapshot has its own link to it."""
        self.snapshots = path / "snapshots"
        """The folder of all snapshots."""
        self.copying = path / ".copying"
        """Links to a snapshot while it is copied to elsewhere (`elastic.files.snapshot_copies`)."""
        self.moments = path / "site"
        """The folder of the optimizers' moments (`sync.local_steps.elastic.site_moments`)."""
        self.ranks_ended_by_run = path / "ranks-ended-by-run"
        """Why the run has ended the ranks that started last, if it has (`elastic.rank_starts`)."""
        self.telemetry = path / self.TELEMETRY
        """The run store (`observe.telemetry.run_store`)."""
        self.alerts = path / "alerts.jsonl"
        """When alerts began and ended (`observe.alerts.alert_log`)."""
        self.collector_lock = path / "collector.lock"
        """A collector holds it, and sets its time when it starts."""

    def snapshot(self, index: int) -> Path:
        """The folder of a snapshot, by the entry of the journal that it is of."""
        return self.snapshots / str(index)

    def manifest(self, index: int) -> Path:
        """The file of a snapshot that makes it complete."""
        return self.snapshot(index) / self.MANIFEST

    def counters(self, process: str) -> Path:
        """What a process counts of its own work (`metrics.own_counters`)."""
        return self.path / f"counters-{process}.json"

    def all_counters(self) -> Iterator[Path]:
        """Those of all processes."""
        return self.path.glob("counters-*.json")

    # ---- sockets: perhaps not in the folder (`socket_in`)

    @property
    def agent_socket(self) -> Path:
        """Where the agent listens for the site's ranks (GEOCOMM_AGENT)."""
        return socket_in(self.path, "agent.sock")

    @property
    def rank_socket(self) -> Path:
        """Where the collector takes the reports of ranks (GEOCOMM_COLLECTOR)."""
        return socket_in(self.path, "reports.sock")

    @property
    def collector_socket(self) -> Path:
        """Where the collector takes what other collectors send, from the process that accepted their connections."""
        return socket_in(self.path, "collector.sock")
