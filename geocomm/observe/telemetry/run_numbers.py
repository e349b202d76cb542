"""All numbers of a run at one moment, by what they are of: what `/metrics` shows and the alerts look at.

A silent site has none; when it was heard last stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from geocomm._version import __version__
from geocomm.elastic.journal.run_state import Standing
from geocomm.metrics.events import KINDS
from geocomm.metrics.exporters import RowCollector
from geocomm.metrics.schema import MetricRow
from geocomm.observe.telemetry.last_reports import Life
from geocomm.observe.telemetry.numbers import Labels, NumberRow, counter, gauge
from geocomm.observe.telemetry.overview import Overview
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.store_folder import StoreFolder

Rows = Mapping[type[NumberRow], Mapping[Labels, NumberRow]]
"""By kind and labels."""


@dataclass(frozen=True)
class Heard(NumberRow):
    """When a site was heard, silent ones too."""

    LABELS: ClassVar[tuple[str, ...]] = ("site",)

    at: float = gauge(
        "site_last_report_timestamp_seconds: time at which the rank that was heard longest ago reported (Unix time)"
    )
    age_seconds: float | None = gauge(
        "site_report_age_seconds: time since the rank that was heard longest ago reported; "
        "not of a site that has ended or left"
    )


@dataclass(frozen=True)
class RecentEvents(NumberRow):
    """The events of a kind at a site."""

    LABELS: ClassVar[tuple[str, ...]] = ("site", "kind")

    count: int = gauge("site_recent_events: events of the site in the last ten minutes")


@dataclass(frozen=True)
class MemberNumbers(NumberRow):
    """A member of an elastic run."""

    LABELS: ClassVar[tuple[str, ...]] = ("site",)

    dealt_tokens: int | None = gauge(
        "member_dealt_tokens: tokens dealt to a member of an elastic run with --data, and not counted yet"
    )
    is_away: float = gauge("member_away: 1: a member of the elastic run that is away")
    is_not_ready: float = gauge(
        "member_not_ready: 1: a member of the elastic run that is away or joining, while the leader hears its agent"
    )


@dataclass(frozen=True)
class StoreNumbers(NumberRow):
    """The disk of the run store, and the work of the collector and the agent there. With the label of the site whose
    run folder it is, so that the alert of that site's disk tells of this one too."""

    free_bytes: int | None = gauge("disk_free_bytes: free bytes of the run store's disk")
    size_bytes: int | None = gauge("disk_size_bytes: size of the run store's disk")
    collector_reports_kept: float | None = counter(
        "collector_reports_kept: reports that the run store's collector has kept since it started"
    )
    collector_reports_refused: float | None = counter(
        "collector_reports_refused: reports that the run store's collector has refused since it started"
    )
    collector_reports_dropped: float | None = counter(
        "collector_reports_dropped: reports that the run store's collector could not keep or pass on since it started"
    )
    agent_connections: float | None = counter(
        "agent_connections: connections of the site's agent to the leader; each after the first is a reconnection"
    )
    leader_entries: float | None = counter(
        "leader_entries: journal entries that the site's agent has committed as the leader"
    )
    leader_commit_seconds: float | None = counter(
        "leader_commit_seconds: seconds in which the site's agent committed journal entries, also to etcd"
    )
    leader_frames_left_out: float | None = counter(
        "leader_frames_left_out: frames that the site's agent, as the leader, let no round take: far longer than usual"
    )
    leader_averages_wrong: float | None = counter(
        "leader_averages_wrong: averages that another site made differently of the aggregator's frames, as the site's "
        "agent found while it led; it has one of 32 checked"
    )
    data_repeated_tokens: float | None = counter(
        "data_repeated_tokens: tokens that sites had read and read again after a failure, since the site's agent leads"
    )


