"""`geocomm plan --data`: which sites to read a data set with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from geocomm.cli.command_end import fail
from geocomm.core.bad_input import BadInput

_Number = TypeVar("_Number", int, float)
_MOST_ROWS = 12


def plan_data(name: str, gpus: str, tokens_per_second: float, gpu_price: str, *, as_json: bool) -> None:
    """Print days and dollars of a pass, by the sites that read it."""
    from geocomm.data.catalog import Catalog
    from geocomm.data.pass_estimate import Machines, advice, estimates
    from geocomm.data.shard_sequences import SetName

    try:
        machines = Machines(_by_site(gpus, int, "--gpus"), tokens_per_second, _by_site(gpu_price, float, "--gpu-price"))
        if not machines.gpus or not 0 < tokens_per_second < math.inf:
            raise BadInput("--data needs --gpus SITE=NUMBER,… and --tokens-per-second of one GPU")
        where = SetName.parse(name)
        catalog = Catalog(where.url)
        version = catalog.read(where.number)
        found = estimates(version.rules, catalog.shards(version), version.width, machines)
    except BadInput as error:
        fail("plan", str(error))
    if as_json:
        print(json.dumps({"version": version.number, "rows": [asdict(one) for one in found]}, indent=1))
        return
    console = Console(markup=False)
    tokens = sum(part.tokens for part in version.parts)
    console.print(
        f"{where.url}, version {version.number}: {tokens / 1e9:,.3g} G tokens, read once; {tokens_per_second:,.0f} "
        "tokens a second and GPU",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("sites", overflow="fold")
    for heading in ("days", "TB moved", "$ data", "$ GPUs", "nobody reads"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found[:_MOST_ROWS]:
        unread = f"{one.unread_tokens / 1e9:,.3g} G tokens" if one.unread_tokens else ""
        gpu_dollars = "" if one.gpu_dollars is None else f"{one.gpu_dollars:,.0f}"
        cells = (f"{one.days:,.3g}", f"{one.moved_tb:,.3g}", f"{one.data_dollars:,.0f}", gpu_dollars, unread)
        table.add_row(" ".join(one.sites), *cells)
    console.print(table)
    if len(found) > _MOST_ROWS:
        console.print(f"and {len(found) - _MOST_ROWS} more choices: --json has them", highlight=False)
    console.print(advice(found), highlight=False)


def _by_site(text: str, number: Callable[[str], _Number], option: str) -> dict[str, _Number]:
    """`a=1,b=2`."""
    found: dict[str, _Number] = {}
    for part in filter(None, text.split(",")):
        site, _, value = part.partition("=")
        if site in found:
            raise BadInput(f"{option} names {site} twice")
        try:
            found[site] = number(value)
        except ValueError:
            raise BadInput(f"{option} {part}: expected SITE=NUMBER, such as frankfurt=16") from None
        if not 0 < found[site] < math.inf or not site:
            raise BadInput(f"{option} {part}: expected a site, and a number above 0")
    return found
