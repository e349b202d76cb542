"""`geocomm demo`: what geocomm gains, on this machine, in about three minutes."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import SecureOption, SiteKeysOption, fail, say
from geocomm.core.console import plain_console
from geocomm.core.installation import install_command

if TYPE_CHECKING:
    from geocomm.lab.emulator.emulated_links import EmulatedLink

app = typer.Typer()


@app.command()
def demo(
    rtt: Annotated[str, typer.Option(help="Round-trip time between the sites.")] = "100ms",
    rate: Annotated[str, typer.Option(help="Rate of each direction.")] = "200mbit",
    loss: Annotated[str, typer.Option(help="Loss per TCP segment.")] = "0.1%",
    steps: Annotated[
        int | None,
        typer.Option(min=4, help="Optimizer steps of each run. Default: 10; with --elastic 160, with --weights 8."),
    ] = None,
    secure: SecureOption = False,
    keys: SiteKeysOption = None,
    elastic: Annotated[
        bool, typer.Option("--elastic", help="Three sites, of which one is killed and comes back. Always over TLS.")
    ] = False,
    weights: Annotated[
        bool, typer.Option("--weights", help="Three sites: one trains, two follow its weights and answer. Over TLS.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="New folder of the results. Default: runs/demo-<time>.")] = None,
) -> None:
    """Train a small DeepSeek model over two emulated sites: on Gloo, and on geocomm in four ways.

    The ways of geocomm: exact, int8, balanced with error feedback, and local steps. With --elastic: train it over three
    sites with local steps, kill one and start it again. Ends in a table and a picture, OUT/demo.png.

    With --weights: train a larger one at one site, publish its weights after each step, and answer by them at two
    others. Ends in a table of bytes and seconds, beside those of full copies.

    Where no WAN can be emulated (`geocomm wan`) the sites have loopback between them, with TLS: bytes and losses are
    the same, and the table says what the line would take at least. --elastic needs the emulated WAN.

    Example:

        geocomm demo
        geocomm demo --elastic
        geocomm demo --weights
    """
    if elastic and weights:
        fail("demo", "--elastic and --weights are two demos: name one")
    needed = {"train": ("deepspeed", "transformers", "yaml", "matplotlib")}
    if weights:
        needed = {"train": ("transformers", "yaml"), "serve": ("fastapi", "uvicorn", "openai", "accelerate")}
    for extra, names in needed.items():
        if missing := [name for name in names if not find_spec(name)]:
            fail("demo", f"{', '.join(missing)} not installed; {install_command(extra)}")
    from geocomm.lab.bench.wan_bench import describe_link
    from geocomm.lab.demo.demo_run import (
        DEFAULT_STEPS,
        SITE_NAMES,
        VARIANTS,
        DemoResult,
        run_variant,
        telemetry,
    )
    from geocomm.lab.demo.demo_table import DemoView, draw, lateness_note, loopback_note, summary_table, write_summary
    from geocomm.lab.demo.elastic_run import LEAST_STEPS
    from geocomm.lab.emulator.emulated_keys import site_keys
    from geocomm.lab.emulator.emulated_links import EmulatedLink, WanUnavailableError, link_changes
    from geocomm.lab.emulator.emulated_wan import check_wan

    if elastic and steps is not None and steps < LEAST_STEPS:
        fail("demo", f"--steps {steps}: --elastic takes {LEAST_STEPS} or more")
    folder = (out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}").absolute()
    try:
        link = EmulatedLink(**link_changes(rtt=rtt, rate=rate, loss=loss))
        if folder.exists():
            fail("demo", f"{folder} exists already")
        over_loopback = False
        try:
            check_wan()
        except WanUnavailableError as error:
            if elastic:
                raise WanUnavailableError(f"{error}. Without --elastic the demo trains over loopback") from error
            over_loopback = True
            say(f"{error}. So the sites are on loopback: seconds are not a WAN's", "bold yellow", err=True)
        folder.mkdir(parents=True)
    except OSError as error:
        fail("demo", str(error))

    if elastic:
        _elastic(folder, link, steps, keys)
        return
    if weights:
        _weights(folder, link, steps, keys, over_loopback=over_loopback)
        return
    steps = steps or DEFAULT_STEPS
    secure = secure or over_loopback  # other users of this machine can connect to it
    between = "loopback in place of a WAN" if over_loopback else describe_link(link)
    conditions = f"two sites, {between}{', geocomm over TLS' if secure or keys else ''}"
    outcomes: list[DemoResult] = []
    with (
        site_keys(SITE_NAMES, keys, secure) as made,
        DemoView(VARIANTS, steps, conditions, plain_console()) as view,
    ):
        for variant in VARIANTS:
            update = partial(view.update, variant)
            outcomes.append(
                run_variant(variant, folder / variant.folder, link, steps, update, made, over_loopback=over_loopback)
            )

    sizes = outcomes[0].sizes
    conditions += (
        f"; {sizes['parameters'] / 1e6:.1f}M-parameter DeepSeek-V3 architecture, ZeRO-{sizes['zero_stage']}, CPU"
    )
    write_summary(outcomes, conditions, folder / "summary.json")
    draw(outcomes, conditions, folder / "demo.png")
    say("")
    say(summary_table(outcomes))
    say(conditions)
    note = loopback_note(link) if over_loopback else lateness_note(outcomes)
    if note is not None:
        say(note, "bold yellow", wrap=True)
    say(f"picture: {folder / 'demo.png'}")
    page = telemetry(folder / VARIANTS[-1].folder)
    say(f"the last run as a page: geocomm dashboard {page}")


def _elastic(folder: Path, link: EmulatedLink, steps: int | None, keys: Path | None) -> None:
    """The demo of an elastic run, in a folder that is there."""
    from geocomm.lab.bench.wan_bench import describe_link
    from geocomm.lab.demo.demo_table import lateness_text
    from geocomm.lab.demo.elastic_picture import draw_elastic, told, write_elastic_summary
    from geocomm.lab.demo.elastic_run import DEFAULT_STEPS, SITE_NAMES, STEP_S, run_elastic_demo
    from geocomm.lab.emulator.emulated_keys import site_keys
    from geocomm.lab.emulator.emulated_links import WanConfigError

    begun = time.monotonic()
    conditions = f"three sites, {describe_link(link)}, TLS; a step each {STEP_S:g} s"
    say(conditions)

    def tell(event: str) -> None:
        say(f"{time.monotonic() - begun:5.0f} s  {event}")

    with site_keys(SITE_NAMES, keys, secure=True) as made:
        if made is None:
            raise WanConfigError("keys: none were made")
        run = run_elastic_demo(folder, link, steps or DEFAULT_STEPS, made, tell)
    conditions += f"; {run.parameters / 1e6:.1f}M-parameter DeepSeek-V3 architecture, CPU"
    write_elastic_summary(run, conditions, folder / "summary.json")
    draw_elastic(run, conditions, folder / "demo.png")
    say("")
    for line in told(run):
        say(line)
    say(conditions)
    note = lateness_text([run.wan])
    if note is not None:
        say(note, "bold yellow")
    say(f"picture: {folder / 'demo.png'}")
    say(f"the run as a page: geocomm dashboard {folder / SITE_NAMES[0]}")


def _weights(folder: Path, link: EmulatedLink, steps: int | None, keys: Path | None, *, over_loopback: bool) -> None:
    """The demo of weights that others follow, in a folder that is there."""
    from geocomm.lab.bench.wan_bench import describe_link
    from geocomm.lab.demo.demo_table import lateness_text
    from geocomm.lab.demo.weights_run import (
        DEFAULT_STEPS,
        FOLLOWERS,
        SITE_NAMES,
        STEP_S,
        run_weights_demo,
        told,
        weights_table,
        write_weights_summary,
    )
    from geocomm.lab.emulator.emulated_keys import site_keys
    from geocomm.lab.emulator.emulated_links import WanConfigError

    begun = time.monotonic()
    between = "loopback in place of a WAN" if over_loopback else describe_link(link)
    conditions = f"three sites, {between}, TLS; a step each {STEP_S:g} s"
    say(conditions)

    def tell(event: str) -> None:
        say(f"{time.monotonic() - begun:5.0f} s  {event}")

    with site_keys(SITE_NAMES, keys, secure=True, readers=FOLLOWERS) as made:
        if made is None:
            raise WanConfigError("keys: none were made")
        run = run_weights_demo(folder, link, steps or DEFAULT_STEPS, made, tell, over_loopback=over_loopback)
    conditions += f"; {run.parameters / 1e6:.1f}M-parameter DeepSeek-V3 architecture, bfloat16, CPU"
    write_weights_summary(run, link, conditions, folder / "summary.json")
    say("")
    say(weights_table(run, link))
    for line in told(run):
        say(line)
    say(conditions)
    if run.wan is not None and (note := lateness_text([run.wan])) is not None:
        say(note, "bold yellow")
