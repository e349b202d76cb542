"""The picture of a run at one moment: sums per site and per pair of sites, open rounds, last events.

The terminal view, the page and the metrics of all sites are drawn from it. Rates come from two reports of the same
process. None means that a value is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.core.options import Options, value_text
from geocomm.core.units import DAY_S
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS, LastReports, Life
from geocomm.observe.telemetry.overview_links import LinkState, link_states
from geocomm.observe.telemetry.overview_rounds import RoundState, round_states
from geocomm.observe.telemetry.overview_sites import EventState, SiteOverview, event_states, site_states
from geocomm.observe.telemetry.report import Report, mean, total
from geocomm.observe.telemetry.run_store import RunStore

_STANDSTILL_SECONDS, _STANDSTILL_STEPS = 10.0, 5.0
"""A run stands still where no step has ended for this many seconds, and for this multiple of a step's time. Chosen to
be seen on the page well before the alert TrainingStalled, which needs a minute."""


@dataclass(frozen=True)
class OptionState:
    """An option that some rank has not as by default."""

    name: str
    default: str
    values: dict[str, tuple[str, ...]]
    """Sites by value."""


@dataclass(frozen=True)
class Overview:
    """A run at one moment."""

    at: float
    """Unix seconds of the collector's clock."""
    sites: tuple[SiteOverview, ...]
    """By name."""
    links: tuple[LinkState, ...]
    """Both ways of each pair of sites of which an end is known; by source and target."""
    rounds: tuple[RoundState, ...]
    """Those under way, oldest first; then the last of each fragment that is over."""
    events: tuple[EventState, ...]
    """The events of the last day, newest first, at most 50."""
    options: tuple[OptionState, ...]
    """Those that are not as by default somewhere."""

    @property
    def step(self) -> int | None:
        """The last step of the site that is furthest."""
        return max((site.step for site in self.sites if site.step is not None), default=None)

    @property
    def of_steps(self) -> int | None:
        """How many steps the run shall have."""
        return max((site.of_steps for site in self.sites if site.of_steps is not None), default=None)

    @property
    def standstill_seconds(self) -> float | None:
        """Since any rank that has not ended has ended a step; None: the run goes on, or tells of no steps."""
        sites = [site for site in self.sites if site.life is not Life.ENDED]
        ages = [rank.step_age_seconds for site in sites for rank in site.ranks if rank.step_age_seconds is not None]
        pace = max((site.mean_step_seconds or 0.0 for site in sites), default=0.0)
        age = min(ages, default=0.0)
        return age if age > max(_STANDSTILL_SECONDS, _STANDSTILL_STEPS * pace) else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of all sites."""
        return total(site.tokens_per_second for site in self.sites)

    @property
    def loss(self) -> float | None:
        """The mean of the sites."""
        return mean(site.loss for site in self.sites if site.life is not Life.SILENT)

    @property
    def held_out_loss(self) -> float | None:
        """The mean of the sites' last evaluations."""
        return mean(site.held_out_loss for site in self.sites if site.life is not Life.SILENT)

    @property
    def seconds_left(self) -> float | None:
        """Until the last step, at the pace of the slowest site that reports."""
        step, of_steps = self.step, self.of_steps
        pace = max((site.step_seconds for site in self.sites if site.step_seconds is not None), default=None)
        return None if step is None or of_steps is None or pace is None else max(0, of_steps - step) * pace


def moment(store: RunStore, now: float) -> float:
    """The moment to look at: `now`, or the last report of a run that says no more, to see what was so then."""
    span = store.span()
    return now if span is None or now - span[1] <= SILENT_SECONDS else span[1]


def overview(store: RunStore, at: float, since: float = 0.0) -> Overview:
    """The picture at `at`, in Unix seconds: now, or any moment that the store still has. since: without ranks that
    have not reported since then."""
    seen = LastReports(store, at, since)
    return Overview(
        at,
        tuple(site_states(store, seen)),
        tuple(link_states(seen)),
        tuple(round_states(store, seen)),
        tuple(event_states(store.events(at - DAY_S, at))),
        tuple(_option_states(received.report for received in seen.last)),
    )


def _option_states(reports: Iterable[Report]) -> Iterator[OptionState]:
    """Such options, in the order in which `Options` has them. Ranks that do not say theirs are left out."""
    told = [(report.site, report.options) for report in reports if report.options is not None]
    names = {name for _, options in told for name in options}
    for name, field in Options.model_fields.items():
        if name not in names:
            continue
        default = value_text(field.default)
        sites: dict[str, set[str]] = {}
        for site, options in told:
            sites.setdefault(options.get(name, default), set()).add(site)
        yield OptionState(name, default, {value: tuple(sorted(sites[value])) for value in sorted(sites)})
