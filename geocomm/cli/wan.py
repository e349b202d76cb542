"""`geocomm wan run`, `wan set` and `wan stats`: a geo-distributed job on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from geocomm.cli.command_end import SecureOption, SiteKeysOption, require_writable, say, wait_option
from geocomm.core.bad_input import UserError
from geocomm.core.console import table_of
from geocomm.core.units import rate_text
from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import (
    MAX_SITES,
    EmulatedLink,
    EmulatedWan,
    WanConfigError,
    link_changes,
)
from geocomm.lab.emulator.emulated_wan import (
    LATENESS_LIMIT_S,
    LinkReport,
    WanControl,
    WanReport,
    WanRun,
    find_control,
)
from geocomm.lab.emulator.leo_profile import leo_links

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_RUN_HELP = """Run COMMAND once per emulated site, with a wide-area network between the sites.

Takes root or an unprivileged user namespace. COMMAND's environment has GEOCOMM_SITE, NNODES, NODE_RANK, MASTER_ADDR,
MASTER_PORT and GLOO_SOCKET_IFNAME:

    geocomm wan run --rtt 80ms -- python -m geocomm.train --config run.yaml

The exit status is the first non-zero one of a site.

Without keys GEOCOMM_SECURITY is insecure, unless set already. With --secure or --keys COMMAND finds its site's
GEOCOMM_KEYS, and meets at a hub:

    geocomm wan run --secure -- bash -c '
      geocomm run --hub $MASTER_ADDR:$MASTER_PORT --
        --nnodes $NNODES --node-rank $NODE_RANK --nproc-per-node 1 train.py'
"""

_MATRIX_HELP = (
    "TOML file of named sites and unequal links: a list `sites`, a table `default`, tables `link` with between = two "
    "sites, or from and to, and any of rate, rtt, delay, loss, queue, up, reorder, duplicate, reset."
)


_REORDER_HELP = "Segments that are overtaken: late by up to half of the delay, 2 ms at least."
_RESET_HELP = "Segments that become a reset of their TCP connection."

app = typer.Typer(
    name="wan", help="Run a job over an emulated wide-area network on this machine.", no_args_is_help=True
)


def _topology(sites: int | None, matrix: Path | None, changes: dict[str, Any]) -> EmulatedWan:
    if matrix is None:
        return EmulatedWan.uniform(2 if sites is None else sites, EmulatedLink(**changes))
    topology = EmulatedWan.from_toml(matrix, changes)
    if sites is not None and sites != len(topology.sites):
        raise WanConfigError(f"sites: {sites} asked for, but {matrix} has {len(topology.sites)}")
    return topology


def _environment() -> dict[str, str]:
    """The sites' environment: this one, and insecure mode, of which the backend warns, where there are no keys."""
    environment = dict(os.environ)
    if "GEOCOMM_KEYS" not in environment:
        environment.setdefault("GEOCOMM_SECURITY", "insecure")
    return environment


@app.command(
    "run", help=_RUN_HELP, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False}
)
def wan_run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="What each site runs; write it after --.")],
    sites: Annotated[
        int | None, typer.Option(min=2, max=MAX_SITES, help="Number of sites. Default: 2, or those of --matrix.")
    ] = None,
    rtt: Annotated[str | None, typer.Option(help="Round-trip time of every link. Default: 100ms.")] = None,
    rate: Annotated[str | None, typer.Option(help="Rate of each direction, headers included. Default: 1gbit.")] = None,
    loss: Annotated[str | None, typer.Option(help="Loss per TCP segment, such as 0.1%.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Queue of every link. Default: rate x rtt, at least 256 KiB.")
    ] = None,
    reorder: Annotated[str | None, typer.Option(help=_REORDER_HELP)] = None,
    duplicate: Annotated[str | None, typer.Option(help="Segments that come twice.")] = None,
    reset: Annotated[str | None, typer.Option(help=_RESET_HELP)] = None,
    matrix: Annotated[Path | None, typer.Option(help=_MATRIX_HELP)] = None,
    profile: Annotated[
        Literal["leo"] | None,
        typer.Option(
            help="leo: all links by satellites in low Earth orbit. Every 15 s nothing passes for 50 to 150 ms, and the "
            "round trip becomes another one of 20 to 60 ms; loss of 0.3 to 1 % comes in bursts."
        ),
    ] = None,
    secure: SecureOption = False,
    keys: SiteKeysOption = None,
    grace: Annotated[
        float, wait_option("--grace", "Time for the other sites when one has failed, and before SIGKILL.")
    ] = 5,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Let the others run on when a site fails.")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="No site's name before each line of output.")] = False,
    master_port: Annotated[int, typer.Option(help="MASTER_PORT of the sites.")] = 29500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the loss pattern.")] = 1,
    control: Annotated[
        Path | None, typer.Option(help="Control socket to make. Default: one in $XDG_RUNTIME_DIR or /tmp.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the final counters here as JSON.")] = None,
) -> None:
    """Run a command at each site of an emulated WAN."""
    require_writable("wan", "--json", json_path)
    # Held back until there is a run to pass them to; the emulator inherits the mask, and takes them from its start on.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    with contextlib.ExitStack() as held:
        try:
            changes = link_changes(
                rtt=rtt, rate=rate, loss=loss, queue=queue, reorder=reorder, duplicate=duplicate, reset=reset
            )
            if profile is not None and (rtt is not None or loss is not None):
                raise WanConfigError("--profile leo has round trips and loss of its own: leave --rtt and --loss out")
            topology = _topology(sites, matrix, changes)
            folder = held.enter_context(site_keys(topology.sites, keys, secure))
            run = WanRun(
                topology,
                command,
                environment=_environment() if folder is None else site_environment(os.environ, folder),
                master_port=master_port,
                control=control,
                keys=folder,
                grace_s=grace,
                keep_going=keep_going,
                raw=raw,
                seed=seed,
            )
        except UserError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            raise
        held.enter_context(run)
        if profile == "leo":
            held.enter_context(leo_links(run.control, topology.sites, seed))
        for number in _SIGNALS:
            signal.signal(number, lambda received, _frame: run.interrupt(received))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        status = run.wait()
        report = run.report()
    if report is not None:
        if json_path is not None:
            json_path.write_text(report.to_json() + "\n", encoding="utf-8")
        print_report(report)
    # A signal ends the emulator itself only when somebody sends it SIGKILL.
    raise typer.Exit(status if status >= 0 else 128 - status)


