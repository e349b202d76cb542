"""What `geocomm run --elastic` was told: of the site's ranks, and of the run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from geocomm.journal.sequencer_events import DealtSet


@dataclass(frozen=True)
class SiteJob:
    """The ranks of a site."""

    arguments: tuple[str, ...]
    """Of torchrun."""
    nodes: int = 1
    """Of the site."""
    node_rank: int = 0
    """Of this node. The agent is on the first one, with the run folder."""
    hub: str | None = None
    """Where the nodes of the site meet, host:port: with more than one."""

    def command(self, run_dir: str) -> list[str]:
        """What starts them on this node. run_dir: on the first node; its collector gets the reports of all."""
        if self.nodes == 1:
            return [sys.executable, "-u", "-m", "geocomm.elastic.torchrun_of_site", *self.arguments]
        meet = ["--hub", str(self.hub), "--telemetry", run_dir]
        nodes = ["--nnodes", str(self.nodes), "--node-rank", str(self.node_rank)]
        return [sys.executable, "-m", "geocomm", "run", *meet, "--", *nodes, *self.arguments]


@dataclass(frozen=True)
class ElasticRun:
    """What the command says of the run."""

    leader: str
    """host:port, the same at all sites; empty: etcd says who leads."""
    journal: str
    """In etcd, etcd://host:port,host:port/name; empty: in the leader's run folder."""
    address: str
    """With `journal`: host:port where the other sites reach this one; empty: its own address."""
    may_lead: bool
    """With `journal`: the other sites reach this one, so that it may lead."""
    listen: str | None
    """address:port, where it is not the leader's port on all addresses."""
    lead: bool
    """This site leads, though the leader's host is no address of this machine."""
    run_dir: Path | None
    """On the first node of the site; on another one, if at all, for what its ranks keep."""
    wait_for: tuple[str, ...]
    min_sites: int
    snapshot_s: float
    """From one snapshot to the next; 0: there are none."""
    copies: int
    """A snapshot is kept once so many sites have it."""
    snapshot_url: str
    """Where this site copies each kept snapshot to; empty: nowhere."""
    data: DealtSet | None = None
    """That the run deals; None: sites bring their own data, or the journal says it."""
    doubt_s: float = 3600.0
    """The deals of a site that is gone for so long are dealt to others; 0: never."""
