"""`geocomm plan`: what training across sites costs, from links, model and codec."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from geocomm.cli.command_end import AsJson, fail, say
from geocomm.cli.plan_data import Reading, plan_data
from geocomm.core.console import table_of
from geocomm.core.units import DAY_S, bytes_text, count_text, duration_text, parse_duration, parse_rate, rate_text

if TYPE_CHECKING:
    from rich.table import Table

    from geocomm.core.link_table import Links
    from geocomm.data.pass_estimate import TrainingTraffic
    from geocomm.group.planning.codec_choice import Speed
    from geocomm.group.planning.local_estimate import LocalEstimate
    from geocomm.group.planning.run_estimate import Estimate, Workload

_STEP_CODECS = ("none", "int8", "int4", "balanced", "small")
_LOCAL_CODECS = ("int8", "int4")
_DATA = "Who reads a data set"
_WORTHWHILE = 1.05
"""Local steps cost quality, so per-step reduction may take longer by this factor and is still what a plan names."""


app = typer.Typer()


@app.command()
def plan(
    parameters: Annotated[str | None, typer.Option(help="Parameters of the model, such as 7e9, 7b or 671B.")] = None,
    model: Annotated[str | None, typer.Option(help="A model of the training driver, such as deepseek-v3.")] = None,
    sites: Annotated[int, typer.Option(min=2, max=256, help="Sites, where --links does not name them.")] = 2,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks at each site.")] = 8,
    links: Annotated[
        Path | None, typer.Option(help="Links of `geocomm probe --out`, or a TOML matrix.", metavar="PATH")
    ] = None,
    rate: Annotated[str, typer.Option(help="Rate between each two sites, without --links.")] = "1gbit",
    access: Annotated[str | None, typer.Option(help="Rate of each site's own line, without --links.")] = None,
    rtt: Annotated[str, typer.Option(help="Round trip between any two sites, without --links.")] = "100ms",
    efficiency: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, help="Share of those rates that tensors get. Default: 0.9; probe: 1."),
    ] = None,
    codec: Annotated[list[str] | None, typer.Option(help="May be repeated. Default: a choice.")] = None,
    mode: Annotated[
        Literal["auto", "step", "local"],
        typer.Option(help="step: reduce in every step. local: local steps. auto: both, and which wins."),
    ] = "auto",
    every: Annotated[
        int | None,
        typer.Option(help="Local steps between two rounds of a fragment. Default: what the links allow."),
    ] = None,
    step_time: Annotated[str, typer.Option(help="Compute time of one step.")] = "1s",
    hidden: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Part of a step's computing that hides its exchange.")
    ] = 0.0,
    element_bytes: Annotated[int, typer.Option(min=2, max=4, help="Of what is exchanged: 4 or 2.")] = 4,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="Codec threads of a rank.")] = 1,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="Dollars per GB that leaves a site. Default: [prices] of --links.")
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            metavar="CATALOG",
            help="Plan who reads a data set. With a model also what rounds cost; with --links, what lines hold up.",
            rich_help_panel=_DATA,
        ),
    ] = "",
    gpus: Annotated[str, typer.Option(metavar="SITE=N,…", help="GPUs of each site.", rich_help_panel=_DATA)] = "",
    tokens_per_second: Annotated[float, typer.Option(help="Of one GPU.", rich_help_panel=_DATA)] = 0.0,
    gpu_price: Annotated[
        str, typer.Option(metavar="SITE=P,…", help="Dollars of a GPU for an hour.", rich_help_panel=_DATA)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Estimate bytes, step time, use of the links and egress of data-parallel training across sites.

    Ranks of a site hold shards, so each exchanges its part. Codecs are timed on this machine.

    Example:

        geocomm plan --parameters 7b --sites 3 --rate 1gbit --access 2gbit
        geocomm plan --model deepseek-v3 --links links.json --codec int8 --mode step
        geocomm plan --data /data/catalog/web --gpus frankfurt=16,tokyo=16 --tokens-per-second 9500
    """
    if not data and (gpus or tokens_per_second or gpu_price):
        fail("plan", "--gpus, --tokens-per-second and --gpu-price are for --data")
    from geocomm.core.errors import GeocommError
    from geocomm.group.planning.codec_choice import Speed, measure
    from geocomm.group.planning.link_report import region_lines, relay_lines
    from geocomm.group.planning.run_estimate import Workload, scaled

    try:
        if element_bytes == 3:
            raise ValueError("--element-bytes is 4 (float32) or 2 (bfloat16)")
        compute_s = parse_duration(step_time, "--step-time")
        if compute_s <= 0:
            raise ValueError("--step-time: it must be more than 0")
        share = efficiency or _usual_efficiency(links)

        def links_of(names: Sequence[str]) -> Links:
            return scaled(_nominal_links(links, names, rate, access, rtt), share)

        read = Reading(data, gpus, tokens_per_second, gpu_price, links_of, links is not None) if data else None
        if read is not None and parameters is None and model is None:
            if price is not None:
                raise ValueError("--price is of what rounds send: with --data, give --parameters or --model too")
            plan_data(read, None, as_json=as_json)
            return
        work = Workload(_parameters(parameters, model), ranks, compute_s, element_bytes, hidden, price)
        steps, refused = _step_codecs(codec) if mode != "local" else ([], [])
        local = (codec or [*_LOCAL_CODECS]) if mode != "step" else []
        if mode == "step" and not steps:
            raise ValueError(_refusal(refused))
        speeds = {name: Speed(*one) for name, one in measure((*dict.fromkeys([*steps, *local]),), threads).items()}
        ways = _Ways(work, steps, local, speeds, every)
        if read is not None:
            plan_data(read, ways.exchange, as_json=as_json)
            return
        table = links_of([f"site{index}" for index in range(sites)])
        rows, local_rows = ways.rows(table), ways.local_rows(table)
    except (GeocommError, ValueError) as error:
        fail("plan", str(error))
    if as_json:
        conditions = {"parameters": work.parameters, "ranks_per_site": ranks, "compute_s": work.compute_s}
        document = {"conditions": conditions | {"links": table.to_dict()}}
        document |= {"rows": [row.to_dict() for row in rows], "local_rows": [row.to_dict() for row in local_rows]}
        print(json.dumps(document, indent=1))
        return
    size = f"{work.parameters:.4g} parameters of {element_bytes} bytes"
    who = f"{count_text(len(table.sites), 'site')} of {count_text(ranks, 'rank')}"
    say(f"{who}, {size}, {duration_text(compute_s, 'g')} a step", wrap=True)
    title = f"links of {links}" if links is not None else _nominal_text(rate, access, rtt)
    say(f"{title}; tensors get {share:.0%} of those rates", wrap=True)
    if links is None and access is None and len(table.sites) > 2:
        say(
            f"--rate is that of each pair of sites: each site has {len(table.sites) - 1} x {rate} here. If {rate} is a "
            f"site's own line, add --access {rate}",
            "bold yellow",
            wrap=True,
        )
    if rows:
        say(_step_table(rows))
    if local_rows:
        say(_local_table(local_rows))
    lines = [*_verdict(rows, local_rows), *ways.level_lines(table), *ways.reduce_lines(table)]
    for line in [*lines, *_region_lines(table, local_rows, price)]:
        say(line, wrap=True)
    if refused:
        say(_refusal(refused), "bold yellow", wrap=True)
    for line in [*relay_lines(table), *region_lines(table)]:
        say(line, wrap=True)
    say("A model's times; how far measured ones were from it: docs/explanation/planning.md", wrap=True)