def print_report(report: WanReport) -> None:
    """The links' counters as a table on stderr, so that stdout is the job's own; then, whether to trust its times."""
    columns = ("link", "Mbit/s", "ms", "MB", "packets", "lost", "full", "down")
    rows = [
        (
            f"{link.src} → {link.dst}" + ("" if link.up else " (down)"),
            *(f"{link.rate_bps / 1e6:g}", f"{link.delay_s * 1e3:g}", f"{link.bytes / 1e6:,.2f}"),
            *(f"{link.segments:,}", f"{link.dropped_loss:,}", f"{link.dropped_queue:,}", f"{link.dropped_down:,}"),
        )
        for link in report.links
    ]
    say(table_of(columns, rows, title=f"Emulated WAN, {report.elapsed_s:.1f} s"), err=True)
    explained = "ms: one way. MB: sent, with headers. Dropped packets: lost, at a full queue, at a link that was down."
    say(explained, "italic dim", err=True)
    if not report.reliable:
        say(
            f"geocomm wan: {report.late_packets} packets came more than {LATENESS_LIMIT_S * 1e3:g} ms late (at worst "
            f"{report.max_lateness_s * 1e3:.1f} ms): the machine was too busy, and this run's times are void",
            "bold yellow",
            err=True,
        )


def link_text(link: LinkReport) -> str:
    """`site0 to site1: up, 200 Mbit/s, 50 ms one way, 0.1% loss`."""
    parts = ["up" if link.up else "down", rate_text(link.rate_bps), f"{link.delay_s * 1e3:.4g} ms one way"]
    parts += [f"queue {link.queue_bytes / 1024:,.0f} KiB", f"{link.loss * 100:.3g}% loss" if link.loss else "no loss"]
    for name in ("reorder", "duplicate", "reset"):
        if share := getattr(link, name):
            parts.append(f"{name} {share * 100:.3g}%")
    return f"{link.src} to {link.dst}: {', '.join(parts)}"


_CONTROL = typer.Option(help="Control socket of the run. Default: $GEOCOMM_WAN_CONTROL, or that of the only run.")


@app.command("set")
def wan_set(
    link: Annotated[str, typer.Option(metavar="A:B", help="The two sites.")],
    state: Annotated[str | None, typer.Argument(metavar="[up|down]", help="Cut the link, or join it again.")] = None,
    rate: Annotated[str | None, typer.Option(help="New rate.")] = None,
    rtt: Annotated[str | None, typer.Option(help="New round-trip time; a direction gets half of it.")] = None,
    loss: Annotated[str | None, typer.Option(help="New loss.")] = None,
    queue: Annotated[str | None, typer.Option(help="New queue, such as 4mb.")] = None,
    reorder: Annotated[str | None, typer.Option(help=_REORDER_HELP)] = None,
    duplicate: Annotated[str | None, typer.Option(help="Segments that come twice.")] = None,
    reset: Annotated[str | None, typer.Option(help=_RESET_HELP)] = None,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only from A to B, not back.")] = False,
    control: Annotated[Path | None, _CONTROL] = None,
) -> None:
    """Change a link of a running `geocomm wan run`.

    Prints the link as it is then.

    Example:

        geocomm wan set --link site0:site1 down
        geocomm wan set --link site0:site1 --rate 200mbit --loss 0.5%
    """
    if state not in (None, "up", "down"):
        raise WanConfigError(f"state: {state!r} is neither up nor down")
    ends = link.split(":")
    if len(ends) != 2:
        raise WanConfigError(f"link: {link!r} does not name two sites as A:B")
    up = None if state is None else state == "up"
    changes: dict[str, Any] = {"up": up, "rate": rate, "rtt": rtt, "loss": loss, "queue": queue}
    changes |= {"reorder": reorder, "duplicate": duplicate, "reset": reset}
    link_changes(**changes)  # a wrong option is one also where no emulator runs
    client = WanControl(control or find_control())
    client.set_link(ends[0], ends[1], **changes, one_way=one_way)
    report = client.stats()
    for src, dst in [ends] if one_way else [ends, ends[::-1]]:
        typer.echo(link_text(report.link(src, dst)))


@app.command("stats")
def wan_stats(control: Annotated[Path | None, _CONTROL] = None) -> None:
    """Print the settings and counters of a running `geocomm wan run` as JSON.

    Example:

        geocomm wan stats
    """
    sys.stdout.write(WanControl(control or find_control()).stats().to_json() + "\n")
