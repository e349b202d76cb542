"""`geocomm run`: torchrun over sites that meet at a hub, through TLS; or one site of an elastic run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from geocomm.cli.command_end import fail, wait_option
from geocomm.cli.run_options import (
    AddressOption,
    BackendNameOption,
    BackendOption,
    DataOption,
    DoubtOption,
    HeldOutOption,
    HubOption,
    JournalOption,
    KeysOption,
    LengthOption,
    ListenOption,
    MinSitesOption,
    WaitForOption,
    backend_variables,
    check_meeting,
    elastic_option,
    leader_settings,
    load_keys,
    publish_config,
)

_HELP = """Run torchrun on this node; the nodes meet at HUB, over TLS, on that one port.

Give every node the same --hub, and torchrun's arguments but for those that say where to meet:

    GEOCOMM_KEYS=keys/frankfurt geocomm run --hub 192.0.2.10:29400 --
      --nnodes 2 --node-rank 0 --nproc-per-node 8 train.py

With keys and one node at each site, leave out --nnodes and --node-rank. The node that has the host's address is the
hub. The site's name comes from its keys. A script that asks for nccl, gloo or no backend runs as it is with
--backend geocomm. torch's C++ parts log errors alone unless TORCH_CPP_LOG_LEVEL is set. The exit
status is torchrun's.

With --elastic each site is a job of its own, which may die, leave and come back while the others train on:

    GEOCOMM_KEYS=keys/frankfurt geocomm run --elastic --hub 192.0.2.10:29400 --run-dir run --
      --nproc-per-node 8 train.py