@dataclass(frozen=True)
class _Ways:
    """The ways to train that are compared."""

    work: Workload
    steps: Sequence[str]
    """Codecs for reducing in every step."""
    local: Sequence[str]
    """For local steps."""
    speeds: Mapping[str, Speed]
    every: int | None

    def rows(self, table: Links) -> list[Estimate]:
        from geocomm.group.planning.run_estimate import estimate

        return [estimate(self.work, table, name, self.speeds[name]) for name in self.steps]

    def local_rows(self, table: Links) -> list[LocalEstimate]:
        from geocomm.codecs.codec_spec import codec_spec
        from geocomm.group.planning.local_estimate import local_estimate

        rows: list[LocalEstimate] = []
        for name in self.local:
            given = self.work, table, name, self.speeds[name]
            rows.append(local_estimate(*given, every=self.every))
            if len(table.sites) > 2 and not codec_spec(name).needs_feedback:
                rows.append(local_estimate(*given, every=self.every, reduce="aggregator"))
        return rows

    def level_lines(self, table: Links) -> list[str]:
        """Whether what goes over the sites in every step goes by regions: all-reduces, and what FSDP takes that shards
        the model over all of them."""
        from geocomm.group.planning.run_estimate import chosen_levels

        found = [(f"{name}, in every step", chosen_levels(self.work, table, name)) for name in self.steps]
        if self.steps:
            sharded = "FSDP over all sites, each"
            found += [
                (f"{name}, {sharded} reduce-scatter", chosen_levels(self.work, table, name, "reduce_scatter"))
                for name in self.steps
            ]
            gathers = chosen_levels(self.work, table, self.steps[0], "all_gather")
            found.append((f"{sharded} all-gather", gathers))
        return [f"{what}: {choice}" for what, choice in found if choice is not None]

    def reduce_lines(self, table: Links) -> list[str]:
        """What `reduce="auto"` would be, by codec."""
        from geocomm.codecs.codec_spec import codec_spec
        from geocomm.group.planning.local_estimate import chosen_reduce

        if len(table.sites) < 3:
            return []
        return [
            f"{name}, reduce='auto': {chosen_reduce(self.work.parameters, table, name)}"
            for name in self.local
            if not codec_spec(name).needs_feedback
        ]

    def exchange(self, table: Links) -> TrainingTraffic:
        """The traffic of the best way to train."""
        from geocomm.data.pass_estimate import TrainingTraffic

        step, local = _bests(self.rows(table), self.local_rows(table))
        best = step if step is not None and _is_worthwhile(step, local) else local
        if best is None:
            raise ValueError("there is no way to train")
        price, dollars = self.work.dollars_per_gb, best.dollars_per_day
        if price is None and dollars is not None:  # those of the links, of all that is sent
            price = dollars / (best.egress_bytes_per_day / 1e9)
        return TrainingTraffic(best.egress_bytes_per_day / DAY_S, best.step_s / self.work.compute_s, price)


