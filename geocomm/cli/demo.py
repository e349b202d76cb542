"""`geocomm demo`: what geocomm gains, on this machine, in about three minutes."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from geocomm.cli.command_end import fail
from geocomm.core.extras import install_command


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("demo")(demo)


def demo(
    rtt: Annotated[str, typer.Option(help="Round-trip time between the sites.")] = "100ms",
    rate: Annotated[str, typer.Option(help="Rate of each direction.")] = "200mbit",
    loss: Annotated[str, typer.Option(help="Loss per TCP segment.")] = "0.1%",
    steps: Annotated[int | None, typer.Option(min=4, help="Optimizer steps of each run.", show_default="10")] = None,
    secure: Annotated[
        bool, typer.Option("--secure", help="geocomm over TLS, with keys made for this run. Gloo has no encryption.")
    ] = False,
    keys: Annotated[
        Path | None, typer.Option(help="geocomm over TLS with these: a folder of geocomm keys, for site0 and site1.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the results; must not exist.", show_default="runs/demo-<time>")
    ] = None,
) -> None:
    """Train a small DeepSeek model over two emulated sites: on Gloo, and on geocomm in four ways.

    The ways of geocomm: exact, int8, balanced with error feedback, and local steps.

    Ends in a table and in a picture, OUT/demo.png. Exit status: 0; 1 where a run failed; 2 for a wrong option or a
    missing package; 125 where no WAN can be emulated.

    Example:

        geocomm demo
        geocomm demo --rtt 30ms --rate 500mbit --secure
    """
    missing = [name for name in ("deepspeed", "transformers", "yaml", "matplotlib") if not find_spec(name)]
    if missing:
        fail("demo", f"{', '.join(missing)} not installed; {install_command('train')}")
    from geocomm.bench.wan_bench import describe_link
    from geocomm.demo.demo_progress import DemoView
    from geocomm.demo.demo_run import DEFAULT_STEPS, SITE_NAMES, VARIANTS, DemoError, Outcome, run_variant
    from geocomm.demo.demo_table import draw, lateness_note, summary_table, write_summary
    from geocomm.emulator.emulated_keys import site_keys
    from geocomm.emulator.emulated_links import EmulatedLink, WanConfigError, WanError, link_changes
    from geocomm.emulator.emulated_wan import check_wan

    steps = steps or DEFAULT_STEPS
    folder = (out or Path("runs") / f"demo-{datetime.now():%Y%m%d-%H%M%S}").absolute()
    try:
        link = EmulatedLink(**link_changes(rtt=rtt, rate=rate, loss=loss))
        check_wan()
        folder.mkdir(parents=True)
    except FileExistsError:
        fail("demo", f"{folder} exists already")
    except (WanError, OSError) as error:
        fail("demo", str(error), 125 if isinstance(error, WanError) and not isinstance(error, WanConfigError) else 2)

    conditions = f"two sites, {describe_link(link)}{', geocomm over TLS' if secure or keys else ''}"
    output = Console()
    outcomes: list[Outcome] = []
    try:
        with site_keys(SITE_NAMES, keys, secure) as made, DemoView(VARIANTS, steps, conditions, output) as view:
            for variant in VARIANTS:
                outcomes.append(
                    run_variant(
                        variant,
                        folder / variant.folder,
                        link,
                        steps,
                        lambda progress, v=variant: view.update(v, progress),
                        made,
                    )
                )
    except (DemoError, WanError) as error:
        status = 2 if isinstance(error, WanConfigError) else 125 if isinstance(error, WanError) else 1
        fail("demo", str(error), status)

    sizes = outcomes[0].sizes
    conditions += (
        f"; {sizes['parameters'] / 1e6:.1f}M-parameter DeepSeek-V3 architecture, ZeRO-{sizes['zero_stage']}, CPU"
    )
    write_summary(outcomes, conditions, folder / "summary.json")
    draw(outcomes, conditions, folder / "demo.png")
    output.print()
    output.print(summary_table(outcomes))
    output.print(conditions, highlight=False, soft_wrap=True)
    note = lateness_note(outcomes)
    if note is not None:
        output.print(note, style="bold yellow", soft_wrap=True)
    output.print(f"picture: {folder / 'demo.png'}", highlight=False, soft_wrap=True)
