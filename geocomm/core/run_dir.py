"""The names of all files in a run folder: that of a site of an elastic run, or of a fixed run's collector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from geocomm.core.addresses import socket_in


@dataclass(frozen=True)
class RunDir:
    """Where each file is. Nothing here makes or reads one; who does is named beside it."""

    path: Path

    JOURNAL: ClassVar = "journal.sqlite"
    ABOUT: ClassVar = "run.json"
    LAYOUT: ClassVar = "layout.json"
    MANIFEST: ClassVar = "manifest.json"
    TELEMETRY: ClassVar = "telemetry.sqlite"

    # ---- of the agent

    @property
    def journal(self) -> Path:
        """What the sites agreed on (`elastic.journal.journal`). Damaged and forgotten ones lie beside it."""
        return self.path / self.JOURNAL

    @property
    def agents(self) -> Path:
        """Addresses of all agents, and whom this one follows (`elastic.known_agents`)."""
        return self.path / "agents.json"

    @property
    def about(self) -> Path:
        """Where agent, leader and keys are, for commands (`elastic.known_agents.About`)."""
        return self.path / self.ABOUT

    @property
    def agent_lock(self) -> Path:
        """The agent holds it."""
        return self.path / "agent.lock"

    @property
    def agent_socket(self) -> Path:
        """Where the agent listens for the site's ranks; perhaps not in the folder (`socket_in`)."""
        return socket_in(self.path, "agent.sock")

    # ---- of the store of frames and states (`elastic.fragment_store`)

    @property
    def store_id(self) -> Path:
        """The name of the store."""
        return self.path / "store-id"

    @property
    def fragments(self) -> Path:
        """The folder of frames and states."""
        return self.path / "fragments"

    # ---- of snapshots (`elastic.snapshots`)

    @property
    def layout(self) -> Path:
        """Where the values of each parameter lie; each snapshot has its own link to it."""
        return self.path / self.LAYOUT

    @property
    def snapshots(self) -> Path:
        """The folder of all of them."""
        return self.path / "snapshots"

    def snapshot(self, index: int) -> Path:
        """The folder of one, by the entry of the journal that it is of."""
        return self.snapshots / str(index)

    def manifest(self, index: int) -> Path:
        """The file of a snapshot that makes it complete."""
        return self.snapshot(index) / self.MANIFEST

    @property
    def copying(self) -> Path:
        """Links to a snapshot while it is copied to elsewhere (`elastic.snapshot_copies`)."""
        return self.path / ".copying"

    # ---- of the ranks

    @property
    def moments(self) -> Path:
        """The folder of the optimizers' moments (`sync.local_steps.elastic.site_moments`)."""
        return self.path / "site"

    # ---- of the collector

    @property
    def telemetry(self) -> Path:
        """The run store (`observe.telemetry.run_store`)."""
        return self.path / self.TELEMETRY

    @property
    def alerts(self) -> Path:
        """When alerts began and ended (`observe.alerts.alert_log`)."""
        return self.path / "alerts.jsonl"

    @property
    def collector_lock(self) -> Path:
        """A collector holds it, and sets its time when it starts."""
        return self.path / "collector.lock"

    @property
    def rank_socket(self) -> Path:
        """Where the collector takes the reports of ranks (GEOCOMM_COLLECTOR)."""
        return socket_in(self.path, "reports.sock")

    @property
    def collector_socket(self) -> Path:
        """Where the collector takes what other collectors send, from the process that accepted their connections."""
        return socket_in(self.path, "collector.sock")

    def counters(self, process: str) -> Path:
        """What a process counts of its own work (`metrics.own_counters`)."""
        return self.path / f"counters-{process}.json"

    def all_counters(self) -> Iterator[Path]:
        """Those of all processes."""
        return self.path.glob("counters-*.json")