@dataclass(frozen=True)
class LeaderNumbers(NumberRow):
    """What this site knows of an elastic run."""

    in_doubt: float | None = gauge(
        "leader_in_doubt: 1: this site leads, and may not be the only one, or has not the journal that others have"
    )
    left_tokens: int | None = gauge(
        "data_left_tokens: tokens left of this pass over the run's data, dealt or not; at the leader"
    )
    snapshot_not_kept: float | None = gauge(
        "snapshot_not_kept: 1: too few sites have the last snapshot of the elastic run yet"
    )


def metric_names() -> dict[str, str]:
    """What Prometheus calls each number; by the kind of its row and its field, such as site.step."""
    kinds: dict[str, type[NumberRow]] = {
        "heard": Heard,
        "site": SiteOverview,
        "link": LinkState,
        "store": StoreNumbers,
        "leader": LeaderNumbers,
        "member": MemberNumbers,
    }
    return {
        f"{word}.{field}": kind.metric(field)
        for word, kind in kinds.items()
        for field, number in kind.numbers().items()
        if number.metric is not None
    }


def rows_now(seen: Overview, folder: StoreFolder) -> Rows:
    """The rows of each kind."""
    heard = [site for site in seen.sites if site.life is not Life.SILENT]
    names = {site.name for site in heard}
    gone = {site.name for site in seen.sites if site.life is Life.ENDED or folder.has_left(site.name)}
    ages = {site.name: site.report_age_seconds for site in seen.sites}
    own = {name: folder.counters.get(name) for name, one in StoreNumbers.numbers().items() if one.is_counter}
    members = {member.name: member.standing for member in folder.members or ()}
    return {
        Heard: {_of(site=name): Heard(seen.at - age, None if name in gone else age) for name, age in ages.items()},
        SiteOverview: {_of(site=site.name): site for site in heard},
        RecentEvents: {
            _of(site=site.name, kind=kind): RecentEvents(site.recent_events.get(kind, 0))
            for site in heard
            for kind in KINDS
        },
        LinkState: {_of(site=one.source, peer_site=one.target): one for one in seen.links if one.source in names},
        StoreNumbers: {
            _of(**{"site": folder.site} if folder.site else {}): StoreNumbers(
                folder.free_bytes, folder.size_bytes, **own
            )
        },
        LeaderNumbers: {
            (): LeaderNumbers(
                float(folder.is_in_doubt) if folder.site else None,
                folder.left_tokens,
                None if folder.members is None else float(folder.lacks_snapshot),
            )
        },
        MemberNumbers: {
            _of(site=name): MemberNumbers(
                folder.dealt_tokens.get(name),
                float(standing is Standing.AWAY),
                float(standing in (Standing.AWAY, Standing.JOINING) and name in folder.heard),
            )
            for name, standing in members.items()
        },
    }


def _of(**labels: str) -> Labels:
    return tuple(sorted(labels.items()))


def metric_rows(seen: Overview, folder: StoreFolder) -> Iterator[MetricRow]:
    """All of them, but for the version: sums per site and per pair of sites, so that their number stays small.

    Ranks have endpoints of their own for the rest (`metrics.exporters`).
    """
    for kind, rows in rows_now(seen, folder).items():
        labels = tuple(name for name, _ in next(iter(rows))) if rows else kind.LABELS
        for field, number in kind.numbers().items():
            if number.metric is not None:
                values = [(tuple(value for _, value in of), getattr(row, field)) for of, row in rows.items()]
                yield MetricRow(kind.PREFIX + number.metric, number.help, labels, values, number.is_counter)


def prometheus_text(seen: Overview, folder: StoreFolder, more: Sequence[MetricRow] = ()) -> bytes:
    """The text that Prometheus scrapes, with `more`. Needs the package prometheus-client."""
    from prometheus_client import CollectorRegistry, generate_latest

    build = MetricRow("geocomm_build_info", "the version that reads the run store", ("version",), [((__version__,), 1)])
    registry = CollectorRegistry()
    registry.register(RowCollector(lambda: [build, *metric_rows(seen, folder), *more]))
    return generate_latest(registry)
