"""The metrics of all sites at one target: sums per site and per pair of sites, so that their number stays small.

Ranks have endpoints of their own for the rest (`metrics.prometheus_endpoint`). A silent site has no gauges; when
it was heard last stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from geocomm._version import __version__
from geocomm.telemetry.overview import Life, LinkState, Overview, SiteState

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

SITE_GAUGES: tuple[tuple[str, str, Callable[[SiteState], float | None]], ...] = (
    ("train_step", "the last training step that all its ranks have ended", lambda site: site.step),
    ("train_steps_planned", "how many steps the run shall have", lambda site: site.of_steps),
    ("train_loss", "the mean of what its ranks said last", lambda site: site.loss),
    ("train_step_seconds", "the time of a step, of the last ones", lambda site: site.step_seconds),
    ("train_step_age_seconds", "since its last step ended", lambda site: site.step_age_seconds),
    ("train_tokens_per_second", "of all its ranks", lambda site: site.tokens_per_second),
    ("train_exposed_ratio", "of its time, that ranks stood still for other sites", lambda site: site.exposed_share),
    ("site_ranks", "how many ranks it has", lambda site: len(site.ranks)),
    ("site_ranks_reporting", "how many of them report", lambda site: site.ranks_reporting),
)
"""Name without prefix, help, value; with the label `site`. Not of a silent site."""

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
)
"""Likewise of what a site sends another, with the labels `site` and `peer_site`."""

LINK_COUNTERS: tuple[tuple[str, str, Callable[[LinkState], float | None]], ...] = (
    ("sent_bytes", "since the ranks started", lambda link: link.bytes_sent),
    ("outages", "times that a pair of ranks lost all connections", lambda link: link.outages),
    ("outage_seconds", "how long these were", lambda link: link.outage_seconds),
    ("resumes", "connections made again", lambda link: link.resumes),
)


def families(seen: Overview) -> Iterator[Family]:
    """All of it, for prometheus_client."""
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    build = InfoMetricFamily("geocomm_build", "the version that reads the run store")
    build.add_metric([], {"version": __version__})
    yield build
    heard = [site for site in seen.sites if site.life is not Life.SILENT]
    last = GaugeMetricFamily(
        "geocomm_site_last_report_timestamp_seconds",
        "when the rank that was heard longest ago reported (Unix time)",
        labels=["site"],
    )
    for site in seen.sites:
        last.add_metric([site.name], seen.at - site.report_age_seconds)
    yield last
    yield from _gauges("geocomm_", ["site"], SITE_GAUGES, [((site.name,), site) for site in heard])
    names = {site.name for site in heard}
    links = [((link.source, link.target), link) for link in seen.links if link.source in names]
    yield from _gauges("geocomm_site_link_", ["site", "peer_site"], LINK_GAUGES, links)
    yield from _gauges("geocomm_site_link_", ["site", "peer_site"], LINK_COUNTERS, links, counter=True)


def _gauges(
    prefix: str, labels: list[str], rows: Any, of: list[tuple[tuple[str, ...], Any]], *, counter: bool = False
) -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if counter else GaugeMetricFamily
    for name, text, read in rows:
        family = kind(prefix + name, text, labels=labels)
        for values, one in of:
            if (value := read(one)) is not None:
                family.add_metric(values, value)
        yield family


def prometheus_text(seen: Overview) -> bytes:
    """The text that Prometheus scrapes. Needs the package prometheus-client."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Once(seen))
    return generate_latest(registry)


class _Once:
    """One picture, as a collector of prometheus_client."""

    def __init__(self, seen: Overview) -> None:
        self._seen = seen

    def describe(self) -> Iterator[Family]:
        return iter(())

    def collect(self) -> Iterator[Family]:
        return families(self._seen)
