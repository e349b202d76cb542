"""`geocomm probe`: what the links between the sites of a job can do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import AsJson, fail, require_writable, say, wait_option, write_plot

if TYPE_CHECKING:
    from geocomm.core.link_table import Links

_HELP = """Measure rate, round-trip time and loss between all sites, over geocomm's own connections.

Run it as the job would run, one or more ranks at each site, under torchrun or the emulator:

    geocomm wan run --sites 3 --rtt 80ms -- geocomm probe --out links.json

GEOCOMM_SITE, RANK and WORLD_SIZE (or NODE_RANK and NNODES for one rank a site), MASTER_ADDR and MASTER_PORT say who is
where. Rank 0 prints, and writes the file for GEOCOMM_LINKS: copy it to all sites.
"""


_NOTED_OVERFLOW = 0.0005

app = typer.Typer()


@app.command(help=_HELP)
def probe(
    out: Annotated[Path | None, typer.Option(help="Write the links here.", metavar="PATH.json")] = None,
    seconds: Annotated[float, wait_option("--seconds", "About how long each link is filled.", 0.05, 60)] = 2,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="Most ranks of a site that send at once.")] = 4,
    plot: Annotated[Path | None, typer.Option(help="Draw the heat map.", metavar="PATH.png")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the links of a job."""
    from geocomm.core.bad_input import BadInput
    from geocomm.core.place import rank_and_world_size, require_rank

    try:
        require_rank(os.environ)
        rank, _ = rank_and_world_size()
    except (BadInput, ValueError) as error:
        fail("probe", f"{error} (see --help)", 2)
    if rank == 0:
        require_writable("probe", "--out", out)
        require_writable("probe", "--plot", plot)

    import torch.distributed as dist

    from geocomm.core.errors import GeocommError
    from geocomm.lab.bench.link_probe import LinkProbe

    try:
        dist.init_process_group("geocomm")
        measuring = LinkProbe(seconds, ranks)
        links = measuring.run()
        first = dist.get_rank() == 0
        dist.destroy_process_group()
    except (GeocommError, dist.DistError, ValueError) as error:
        fail("probe", str(error), 1)
    if not first:
        return
    document = json.dumps(links.to_dict())
    if as_json:
        print(document)
    else:
        _show(links)
        for (src, dst), share in measuring.overflow.items():
            if share > _NOTED_OVERFLOW:
                say(
                    f"{measuring.names[src]} to {measuring.names[dst]}: {share:.2%} was sent again "
                    "while the probe filled the link, since its queue overflowed; that is not written as loss"
                )
    if out is not None:
        try:
            out.write_text(document + "\n", encoding="utf-8")
        except OSError as error:
            fail("probe", f"--out {out}: {error.strerror}", 2)
        say(f"written: {out}", err=True)
    if plot is not None:
        from geocomm.group.planning.link_report import draw

        write_plot("probe", plot, lambda path: draw(links, path))


def _show(links: Links) -> None:
    from geocomm.group.planning import link_report

    for table in (link_report.rates_table(links), link_report.delays_table(links)):
        say(table)
    for lines in (link_report.access_lines, link_report.relay_lines, link_report.region_lines):
        for line in lines(links):
            say(line)
