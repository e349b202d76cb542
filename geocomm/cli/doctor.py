"""`geocomm doctor`: what is wrong with this machine, the way to a peer, or the ranks of a job, and what to do."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.text import Text

from geocomm.cli.command_end import AsJson, fail, wait_option
from geocomm.core.console import plain_console, table_of

if TYPE_CHECKING:
    from geocomm.observe.doctor.doctor_machine import Finding

_STYLES = {"ok": "green", "note": "dim", "warning": "yellow", "bad": "bold red"}

app = typer.Typer()


@app.command()
def doctor(
    rate: Annotated[str, typer.Option(help="Rate of each direction.")] = "1gbit",
    rtt: Annotated[str, typer.Option(help="Round-trip time between the sites.")] = "100ms",
    peers: Annotated[
        int | None,
        typer.Option(min=1, help="Ranks that each rank talks to. Default: those of the job, else 15."),
    ] = None,
    peer: Annotated[
        str | None, typer.Option(help="Also look at the way to another machine.", metavar="HOST:PORT")
    ] = None,
    listen: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Answer doctors of other machines at this port until Ctrl-C.")
    ] = None,
    timeout: Annotated[float, wait_option("--timeout", "How long to wait for a peer, and for all ranks.", 0.1)] = 60,
    as_json: AsJson = False,
) -> None:
    """Examine this machine; with a launcher around it, all ranks of the job and the ways between their sites.

    Under a launcher (`python -m torch.distributed.run … -m geocomm doctor`, `geocomm wan run -- geocomm doctor`)
    rank 0 prints.

    Exit status: 1 where something is bad; 2 also for a rank that does not come.

    Example:

        geocomm doctor --rate 1gbit --rtt 100ms --peers 7
        geocomm doctor --peer 192.0.2.10:29400
    """
    from geocomm.core.addresses import Address
    from geocomm.core.errors import GeocommError
    from geocomm.core.options import Options
    from geocomm.core.place import local_world_size, world_size
    from geocomm.core.units import parse_duration, parse_rate
    from geocomm.observe.doctor.doctor_network import peer_findings
    from geocomm.observe.doctor.doctor_ranks import examine_job
    from geocomm.observe.doctor.examination import Examination, examine

    if listen is not None:
        _answer(listen)
    try:
        options = Options()
        target = Address.parse(peer) if peer is not None else None
        question = Examination(
            rate_bps=parse_rate(rate, "--rate"),
            rtt_s=parse_duration(rtt, "--rtt"),
            peers=peers or world_size() - 1 or 15,
            local_ranks=local_world_size(),
            options=options,
            keys=options.keys,
        )
        findings = examine_job(question, timeout) if world_size() > 1 else list(examine(question))
    except GeocommError as error:
        fail("doctor", str(error))
    if world_size() == 1 and target is not None and findings is not None:
        findings += peer_findings(f"to {target}", target.host, target.port, min(timeout, 10.0))
    if findings is not None:
        _print(findings, as_json)
        raise typer.Exit(any(finding.state == "bad" for finding in findings))


def _answer(port: int) -> NoReturn:
    from geocomm.observe.doctor.doctor_network import Answerer

    try:
        with Answerer(port=port) as answerer:
            typer.echo(f"geocomm doctor: answers at port {answerer.port}; Ctrl-C ends it", err=True)
            while True:
                time.sleep(3600)
    except OSError as error:
        fail("doctor", f"cannot listen at port {port}: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _print(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        print(json.dumps([vars(finding) for finding in findings], indent=1))
        return
    console = plain_console()
    rows = [(Text(finding.state, _STYLES[finding.state]), finding.name, finding.value) for finding in findings]
    console.print(table_of(("", "what", "found"), rows, folds=("what", "found")))
    for finding in findings:
        if finding.fix and finding.state != "ok":
            name = (finding.name, _STYLES[finding.state])
            console.print(Text.assemble("\n", name, f": {finding.fix}"), soft_wrap=True)
