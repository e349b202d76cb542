"""`geocomm top`: a run in the terminal."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from geocomm.cli.command_end import TelemetryFolder, open_store, standstill_text
from geocomm.core.console import plain_console, table_of
from geocomm.core.units import count_text, duration_text, large_text

if TYPE_CHECKING:
    from rich.table import Table

    from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis
    from geocomm.observe.telemetry.overview import Overview
    from geocomm.observe.telemetry.overview_links import LinkState
    from geocomm.observe.telemetry.overview_rounds import RoundState
    from geocomm.observe.telemetry.overview_sites import EventState, SiteOverview
    from geocomm.observe.telemetry.run_store import RunStore
    from geocomm.observe.telemetry.store_folder import StoreFolder

_EVERY_S = 1.0
_VERDICT_EVERY_S = 15.0
_LATE_S = 5.0
_MOST_SHOWN = 8

app = typer.Typer()


@app.command()
def top(
    folder: TelemetryFolder = Path(),
    once: Annotated[bool, typer.Option("--once", help="Print one picture, and end.")] = False,
) -> None:
    """Show a run in the terminal: sites, links, rounds of local steps, the first verdict of geocomm why, and events.

    Ctrl+C ends it. exposed: share of the time for which ranks stood still for other sites. busy: in which a link had
    data on its way. held back: of that, by the receivers' windows and the send buffers here. sent again: of what TCP
    sent. dealt: tokens of a run's data that the site reads next. waited, fetched, cost: for its data set.

    Example:

        geocomm top telemetry
    """
    store = open_store(folder)
    console = plain_console()
    if once:
        from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis

        console.print(_picture(store, _verdict(store, LiveDiagnosis())))
        return
    verdicts = _Verdicts(folder)
    with contextlib.suppress(KeyboardInterrupt), Live(_picture(store, ""), console=console, screen=True) as live:
        while True:
            time.sleep(_EVERY_S)
            live.update(_picture(store, verdicts.last), refresh=True)


class _Verdicts:
    """What `_verdict` says every now and then, in a thread of its own: it reads much."""

    def __init__(self, folder: Path) -> None:
        self.last = ""
        self._folder = folder
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        from geocomm.observe.diagnosis.bottleneck import LiveDiagnosis
        from geocomm.observe.telemetry.run_store import RunStore

        live = LiveDiagnosis()
        while True:
            # A store that is busy has an answer the next time.
            try:
                with contextlib.suppress(sqlite3.Error), contextlib.closing(RunStore(self._folder)) as store:
                    self.last = _verdict(store, live)
            except Exception as error:  # the thread goes on
                self.last = f"What is slow is not known, by an error of this program: {error!r}"
            time.sleep(_VERDICT_EVERY_S)


def _verdict(store: RunStore, live: LiveDiagnosis) -> str:
    from geocomm.observe.diagnosis.verdict import headline

    first = live.look(store).verdict
    return f"{headline(first)} {first.fix}"


def _picture(store: RunStore, verdict: str) -> Group:
    from geocomm.observe.telemetry.overview import moment, overview
    from geocomm.observe.telemetry.store_folder import StoreFolder

    now = time.time()
    seen = overview(store, moment(store, now))
    folder = StoreFolder.look(store.path.parent)
    parts: list[RenderableType] = [_heading(seen, folder, now), "", _sites(seen, folder)]
    if seen.standstill_seconds is not None:
        parts.insert(0, Text(standstill_text(seen.standstill_seconds, store.path.parent), "bold red"))
        verdict = f"Before that: {verdict}" if verdict else ""
    parts += ["", _links(seen)] if seen.links else []
    parts += ["", _rounds(seen)] if seen.rounds else []
    parts += ["", verdict] if verdict else []
    parts += ["", _events(seen, now)] if seen.events else []
    return Group(*parts)


def _heading(seen: Overview, folder: StoreFolder, now: float) -> Text:
    step = "" if seen.step is None else f"step {seen.step}" + ("" if seen.of_steps is None else f" of {seen.of_steps}")
    left = "" if not seen.seconds_left else f"{duration_text(seen.seconds_left)} left"
    loss = "" if seen.loss is None else f"loss {seen.loss:.4f}"
    tokens = "" if seen.tokens_per_second is None else f"{seen.tokens_per_second:,.0f} tokens/s"
    of_pass = "" if folder.left_tokens is None else f"{large_text(folder.left_tokens)} tokens left of this pass"
    again = f"{large_text(repeated)} tokens read again" if (repeated := folder.repeated_tokens) else ""
    line = Text(", ".join(filter(None, (step, left, loss, tokens, of_pass, again))), "bold")
    if now - seen.at > 1:
        said = Text(f"The last report came {duration_text(now - seen.at)} ago. All was so then.", "red")
        return Text("\n").join((line, said))
    return line


def _sites(seen: Overview, folder: StoreFolder) -> Table:
    columns = ("site", "ranks", "", "step", "ago", "s/step", "tokens/s", "exposed", "loss", "MB sent", "heard")
    of_data = ("dealt", "waited", "fetched", "cost")
    rows = [(*_site(site), *_data(site, folder)) for site in seen.sites]
    return table_of((*columns, *of_data), rows)


def _data(site: SiteOverview, folder: StoreFolder) -> tuple[str, ...]:
    dealt, fetched = folder.dealt_tokens.get(site.name), site.data_fetched_bytes
    return (
        "-" if dealt is None else large_text(dealt),
        "-" if site.data_waited_seconds is None else duration_text(site.data_waited_seconds),
        "-" if fetched is None else f"{fetched / 1e6:,.1f} MB",
        "-" if not site.data_fetched_dollars else f"${site.data_fetched_dollars:,.2f}",
    )


def _site(site: SiteOverview) -> tuple[str | Text, ...]:
    from geocomm.observe.telemetry.last_reports import Life

    color = {Life.REPORTING: "green", Life.SILENT: "red", Life.ENDED: "dim"}[site.life]
    heard = f"{site.report_age_seconds:.0f} s"
    return (
        site.name,
        f"{site.ranks_reporting}/{len(site.ranks)}",
        Text(site.life, color),
        _number(site.step, "d"),
        "-" if site.step_age_seconds is None else duration_text(site.step_age_seconds),
        _number(site.step_seconds, ".3g"),
        _number(site.tokens_per_second, ",.0f"),
        _percent(site.exposed_share),
        _number(site.loss, ".4f"),
        _number(site.bytes_sent / 1e6, ",.1f"),
        Text(heard, "red") if site.life is not Life.ENDED and site.report_age_seconds > _LATE_S else heard,
    )


def _links(seen: Overview) -> Table:
    columns = ("link", "Mbit/s", "planned", "MB", "ms", "least", "busy", "held back", "sent again", "outages", "over")
    return table_of(columns, [_link(link) for link in seen.links], text=("over",))


def _link(link: LinkState) -> tuple[str | Text, ...]:
    held = (_percent(link.stalled_by_receiver_share), _percent(link.stalled_by_send_buffer_share))
    outages = f"{link.outages} ({duration_text(link.outage_seconds)})" if link.outages else "0"
    if link.is_down:
        outages += ", down"
    over = filter(None, (link.transport, link.congestion_control, link.cipher and "TLS"))
    return (
        f"{link.source} to {link.target}",
        _number(None if link.bytes_per_second is None else link.bytes_per_second * 8 / 1e6, ",.1f"),
        _number(None if link.planned_bytes_per_second is None else link.planned_bytes_per_second * 8 / 1e6, ",.0f"),
        _number(link.bytes_sent / 1e6, ",.1f"),
        _number(None if link.rtt_seconds is None else link.rtt_seconds * 1e3, ".3g"),
        _number(None if link.least_rtt_seconds is None else link.least_rtt_seconds * 1e3, ".3g"),
        _percent(link.busy_share),
        "-" if held == ("-", "-") else " ".join(held),
        _percent(link.retransmitted_share, ".2f"),
        Text(outages, "red") if link.outages or link.is_down else outages,
        f"{link.streams} {', '.join(over)}",
    )


def _rounds(seen: Overview) -> Table:
    columns = ("fragment", "round", "", "for", "waits for", "counted")
    return table_of(columns, [_round(state) for state in seen.rounds[:_MOST_SHOWN]], text=("waits for", "counted"))


def _round(state: RoundState) -> tuple[str, ...]:
    return (
        str(state.fragment),
        str(state.round),
        state.phase,
        "-" if state.age_seconds is None else duration_text(state.age_seconds),
        ", ".join(state.waits_for) or "-",
        ", ".join(state.counted) or "-",
    )


def _events(seen: Overview, now: float) -> Table:
    rows = [_event(event, now) for event in seen.events[:_MOST_SHOWN]]
    return table_of(("event", "ago", "at"), rows, text=("at",), folds=("event",))


def _event(event: EventState, now: float) -> tuple[str, ...]:
    from geocomm.metrics.events import event_text

    ranks = f"rank {event.ranks[0]}" if len(event.ranks) == 1 else count_text(len(event.ranks), "rank")
    return event_text(event.kind, event.fields), duration_text(now - event.at), f"{event.site}, {ranks}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _percent(share: float | None, form: str = ".0f") -> str:
    return "-" if share is None else f"{share * 100:{form}} %"
