"""`geocomm plan`: what training across sites costs, from links, model and codec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from geocomm.command_end import fail

if TYPE_CHECKING:
    from geocomm.links import Links
    from geocomm.wan_plan import Estimate


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("plan")(plan)


def plan(
    parameters: Annotated[str | None, typer.Option(help="Parameters of the model, such as 7e9, 7b or 671B.")] = None,
    model: Annotated[str | None, typer.Option(help="A model of the training driver, such as deepseek-v3.")] = None,
    sites: Annotated[int, typer.Option(min=2, max=256, help="Sites, where --links does not name them.")] = 2,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks at each site.")] = 8,
    links: Annotated[
        Path | None, typer.Option(help="Links of `geocomm probe --out`, or a TOML matrix.", metavar="PATH")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate between any two sites, without --links.")] = "1gbit",
    access: Annotated[
        str | None, typer.Option(help="Rate of each site's own line, over all its links, without --links.")
    ] = None,
    rtt: Annotated[str, typer.Option(help="Round trip between any two sites, without --links.")] = "100ms",
    efficiency: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Share of those rates that tensors get.", show_default="0.9; probe: 1"),
    ] = None,
    codec: Annotated[list[str] | None, typer.Option(help="May be repeated.", show_default="a choice")] = None,
    sync_every: Annotated[list[int] | None, typer.Option(help="Steps from exchange to exchange; repeatable.")] = None,
    step_time: Annotated[str, typer.Option(help="Compute time of one step.")] = "1s",
    hidden: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Part of the compute time that an exchange may hide under.")
    ] = 0.0,
    element_bytes: Annotated[int, typer.Option(min=2, max=4, help="Of what is exchanged: 4 or 2.")] = 4,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Codec threads of a rank.")] = 1,
    price: Annotated[float | None, typer.Option(min=0.0, help="Dollars per GB that leaves a site.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Estimate bytes, step time, use of the links and egress of data-parallel training across sites.

    Ranks of a site hold shards, so each exchanges its part. Codecs are timed on this machine. Exit status: 0; 2 for a
    wrong option.
    """
    from geocomm.auto_codec import Speed, measure
    from geocomm.errors import GeocommError
    from geocomm.link_report import relay_lines
    from geocomm.units import parse_duration
    from geocomm.wan_plan import Workload, estimate

    try:
        if element_bytes == 3:
            raise ValueError("--element-bytes is 4 (float32) or 2 (bfloat16)")
        work = Workload(_parameters(parameters, model), ranks, parse_duration(step_time), element_bytes, hidden, price)
        if work.compute_s <= 0:
            raise ValueError("--step-time: it must be more than 0")
        table = _links(links, sites, rate, access, rtt, efficiency)
        codecs = tuple(codec or ("none", "int8", "int4", "balanced", "small", "tiny"))
        intervals = sync_every or [1, 100]
        if min(intervals) < 1:
            raise ValueError("--sync-every: it must be 1 or more")
        speeds = measure(codecs, threads)
        rows = [estimate(work, table, name, every, Speed(*speeds[name])) for every in intervals for name in codecs]
    except (GeocommError, ValueError) as error:
        fail("plan", str(error))
    if as_json:
        conditions = {"parameters": work.parameters, "ranks_per_site": ranks, "compute_s": work.compute_s}
        document = {"conditions": conditions | {"links": table.to_dict()}, "rows": [row.to_dict() for row in rows]}
        print(json.dumps(document, indent=1))
        return
    console = Console()
    size = f"{work.parameters:.4g} parameters of {element_bytes} bytes"
    console.print(f"{len(table.sites)} sites of {ranks} ranks, {size}, {step_time} a step", highlight=False)
    console.print(_table(rows, price))
    for line in relay_lines(table):
        console.print(line, highlight=False)
    console.print("A model's times; how far measured ones were from it: docs/planning.md", highlight=False)


def _parameters(text: str | None, model: str | None) -> float:
    if (text is None) == (model is None):
        raise ValueError("give --parameters or --model")
    if text is not None:
        units = {"m": 1e6, "b": 1e9, "t": 1e12}
        unit = units.get(text[-1:].lower(), 1.0)
        try:
            count = float(text[:-1] if unit > 1 else text) * unit
        except ValueError:
            raise ValueError(f"--parameters {text}: expected a number such as 7e9, 300m or 7b") from None
        if not 1 <= count <= 1e15:
            raise ValueError(f"--parameters {text}: expected 1 to 1e15")
        return count
    from geocomm.train.model_presets import PRESETS

    if model not in PRESETS:
        raise ValueError(f"--model {model}: expected one of {', '.join(PRESETS)}")
    from transformers import DeepseekV3Config

    from geocomm.train.model_factory import parameter_count

    return float(parameter_count(DeepseekV3Config(**({"vocab_size": 32000} | PRESETS[model]), num_mtp_layers=0)))


def _links(path: Path | None, sites: int, rate: str, access: str | None, rtt: str, efficiency: float | None) -> Links:
    from geocomm.links import Links
    from geocomm.units import parse_duration, parse_rate
    from geocomm.wan_plan import NOMINAL_EFFICIENCY, scaled

    if path is not None:
        nominal = path.suffix == ".toml"
        return scaled(Links.from_file(path), efficiency or (NOMINAL_EFFICIENCY if nominal else 1.0))
    names = [f"site{index}" for index in range(sites)]
    limit = None if access is None else (parse_rate(access),) * sites
    table = Links.uniform(names, parse_rate(rate), parse_duration(rtt), up_bps=limit, down_bps=limit)
    return scaled(table, efficiency or NOMINAL_EFFICIENCY)


def _table(rows: list[Estimate], price: float | None) -> Table:
    table = Table()
    for name in ("codec", "sync every", "way", "site sends", "rank sends", "exchange", "step", "computing", "link"):
        table.add_column(name, justify="left" if name in ("codec", "way") else "right")
    table.add_column("egress a day", justify="right")
    if price is not None:
        table.add_column("$ a day", justify="right")
    last = None
    for row in rows:
        if last is not None and row.sync_every != last:
            table.add_section()
        last = row.sync_every
        cells = [
            row.codec,
            str(row.sync_every),
            ("owners" if row.owners else "broadcast") + (", relays" if row.relays else ""),
            _bytes(row.sent_bytes),
            _bytes(row.sent_per_rank_bytes),
            f"{row.exchange_s:.3g} s",
            f"{row.step_s:.3g} s",
            f"{row.compute_share:.1%}",
            f"{row.link_share:.1%}",
            _bytes(row.egress_bytes_per_day),
        ]
        table.add_row(*cells, *([] if row.dollars_per_day is None else [f"{row.dollars_per_day:,.0f}"]))
    return table


def _bytes(count: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g} B"
