"""`geocomm plan --data`: which sites to read a data set with."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

from geocomm.cli.command_end import say
from geocomm.core.bad_input import BadInput
from geocomm.core.console import table_of

if TYPE_CHECKING:
    from geocomm.core.link_table import Links
    from geocomm.data.pass_estimate import TrainingTraffic

_Number = TypeVar("_Number", int, float)
_MOST_ROWS = 12


@dataclass(frozen=True)
class Reading:
    """What is asked for."""

    name: str
    """The name of the data set."""
    gpus: str
    tokens_per_second: float
    gpu_price: str
    links: Callable[[Sequence[str]], Links]
    """The links of these sites, or of those that a file names."""
    links_are_known: bool


def plan_data(asked: Reading, exchange: Callable[[Links], TrainingTraffic] | None, *, as_json: bool) -> None:
    """Print days and dollars of a pass, by the sites that read it. exchange: what sites send each other."""
    from geocomm.data.catalog import Catalog
    from geocomm.data.pass_estimate import NO_EXCHANGE, Machines, advice, estimates
    from geocomm.data.shard_cache import far_rates
    from geocomm.data.shard_sequences import SetName

    def exchanged(sites: tuple[str, ...]) -> TrainingTraffic:
        return NO_EXCHANGE if exchange is None or len(sites) == 1 else exchange(asked.links(sites).select(sites))

    gpus, prices = _by_site(asked.gpus, int, "--gpus"), _by_site(asked.gpu_price, float, "--gpu-price")
    if not gpus or not 0 < asked.tokens_per_second < math.inf:
        raise BadInput("--data needs --gpus SITE=NUMBER,… and --tokens-per-second of one GPU")
    far = far_rates(asked.links([*gpus]).select([*gpus])) if asked.links_are_known else {}
    where = SetName.parse(asked.name)
    catalog = Catalog(where.url)
    version = catalog.read(where.number)
    machines = Machines(gpus, asked.tokens_per_second, prices, far)
    found = estimates(version.rules, catalog.shards(version), version.width, machines, exchanged)
    if as_json:
        print(json.dumps({"version": version.number, "rows": [asdict(one) for one in found]}, indent=1))
        return
    tokens = sum(part.tokens for part in version.parts)
    say(
        f"{where.url}, version {version.number}: {tokens / 1e9:,.3g} G tokens, read once; "
        f"{asked.tokens_per_second:,.0f} tokens a second and GPU"
    )
    columns = ("sites", "days", "TB moved", "$ data", "TB of rounds", "$ rounds", "$ GPUs", "nobody reads")
    rows = [
        (
            " ".join(one.sites),
            f"{one.days:,.3g}",
            f"{one.moved_tb:,.3g}",
            f"{one.data_dollars:,.0f}",
            None if exchange is None else f"{one.round_tb:,.3g}",
            None if exchange is None else _whole(one.round_dollars),
            _whole(one.gpu_dollars),
            f"{one.unread_tokens / 1e9:,.3g} G tokens" if one.unread_tokens else None,
        )
        for one in found[:_MOST_ROWS]
    ]
    say(table_of(columns, rows, folds=("sites",)))
    if len(found) > _MOST_ROWS:
        say(f"and {len(found) - _MOST_ROWS} more choices: --json has them")
    say(advice(found))


def _whole(dollars: float | None) -> str:
    return "" if dollars is None else f"{dollars:,.0f}"


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