The site at the host's address leads the run. SIGTERM or Ctrl+C: the site leaves. The same command: it comes back.
"""

app = typer.Typer()


@app.command(help=_HELP, context_settings={"allow_interspersed_args": False})
def run(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="TORCHRUN-ARGUMENTS...", help="For torch.distributed.run; write them after --."),
    ],
    hub: HubOption = None,
    listen: ListenOption = None,
    keys: KeysOption = None,
    backend: BackendOption = None,
    backend_name: BackendNameOption = None,
    wait: Annotated[float, wait_option("--wait", "How long the hub has to appear.")] = 300,
    telemetry: Annotated[
        Path | None,
        typer.Option(
            help="On all nodes: the hub collects here what ranks do, for geocomm why and others. An elastic run always "
            "does, in its run folder.",
            metavar="FOLDER",
        ),
    ] = None,
    elastic: Annotated[
        bool, elastic_option("--elastic", help="This site is a job of its own in an elastic run.")
    ] = False,
    run_dir: Annotated[
        Path | None,
        elastic_option(
            help="What this site has of the run, on a disk of this machine. Only a site's first node needs it.",
            metavar="FOLDER",
        ),
    ] = None,
    lead: Annotated[
        bool,
        elastic_option(
            "--lead",
            help="This site leads, though --hub is translated. With --journal: etcd gets what it lacks from its run "
            "folder.",
        ),
    ] = False,
    journal: JournalOption = "",
    address: AddressOption = "",
    never_lead: Annotated[
        bool,
        elastic_option("--never-lead", help="With --journal: this site does not lead, since others cannot dial it."),
    ] = False,
    wait_for: WaitForOption = "",
    min_sites: MinSitesOption = 1,
    snapshot_every: Annotated[
        float, elastic_option(min=0, help="At the leader: minutes between two snapshots; 0: none.")
    ] = 30,
    copies: Annotated[int, elastic_option(min=1, help="At the leader: sites that keep a snapshot, at least.")] = 2,
    snapshot_url: Annotated[
        str, elastic_option(help="Where this site copies each kept snapshot to, by fsspec.", metavar="URL")
    ] = "",
    publish: Annotated[
        str,
        elastic_option(
            help="At one site: the run's weights go to this stream, a folder or bucket, with each kept snapshot.",
            metavar="PLACE",
        ),
    ] = "",
    publish_dtype: Annotated[
        str, elastic_option(help="With --publish: bfloat16, float16 or float32.", metavar="NAME")
    ] = "bfloat16",
    publish_readers: Annotated[
        str | None,
        elastic_option(help="With --publish: the keys that may have the weights; default: all.", metavar="NAME,…"),
    ] = None,
    data: DataOption = "",
    sequence_length: LengthOption = 0,
    held_out_fraction: HeldOutOption = 0.0,
    doubt: DoubtOption = 60,
    site_nodes: Annotated[int, elastic_option(min=1, help="Nodes of this site.")] = 1,
    node_rank: Annotated[int, elastic_option(min=0, help="This node of the site; the run folder is on node 0.")] = 0,
    site_hub: Annotated[
        str | None, elastic_option(help="Where the nodes of this site meet.", metavar="HOST:PORT")
    ] = None,
) -> None:
    """Start this site's ranks, and the hub at one site."""
    from geocomm.core.addresses import Address
    from geocomm.core.site import site_name
    from geocomm.group.rendezvous.launch_checks import check_variables

    try:
        check_variables()
    except ValueError as error:
        fail("run", str(error))
    if (hub is None) == (not journal):
        fail("run", "--hub HOST:PORT says where the nodes meet; of an elastic run, --journal may instead")
    if not elastic and journal:
        fail("run", "--journal is for --elastic")
    if not journal and (address or never_lead):
        fail("run", "--address and --never-lead are for --journal")
    check_meeting(hub, address, journal, listen, site_hub or "")
    variables = backend_variables(backend, backend_name, elastic=elastic)
    loaded = load_keys(keys)
    if (site := site_name()) not in (None, loaded.identity.site):
        fail("run", f"GEOCOMM_SITE is {site!r}, but the keys in {loaded.folder} are of site {loaded.identity.site!r}")
    try:
        if elastic:
            from geocomm.elastic.agent_process import AgentConfig
            from geocomm.elastic.files.snapshot_copies import SnapshotCopies
            from geocomm.elastic.supervisor import SiteJob, run_elastic

            if telemetry is not None:
                fail("run", "leave out --telemetry: an elastic run keeps its telemetry in --run-dir")
            if run_dir is None and node_rank == 0:
                fail("run", "--elastic needs --run-dir on the first node of the site")
            if site_nodes > 1 and site_hub is None:
                fail("run", f"--site-nodes {site_nodes} needs --site-hub: where the nodes of this site meet")
            terms = leader_settings(wait_for, min_sites, data, sequence_length, held_out_fraction, doubt)
            config = AgentConfig(
                leader="" if hub is None else str(Address.parse(hub)),
                journal=journal,
                address=address,
                may_lead=not never_lead,
                listen=listen,
                lead=lead,
                keys=str(loaded.folder.resolve()),
                run_dir=str(run_dir or ""),
                terms=replace(terms, snapshot_s=60 * snapshot_every, copies=copies),
                snapshot_url=snapshot_url,
            )
            if snapshot_url:
                SnapshotCopies(snapshot_url)  # refuses what is none
            job = SiteJob(tuple(arguments), site_nodes, node_rank, site_hub)
            status = run_elastic(config, job, loaded, publish_config(publish, publish_dtype, publish_readers))
        elif any((run_dir, wait_for, min_sites != 1, snapshot_url, publish, data, site_nodes != 1, site_hub)) or (
            publish_readers is not None
        ):
            given = "--run-dir, --wait-for, --min-sites, --snapshot-url, --publish, --publish-readers, --data"
            fail("run", f"{given}, --site-nodes and --site-hub are for --elastic")
        else:
            from geocomm.group.rendezvous.run_at_hub import run_at_hub

            status = run_at_hub(Address.parse(hub or ""), listen, loaded, arguments, wait, telemetry, variables)
    except OSError as error:
        low_port = isinstance(error, PermissionError) and not error.filename
        advice = ": a port below 1024 is for root alone; take another one at all sites" if low_port else ""
        fail("run", f"{listen or hub or journal}: {error.strerror or error}{advice}")
    raise typer.Exit(status)