def _bests(
    rows: Sequence[Estimate], local_rows: Sequence[LocalEstimate]
) -> tuple[Estimate | None, LocalEstimate | None]:
    step = min(rows, key=lambda row: row.step_s, default=None)
    return step, min(local_rows, key=lambda row: (not row.fits, row.sent_bytes_per_step), default=None)


def _region_lines(table: Links, rows: Sequence[LocalEstimate], price: float | None) -> list[str]:
    """What crosses between the regions of the links, and what would without them."""
    from geocomm.group.planning.local_estimate import between_regions_alone

    lines: list[str] = []
    for row in rows:
        crosses = row.between_regions_bytes_per_day
        if crosses is not None:
            cost = row.dollars_per_day if price is None else crosses / 1e9 * price
            dollars = "" if cost is None else f", for ${_dollars(cost)}"
            lines.append(
                f"{row.codec}, {row.reduce}: {bytes_text(crosses)} a day cross between regions{dollars}; without "
                f"[regions] it would be {between_regions_alone(table, row.reduce):.2g} times as much"
            )
    return lines


def _is_worthwhile(step: Estimate, local: LocalEstimate | None) -> bool:
    return local is None or step.step_s <= _WORTHWHILE * local.step_s


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
    from geocomm.train.models.model_presets import PRESETS

    if model not in PRESETS:
        raise ValueError(f"--model {model}: expected one of {', '.join(PRESETS)}")
    from transformers import DeepseekV3Config

    from geocomm.train.models.model_factory import parameter_count

    settings: dict[str, Any] = {"vocab_size": 32000} | PRESETS[model] | {"num_mtp_layers": 0}
    return float(parameter_count(DeepseekV3Config(**settings)))


def _nominal_links(path: Path | None, names: Sequence[str], rate: str, access: str | None, rtt: str) -> Links:
    """names: of the sites, where there is no file that names them."""
    from geocomm.core.link_table import Links

    if path is not None:
        return Links.from_file(path)
    limit = None if access is None else (parse_rate(access, "--access"),) * len(names)
    return Links.uniform(names, parse_rate(rate, "--rate"), parse_duration(rtt, "--rtt"), up_bps=limit, down_bps=limit)


