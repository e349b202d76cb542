"""`geocomm alerts` and `geocomm monitoring`: files for Prometheus, Alertmanager and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geocomm.cli.command_end import fail

app = typer.Typer()
_alerts = typer.Typer(name="alerts", help="Alerts of a run.", no_args_is_help=True)
app.add_typer(_alerts)


@_alerts.command()
def rules() -> None:
    """Print the alerts as a rules file of Prometheus.

    Example:

        geocomm alerts rules > geocomm-alerts.yml
    """
    from geocomm.observe.alerts.monitoring_files import rules_text

    typer.echo(rules_text(), nl=False)


@app.command()
def monitoring(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder, which is made.")],
    target: Annotated[
        str, typer.Option(help="Where Prometheus reaches geocomm dashboard.", metavar="HOST:PORT")
    ] = "localhost:8420",
) -> None:
    """Write files for Prometheus, Alertmanager and Grafana.

    Prometheus scrapes /metrics of geocomm dashboard, and has the rules of geocomm alerts rules. Grafana gets a
    dashboard. Existing files are kept, and the command fails.

    Example:

        geocomm monitoring monitoring
        prometheus --config.file monitoring/prometheus.yml
    """
    from geocomm.core.addresses import host_and_port
    from geocomm.observe.alerts.monitoring_files import monitoring_files

    host_and_port(target)
    files = {folder / name: text for name, text in monitoring_files(target).items()}
    for path in files:
        if path.exists():
            fail("monitoring", f"{path} is there already: name another folder")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail("monitoring", f"{error.filename}: {error.strerror}")
    for path in files:
        typer.echo(path)
