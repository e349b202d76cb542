"""The metrics of all sites at one target: sums per site and per pair of sites, so that their number stays small.

Ranks have endpoints of their own for the rest (`metrics.prometheus_endpoint`). A silent site has no metrics; when it
was heard last stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from geocomm._version import __version__
from geocomm.journal.run_state import SiteRecord, Standing
from geocomm.metrics.events import KINDS
from geocomm.observe.telemetry.last_reports import Life
from geocomm.observe.telemetry.metric_expressions import Labels, Samples
from geocomm.observe.telemetry.overview import Overview
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteState
from geocomm.observe.telemetry.store_folder import StoreFolder

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

SITE_GAUGES: tuple[tuple[str, str, Callable[[SiteState], float | None]], ...] = (
    ("train_step", "the last training step that all its ranks have ended", lambda site: site.step),
    ("train_steps_planned", "how many steps the run shall have", lambda site: site.of_steps),
    ("train_loss", "the mean of what its ranks said last", lambda site: site.loss),
    ("train_held_out_loss", "of its last evaluation", lambda site: site.held_out_loss),
    ("train_loss_least", "of its last three losses", lambda site: site.loss_least),
    ("train_loss_median", "of the 64 losses before", lambda site: site.loss_median),
    ("train_loss_spread", "of these, as a standard deviation", lambda site: site.loss_spread),
    ("train_ranks_not_finite", "ranks whose last loss is NaN or infinite", lambda site: site.ranks_not_finite),
    ("train_step_seconds", "the time of a step, of the last ones", lambda site: site.step_seconds),
    ("train_mean_step_seconds", "since its processes started", lambda site: site.mean_step_seconds),
    ("train_step_age_seconds", "since its last step ended; none once all has ended", lambda site: _step_age(site)),
    ("train_tokens_per_second", "of all its ranks", lambda site: site.tokens_per_second),
    ("train_exposed_ratio", "of its time, that ranks stood still for other sites", lambda site: site.exposed_share),
    ("train_checkpoint_age_seconds", "since its last one of a day", lambda site: site.checkpoint_age_seconds),
    ("train_checkpoint_interval_seconds", "between the last two", lambda site: site.checkpoint_interval_seconds),
    ("site_disk_free_bytes", "where its run folder is", lambda site: site.disk_free_bytes),
    ("site_disk_size_bytes", "of that disk", lambda site: site.disk_size_bytes),
    ("site_ranks", "how many ranks it has", lambda site: len(site.ranks)),
    ("site_ranks_reporting", "how many of them report", lambda site: site.ranks_reporting),
    ("site_egress_budget_dollars", "that its egress may cost a day", lambda site: site.egress_dollars_per_day),
    ("site_certificate_expiry_timestamp_seconds", "of its first to expire", lambda site: site.certificate_ends),
)
"""Name without prefix, help, value; with the label `site`. Not of a silent site."""

SITE_COUNTERS: tuple[tuple[str, str, Callable[[SiteState], float | None]], ...] = (
    ("train_rounds_not_finite", "rounds of local steps that left it out: NaN or Inf", lambda s: s.rounds_not_finite),
    ("site_egress_dollars", "what its bytes to other sites cost", lambda site: site.egress_dollars),
    ("site_data_waited_seconds", "that a rank waited for its data set", lambda site: site.data_waited_seconds),
    ("site_data_fetched_bytes", "of its data set, from buckets", lambda site: site.data_fetched_bytes),
    ("site_data_fetched_dollars", "what these cost", lambda site: site.data_fetched_dollars),
    ("site_reports", "reports that its ranks made", lambda site: site.reports),
    ("site_reports_dropped", "of these, not taken by its collector", lambda site: site.reports_dropped),
)

LINK_GAUGES: tuple[tuple[str, str, Callable[[LinkState], float | None]], ...] = (
    ("rate_bytes_per_second", "what it sends", lambda link: link.bytes_per_second),
    ("planned_rate_bytes_per_second", "what the link table says", lambda link: link.planned_bytes_per_second),
    ("busy_ratio", "of the time, that TCP had data which was not acknowledged", lambda link: link.busy_share),
    ("retransmitted_ratio", "of the bytes sent of late", lambda link: link.retransmitted_share),
    ("window_limited_ratio", "of busy time, for receive windows", lambda link: link.stalled_by_receiver_share),
    ("send_buffer_limited_ratio", "of busy time, for send buffers", lambda link: link.stalled_by_send_buffer_share),
    ("rtt_seconds", "the longest of the last heartbeats", lambda link: link.rtt_seconds),
    ("least_rtt_seconds", "the least ever", lambda link: link.least_rtt_seconds),
    ("streams", "connections", lambda link: link.streams),
    ("clock_offset_seconds", "the peer's time of day less the site's, the largest", lambda lk: lk.clock_offset_seconds),
    ("clock_error_seconds", "how wrong that may be", lambda link: link.clock_error_seconds),
)
"""Likewise of what a site sends another, with the labels `site` and `peer_site`."""

LINK_COUNTERS: tuple[tuple[str, str, Callable[[LinkState], float | None]], ...] = (
    ("sent_bytes", "since the ranks started", lambda link: link.bytes_sent),
    ("tcp_sent_bytes", "the same with what TCP sent again", lambda link: link.tcp_bytes_sent),
    ("retransmitted_bytes", "what TCP sent again", lambda link: link.retransmitted_bytes),
    ("outages", "times that a pair of ranks lost all connections", lambda link: link.outages),
    ("worst_pair_outages", "those of the pair that had most", lambda link: link.most_outages),
    ("outage_seconds", "how long these were", lambda link: link.outage_seconds),
    ("resumes", "connections made again", lambda link: link.resumes),
)

_WAITING_SHARE = 0.1
"""Where no site stands still for longer than this, nobody is waited for."""

_Values = Sequence[tuple[tuple[str, ...], float | None]]


@dataclass(frozen=True)
class MetricRow:
    """One metric with its values by label."""

    name: str
    """Without `_total`."""
    help: str
    labels: tuple[str, ...]
    values: _Values
    counter: bool = False


def metric_rows(seen: Overview, folder: StoreFolder) -> Iterator[MetricRow]:
    """All of them, but for the version."""
    site_names, link_names = ("site",), ("site", "peer_site")
    heard = [site for site in seen.sites if site.life is not Life.SILENT]
    yield MetricRow(
        "geocomm_site_last_report_timestamp_seconds",
        "when the rank that was heard longest ago reported (Unix time)",
        site_names,
        [((site.name,), seen.at - site.report_age_seconds) for site in seen.sites],
    )
    yield MetricRow(
        "geocomm_site_report_age_seconds",
        "since then; not of a site that has ended or left",
        site_names,
        [
            ((site.name,), site.report_age_seconds)
            for site in seen.sites
            if site.life is not Life.ENDED and not folder.has_left(site.name)
        ],
    )
    by_site = [((site.name,), site) for site in heard]
    yield from _rows("geocomm_", site_names, SITE_GAUGES, by_site)
    yield from _rows("geocomm_", site_names, SITE_COUNTERS, by_site, counter=True)
    yield MetricRow(
        "geocomm_train_pace_ratio",
        "time of a step without waits: the quickest site's by this one's; while sites wait for each other",
        site_names,
        _paces(heard),
    )
    settling = float(any(site.recent_events.get("codec_fallback") for site in heard))
    yield MetricRow(
        "geocomm_train_loss_settling",
        "1: a site took a finer codec within ten minutes, after which a loss may jump",
        site_names,
        [((site.name,), settling) for site in heard],
    )
    yield MetricRow(
        "geocomm_site_certificate_left_seconds",
        "until its first certificate expires",
        site_names,
        [((s.name,), None if s.certificate_ends is None else s.certificate_ends - seen.at) for s in heard],
    )
    yield MetricRow(
        "geocomm_site_recent_events",
        "events of the last ten minutes",
        ("site", "kind"),
        [((site.name, kind), site.recent_events.get(kind, 0)) for site in heard for kind in KINDS],
    )
    names = {site.name for site in heard}
    links = [((link.source, link.target), link) for link in seen.links if link.source in names]
    yield from _rows("geocomm_site_link_", link_names, LINK_GAUGES, links)
    yield from _rows("geocomm_site_link_", link_names, LINK_COUNTERS, links, counter=True)
    own = site_names if folder.site else ()  # the alert of that site's disk then tells of this one
    at = (folder.site,) if folder.site else ()
    yield MetricRow("geocomm_disk_free_bytes", "where the run store is", own, [(at, folder.free_bytes)])
    yield MetricRow("geocomm_disk_size_bytes", "of that disk", own, [(at, folder.size_bytes)])
    if folder.site:
        yield MetricRow(
            "geocomm_leader_in_doubt",
            "1: this site leads, and may not be the only one, or has not the journal that others have",
            (),
            [((), float(folder.is_in_doubt))],
        )
    if folder.members is not None:
        yield MetricRow(
            "geocomm_member_away",
            "1: a member of the elastic run that is away",
            site_names,
            [((member.name,), _is_away(member)) for member in folder.members],
        )
        yield MetricRow(
            "geocomm_member_dealt_tokens",
            "dealt to a member of an elastic run with --data, and not counted yet",
            site_names,
            [((name,), float(tokens)) for name, tokens in folder.dealt_tokens.items()],
        )
        yield MetricRow(
            "geocomm_snapshot_not_kept",
            "1: too few sites have the last snapshot of the elastic run yet",
            (),
            [((), float(folder.lacks_snapshot))],
        )


def _is_away(member: SiteRecord) -> float:
    return float(member.standing is Standing.AWAY)


def _step_age(site: SiteState) -> float | None:
    has_ended = site.step is not None and site.of_steps is not None and site.step >= site.of_steps - 1
    return None if has_ended or site.life is not Life.REPORTING else site.step_age_seconds


def _paces(sites: Sequence[SiteState]) -> _Values:
    own = {
        site.name: site.step_seconds * (1 - site.exposed_share)
        for site in sites
        if site.step_seconds is not None and site.exposed_share is not None
    }
    quickest = min(own.values(), default=0.0)
    if quickest <= 0 or max(site.exposed_share or 0.0 for site in sites) < _WAITING_SHARE:
        return []
    return [((name,), quickest / seconds) for name, seconds in own.items()]


def _rows(
    prefix: str,
    labels: tuple[str, ...],
    table: Any,
    of: Sequence[tuple[tuple[str, ...], Any]],
    *,
    counter: bool = False,
) -> Iterator[MetricRow]:
    for name, text, read in table:
        yield MetricRow(prefix + name, text, labels, [(values, read(one)) for values, one in of], counter)


def samples(seen: Overview, folder: StoreFolder) -> Samples:
    """The same as Prometheus keeps it: by name and labels."""
    found: dict[str, dict[Labels, float]] = {}
    for row in metric_rows(seen, folder):
        series = found.setdefault(row.name + ("_total" if row.counter else ""), {})
        for values, value in row.values:
            if value is not None:
                series[tuple(sorted(zip(row.labels, values, strict=True)))] = float(value)
    return found


def prometheus_text(seen: Overview, folder: StoreFolder, more: Sequence[MetricRow] = ()) -> bytes:
    """The text that Prometheus scrapes, with `more`. Needs the package prometheus-client."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Once([*metric_rows(seen, folder), *more]))
    return generate_latest(registry)


class _Once:
    """One picture, as a collector of prometheus_client."""

    def __init__(self, rows: list[MetricRow]) -> None:
        self._rows = rows

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

        build = InfoMetricFamily("geocomm_build", "the version that reads the run store")
        build.add_metric([], {"version": __version__})
        yield build
        for row in self._rows:
            kind = CounterMetricFamily if row.counter else GaugeMetricFamily
            family = kind(row.name, row.help, labels=row.labels)
            for values, value in row.values:
                if value is not None:
                    family.add_metric(values, value)
            yield family