def _usual_efficiency(path: Path | None) -> float:
    """A matrix has the lines' own rates; those that `geocomm probe` measured are of tensors already."""
    from geocomm.group.planning.run_estimate import NOMINAL_EFFICIENCY

    return NOMINAL_EFFICIENCY if path is None or path.suffix == ".toml" else 1.0


def _nominal_text(rate: str, access: str | None, rtt: str) -> str:
    line = "no limit of" if access is None else rate_text(parse_rate(access))
    return (
        f"{rate_text(parse_rate(rate))} between each two sites, {line} a site's own line, round trip "
        f"{duration_text(parse_duration(rtt), 'g')}"
    )


def _step_codecs(given: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The codecs that the backend takes in every step, and those that it refuses."""
    from geocomm.codecs.codec_spec import codec_spec

    codecs: list[str] = []
    refused: list[str] = []
    for name in given or _STEP_CODECS:
        (refused if codec_spec(name).needs_feedback else codecs).append(name)
    return codecs, refused


def _refusal(codecs: list[str]) -> str:
    return (
        f"not listed for every step: {', '.join(codecs)}; the backend refuses codecs that need error feedback "
        "(docs/explanation/error-feedback.md)"
    )


def _step_table(rows: Sequence[Estimate]) -> Table:
    names = ["codec", "way", "site\nsends", "rank\nsends", "exchange", "step", "com-\nputing", "link", "egress\na day"]
    cells = [
        [
            row.codec,
            ("owners" if row.owners else "broadcast")
            + (", regions" if row.by_region else ", relays" if row.relays else ""),
            bytes_text(row.sent_bytes),
            bytes_text(row.sent_per_rank_bytes),
            _seconds(row.exchange_s),
            _seconds(row.step_s),
            f"{row.compute_share:.1%}",
            f"{row.link_share:.1%}",
            bytes_text(row.egress_bytes_per_day),
            None if row.dollars_per_day is None else _dollars(row.dollars_per_day),
        ]
        for row in rows
    ]
    return table_of([*names, "$\na day"], cells, title="An exchange at every step", folds=("codec", "way"))


def _local_table(rows: Sequence[LocalEstimate]) -> Table:
    names = [
        "codec",
        "reduce",
        "every",
        "frag-\nments",
        "over-\nlap",
        "round",
        "step",
        "link",
        "fewer\nbytes",
        "egress\na day",
    ]
    cells = [
        [
            row.codec,
            row.reduce,
            str(row.every),
            str(row.fragments),
            str(row.overlap),
            _seconds(row.round_s),
            _seconds(row.step_s),
            f"{row.link_share:.1%}",
            f"{row.fewer_bytes:,.0f} x",
            bytes_text(row.egress_bytes_per_day),
            None if row.dollars_per_day is None else _dollars(row.dollars_per_day),
        ]
        for row in rows
    ]
    return table_of([*names, "$\na day"], cells, title="Local steps", folds=("codec", "reduce"))


def _local_name(row: LocalEstimate) -> str:
    return row.codec if row.reduce == "all" else f"{row.codec}, {row.reduce}"


def _verdict(rows: Sequence[Estimate], local_rows: Sequence[LocalEstimate]) -> list[str]:
    """Which way of training to take, and what to know of it."""
    lines = [
        f"{_local_name(row)}: the line is too slow for a round every {count_text(row.every, 'step')}; rounds "
        f"begin later, and steps do not "
        "wait"
        for row in local_rows
        if not row.fits
    ]
    step, local = _bests(rows, local_rows)
    if step is None or local is None:
        return lines
    if _is_worthwhile(step, local):
        line = (
            f"Reduce in every step, with {step.codec}: a step takes {_seconds(step.step_s)}, and {local.codec} local "
            f"steps {_seconds(local.step_s)}. Local steps cost quality."
        )
    else:
        line = (
            f"Local steps, {_local_name(local)}, every {local.every}: a step takes {_seconds(local.step_s)} in place "
            f"of {_seconds(step.step_s)} with {step.codec}. What they cost in quality: docs/explanation/local-steps.md"
        )
    return [*lines, line]


def _seconds(duration_s: float) -> str:
    return duration_text(duration_s, ".3g")


def _dollars(count: float) -> str:
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if count >= 100 * size:
            return f"{count / size:,.0f} {unit}"
    return f"{count:,.0f}"
