"""The metrics of all sites at one target: sums per site and per pair of sites, so that their number stays small.

Ranks have endpoints of their own for the rest (`metrics.prometheus_endpoint`). A silent site has no metrics; when it
was heard last stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from geocomm._version import __version__
from geocomm.elastic.journal.run_state import Standing
from geocomm.metrics.events import KINDS
from geocomm.metrics.metric_rows import MetricRow
from geocomm.metrics.own_counters import COUNTERS
from geocomm.metrics.prometheus_endpoint import RowCollector
from geocomm.observe.telemetry.last_reports import Life
from geocomm.observe.telemetry.metric_expressions import Labels, Samples
from geocomm.observe.telemetry.overview import Overview
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.store_folder import StoreFolder

SITE_GAUGES: tuple[tuple[str, str, Callable[[SiteOverview], float | None]], ...] = (
    ("train_step", "last training step that all ranks of the site have ended", lambda s: s.step),
    ("train_steps_planned", "training steps that the run shall have", lambda s: s.of_steps),
    ("train_loss", "mean of the losses that the site's ranks reported last", lambda s: s.loss),
    ("train_held_out_loss", "loss of the site's last evaluation", lambda s: s.held_out_loss),
    ("train_loss_least", "least of the site's last three losses", lambda s: s.loss_least),
    ("train_loss_median", "median of the site's 64 losses before the last three", lambda s: s.loss_median),
    ("train_loss_spread", "standard deviation of the 64 losses before the last three", lambda s: s.loss_spread),
    ("train_ranks_not_finite", "ranks whose last loss is NaN or infinite", lambda s: s.ranks_not_finite),
    ("train_step_seconds", "time of a step, over the last ones", lambda s: s.step_seconds),
    ("train_mean_step_seconds", "time of a step since the site's processes started", lambda s: s.mean_step_seconds),
    ("train_step_age_seconds", "time since the last step; none once all have ended", lambda s: _step_age(s)),
    ("train_tokens_per_second", "tokens per second of all ranks of the site", lambda s: s.tokens_per_second),
    ("train_exposed_ratio", "share of the time that ranks stood still for other sites", lambda s: s.exposed_share),
    ("train_checkpoint_age_seconds", "time since the last checkpoint of a day", lambda s: s.checkpoint_age_seconds),
    ("train_checkpoint_interval_seconds", "time between two checkpoints", lambda s: s.checkpoint_interval_seconds),
    ("site_disk_free_bytes", "free bytes of the disk with the site's run folder", lambda s: s.disk_free_bytes),
    ("site_disk_size_bytes", "size of the disk with the site's run folder", lambda s: s.disk_size_bytes),
    ("site_ranks", "ranks of the site", lambda s: len(s.ranks)),
    ("site_ranks_reporting", "ranks of the site that report", lambda s: s.ranks_reporting),
    ("site_egress_budget_dollars", "dollars that the site's egress may cost a day", lambda s: s.egress_dollars_per_day),
    ("site_certificate_expiry_timestamp_seconds", "Unix time of the first expiry", lambda s: s.certificate_ends),
)
"""Name without prefix, help, value; with the label `site`. Not of a silent site."""

SITE_COUNTERS: tuple[tuple[str, str, Callable[[SiteOverview], float | None]], ...] = (
    ("train_rounds_not_finite", "rounds of local steps without the site: NaN or Inf", lambda s: s.rounds_not_finite),
    ("site_egress_dollars", "cost of the site's bytes to other sites", lambda s: s.egress_dollars),
    ("site_data_waited_seconds", "time that a rank waited for the data set", lambda s: s.data_waited_seconds),
    ("site_data_fetched_bytes", "bytes of the data set fetched from buckets", lambda s: s.data_fetched_bytes),
    ("site_data_fetched_dollars", "cost of what the site fetched from buckets", lambda s: s.data_fetched_dollars),
    ("site_reports", "reports that the site's ranks made", lambda s: s.reports),
    ("site_reports_dropped", "reports of the site's ranks that never came to the run store", lambda s: s.reports_lost),
)

LINK_GAUGES: tuple[tuple[str, str, Callable[[LinkState], float | None]], ...] = (
    ("rate_bytes_per_second", "rate at which the site sends the other", lambda lk: lk.bytes_per_second),
    ("planned_rate_bytes_per_second", "rate that the link table has", lambda lk: lk.planned_bytes_per_second),
    ("busy_ratio", "share of the time that TCP had data which was not acknowledged", lambda lk: lk.busy_share),
    ("retransmitted_ratio", "share of the last bytes that TCP sent again", lambda lk: lk.retransmitted_share),
    ("window_limited_ratio", "share of busy time, for receive windows", lambda lk: lk.stalled_by_receiver_share),
    ("send_buffer_limited_ratio", "share of busy time, for send buffers", lambda lk: lk.stalled_by_send_buffer_share),
    ("rtt_seconds", "longest round trip of the last heartbeats", lambda lk: lk.rtt_seconds),
    ("least_rtt_seconds", "least round trip ever", lambda lk: lk.least_rtt_seconds),
    ("streams", "connected streams", lambda lk: lk.streams),
    ("clock_offset_seconds", "the peer's time of day less the site's, the largest", lambda lk: lk.clock_offset_seconds),
    ("clock_error_seconds", "how wrong the clock offset may be", lambda lk: lk.clock_error_seconds),
)
"""Gauges of what a site sends another, in the same form, with the labels `site` and `peer_site`."""

LINK_COUNTERS: tuple[tuple[str, str, Callable[[LinkState], float | None]], ...] = (
    ("sent_bytes", "bytes sent since the ranks started", lambda lk: lk.bytes_sent),
    ("tcp_sent_bytes", "bytes sent since the ranks started, repeats of TCP included", lambda lk: lk.tcp_bytes_sent),
    ("retransmitted_bytes", "bytes that TCP sent again", lambda lk: lk.retransmitted_bytes),
    ("outages", "times that a pair of ranks lost all connections", lambda lk: lk.outages),
    ("worst_pair_outages", "outages of the pair of ranks that had most", lambda lk: lk.most_outages),
    ("outage_seconds", "time of all outages", lambda lk: lk.outage_seconds),
    ("resumes", "connections made again", lambda lk: lk.resumes),
)

_WAITING_SHARE = 0.1
"""Where no site stands still for a larger share of the time, nobody is waited for: as `geocomm why` has it."""


def metric_rows(seen: Overview, folder: StoreFolder) -> Iterator[MetricRow]:
    """All of them, but for the version."""
    heard = [site for site in seen.sites if site.life is not Life.SILENT]
    gone = [site for site in seen.sites if site.life is Life.ENDED or folder.has_left(site.name)]
    yield _of_sites(
        "site_last_report_timestamp_seconds",
        "time at which the rank that was heard longest ago reported (Unix time)",
        {site.name: seen.at - site.report_age_seconds for site in seen.sites},
    )
    yield _of_sites(
        "site_report_age_seconds",
        "time since the rank that was heard longest ago reported; not of a site that has ended or left",
        {site.name: site.report_age_seconds for site in seen.sites if site not in gone},
    )
    by_site = [((site.name,), site) for site in heard]
    yield from _rows("geocomm_", ("site",), SITE_GAUGES, by_site)
    yield from _rows("geocomm_", ("site",), SITE_COUNTERS, by_site, counter=True)
    yield _of_sites(
        "train_pace_ratio",
        "time of a step without waits, the quickest site's by this site's; while sites wait for each other",
        _paces(heard),
    )
    settling = float(any(site.recent_events.get("codec_fallback") for site in heard))
    yield _of_sites(
        "train_loss_settling",
        "1: a site took a finer codec within ten minutes, after which a loss may jump",
        {site.name: settling for site in heard},
    )
    yield _of_sites(
        "site_certificate_left_seconds",
        "time until the site's first certificate expires",
        {site.name: None if site.certificate_ends is None else site.certificate_ends - seen.at for site in heard},
    )
    yield MetricRow(
        "geocomm_site_recent_events",
        "events of the site in the last ten minutes",
        ("site", "kind"),
        [((site.name, kind), site.recent_events.get(kind, 0)) for site in heard for kind in KINDS],
    )
    names = {site.name for site in heard}
    links = [((link.source, link.target), link) for link in seen.links if link.source in names]
    yield from _rows("geocomm_site_link_", ("site", "peer_site"), LINK_GAUGES, links)
    yield from _rows("geocomm_site_link_", ("site", "peer_site"), LINK_COUNTERS, links, counter=True)
    own = ("site",) if folder.site else ()  # the alert of that site's disk then tells of this one
    at = (folder.site,) if folder.site else ()
    yield MetricRow("geocomm_disk_free_bytes", "free bytes of the run store's disk", own, [(at, folder.free_bytes)])
    yield MetricRow("geocomm_disk_size_bytes", "size of the run store's disk", own, [(at, folder.size_bytes)])
    for name, text in COUNTERS.items():
        yield MetricRow(f"geocomm_{name}", text, own, [(at, folder.counters.get(name))], counter=True)
    if folder.site:
        yield _of_run(
            "leader_in_doubt",
            "1: this site leads, and may not be the only one, or has not the journal that others have",
            float(folder.is_in_doubt),
        )
    yield _of_sites(
        "member_dealt_tokens",
        "tokens dealt to a member of an elastic run with --data, and not counted yet",
        folder.dealt_tokens,
    )
    yield _of_run(
        "data_left_tokens",
        "tokens left of this pass over the run's data, dealt or not; at the leader",
        folder.left_tokens,
    )
    if folder.members is not None:
        away = {member.name: float(member.standing is Standing.AWAY) for member in folder.members}
        yield _of_sites("member_away", "1: a member of the elastic run that is away", away)
        yield _of_run(
            "snapshot_not_kept",
            "1: too few sites have the last snapshot of the elastic run yet",
            float(folder.lacks_snapshot),
        )


def _of_sites(name: str, text: str, values: Mapping[str, float | None]) -> MetricRow:
    return MetricRow(f"geocomm_{name}", text, ("site",), [((site,), value) for site, value in values.items()])


def _of_run(name: str, text: str, value: float | None) -> MetricRow:
    return MetricRow(f"geocomm_{name}", text, (), [((), value)])


def _step_age(site: SiteOverview) -> float | None:
    has_ended = site.step is not None and site.of_steps is not None and site.step >= site.of_steps - 1
    return None if has_ended or site.life is not Life.REPORTING else site.step_age_seconds


def _paces(sites: Sequence[SiteOverview]) -> dict[str, float]:
    own = {
        site.name: site.step_seconds * (1 - site.exposed_share)
        for site in sites
        if site.step_seconds is not None and site.exposed_share is not None
    }
    quickest = min(own.values(), default=0.0)
    if quickest <= 0 or max(site.exposed_share or 0.0 for site in sites) < _WAITING_SHARE:
        return {}
    return {name: quickest / seconds for name, seconds in own.items()}


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
    """The metrics as Prometheus keeps them: by name and labels."""
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

    build = MetricRow("geocomm_build_info", "the version that reads the run store", ("version",), [((__version__,), 1)])
    registry = CollectorRegistry()
    registry.register(RowCollector(lambda: [build, *metric_rows(seen, folder), *more]))
    return generate_latest(registry)
