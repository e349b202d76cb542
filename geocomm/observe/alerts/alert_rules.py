"""The alerts: one table, from which the collector evaluates them and Prometheus's rules are made."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from geocomm.core.units import DAY_S
from geocomm.observe.alerts.conditions import Condition, LookBack, Written
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS
from geocomm.observe.telemetry.numbers import Labels, NumberRow
from geocomm.observe.telemetry.overview_links import LinkState
from geocomm.observe.telemetry.overview_sites import SiteOverview
from geocomm.observe.telemetry.run_numbers import Heard, LeaderNumbers, MemberNumbers, RecentEvents, StoreNumbers

PREFIX = "Geocomm"
"""How the names in Prometheus begin, where other programs have alerts too."""
KEEP_FIRING_S = 60.0
"""An alert lasts this long after its cause was seen last, so that one that comes and goes is one."""
_MIB = 1 << 20
_REFERENCE = "docs/reference/alerts.md"


class Severity(enum.StrEnum):
    """How urgent."""

    NONE = "none"
    WARNING = "warning"
    CRITICAL = "critical"
    """Somebody should look now."""


@dataclass(frozen=True)
class AlertRule:
    """One alert at one severity."""

    name: str
    severity: Severity
    of: type[NumberRow]
    """The rows that it looks at, each by itself."""
    for_seconds: float
    """How many seconds it has to be so before the alert fires."""
    when: Condition | str
    """A text is PromQL, which only Prometheus evaluates."""
    text: str
    """With {site}, and {peer_site}, where the alert is about these."""
    fix: str
    kind: str = field(default="", kw_only=True)
    """Of the rows by kind, those that are meant."""

    @property
    def docs(self) -> str:
        """Where the documentation has it."""
        return f"{_REFERENCE}#{self.name.lower()}"

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that its texts name."""
        return tuple(name for name in ("site", "peer_site") if f"{{{name}}}" in self.text)

    def promql(self, looks_back: dict[LookBack, float] | None = None) -> str:
        """The condition in PromQL. looks_back: as of `Written`."""
        if isinstance(self.when, str):
            return self.when
        chosen = f'{{kind="{self.kind}"}}' if self.kind else ""
        return self.when(Written(self.of, chosen, looks_back)).text

    def means(self, labels: Labels) -> bool:
        """Whether the row with these labels is of its kind."""
        return not self.kind or ("kind", self.kind) in labels


def _is_full(disk: Any) -> Any:
    return (disk.free_bytes < disk.size_bytes * 0.05) & (disk.free_bytes < 10 * 1024 * _MIB)


def _is_full_there(site: Any) -> Any:
    return (site.disk_free_bytes < site.disk_size_bytes * 0.05) & (site.disk_free_bytes < 10 * 1024 * _MIB)


def _retransmitted_above(share: float) -> Condition:
    def holds(link: Any) -> Any:
        sent = link.grown(10).tcp_bytes_sent
        return (link.grown(10).retransmitted_bytes > sent * share) & (sent > 10 * _MIB)

    return holds


def _is_link_below_plan(link: Any) -> Any:
    is_below = link.bytes_per_second < link.planned_bytes_per_second * 0.7
    return is_below & (link.busy_share > 0.9) & (link.rtt_seconds > link.least_rtt_seconds * 1.5)


def _jumps(site: Any) -> Any:
    jump = site.loss_least - site.loss_median
    return (jump > 0.2) & (jump > site.loss_spread * 6) & (site.loss_settling == 0)


def _is_rtt_inflated(link: Any) -> Any:
    is_long = link.rtt_seconds > link.least_rtt_seconds * 3
    return is_long & (link.rtt_seconds - link.least_rtt_seconds > 0.1)


def _is_checkpoint_old(site: Any) -> Any:
    is_late = site.checkpoint_age_seconds > site.checkpoint_interval_seconds * 3
    return is_late & (site.checkpoint_age_seconds > 300)


_WARNING, _CRITICAL = Severity.WARNING, Severity.CRITICAL

SITE_SILENT = "SiteSilent"
"""Silences alerts about links of that site."""
DISK_FULL = "DiskFull"
RUN_DISK_FULL = "RunDiskFull"
"""Silences the other where the run store is in the run folder of that site: on the same disk."""

# Where the thresholds come from. Straggler, and LinkBelowPlan after it: 0.7 is what NVIDIA's resiliency extension
# (nvidia-resiliency-ext) calls a straggler. ClockSkew: 50 ms is the limit of the node exporter's alert. LossSpike: six
# standard deviations, and at least 0.2, in the median of three losses, since single ones are noise: chosen. All others
# are chosen too: early enough to act (certificates, disks, budget), and late enough that what mends itself raises
# nothing. No rule fired in 38 minutes of a healthy run (benchmarks/results/single-measurements.md, "Alerts of two
# sites").
RULES: tuple[AlertRule, ...] = (
    AlertRule(
        *(SITE_SILENT, _WARNING, Heard, 0),
        lambda site: site.age_seconds > SILENT_SECONDS,
        f"a rank of {{site}} has not reported for {SILENT_SECONDS:g} s",
        "see whether its processes and its line are there: geocomm hang FOLDER names ranks that others wait for",
    ),
    AlertRule(
        *(SITE_SILENT, _CRITICAL, Heard, 0),
        lambda site: site.age_seconds > 120,
        "a rank of {site} has not reported for two minutes",
        "look at its machine, its line and its log: geocomm run starts the ranks of an elastic run again; another job "
        "starts again as a whole, from its last checkpoint",
    ),
    AlertRule(
        *("TrainingStalled", _CRITICAL, SiteOverview, 0),
        lambda site: (site.no_step_seconds > 60) & (site.no_step_seconds > site.mean_step_seconds * 5),
        "{site} reports, but has ended no step for a minute and for five times a step's time",
        "geocomm hang FOLDER says who has not come to which operation",
    ),
    AlertRule(
        *("LossNotFinite", _CRITICAL, SiteOverview, 0),
        lambda site: site.ranks_not_finite > 0,
        "the loss at {site} is NaN or infinite",
        "stop, and go back to a checkpoint with a smaller learning rate; look at that site's data",
    ),
    AlertRule(
        *("LossSpike", _WARNING, SiteOverview, 0),
        _jumps,
        "the last 3 losses at {site} are far above the 64 before",
        "look at that site's data and learning rate; go back to a checkpoint if the loss stays high",
    ),
    AlertRule(
        *("WeightsNotFinite", _CRITICAL, SiteOverview, 0),
        lambda site: site.grown(30).rounds_not_finite > 0,
        "weights of {site} were NaN or infinite: a round of local steps went on without them",
        "look at that site's learning rate and data",
    ),
    AlertRule(
        *("ReplicasDiverged", _CRITICAL, RecentEvents, 0),
        lambda events: events.count > 0,
        "replicas have come apart; check_replicas at {site} says which",
        "go back to a checkpoint on all ranks; test the memory of a rank that differs alone",
        kind="replicas_differ",
    ),
    AlertRule(
        *("ResidualGuard", _WARNING, RecentEvents, 0),
        lambda events: events.count > 0,
        "a gradient hook at {site} took a finer codec, since the one asked for lost too much",
        "ask for a finer preset from the start, or more warm-up",
        kind="codec_fallback",
    ),
    AlertRule(
        *("Straggler", _WARNING, SiteOverview, 300),
        lambda site: site.pace < 0.7,
        "sites wait for {site}: its steps take 1.4 times those of the quickest, without waits",
        "give it a smaller share of the batch; geocomm why FOLDER says what it costs",
    ),
    AlertRule(
        *("LinkBelowPlan", _WARNING, LinkState, 600),
        _is_link_below_plan,
        "{site} sends {peer_site} less than 0.7 of the planned rate, though the link is always busy",
        "measure with geocomm bench link, then correct GEOCOMM_LINKS; ask the provider",
    ),
    AlertRule(
        *("Retransmits", _WARNING, LinkState, 60),
        _retransmitted_above(0.01),
        "TCP sends more than 1 % again from {site} to {peer_site}",
        "use BBR, and GEOCOMM_MAX_PACING_BPS a little below the link's rate; ask the provider",
    ),
    AlertRule(
        *("Retransmits", _CRITICAL, LinkState, 60),
        _retransmitted_above(0.05),
        "TCP sends more than 5 % again from {site} to {peer_site}",
        "use BBR, and GEOCOMM_MAX_PACING_BPS a little below the link's rate; ask the provider",
    ),
    AlertRule(
        *("RttInflated", _WARNING, LinkState, 600),
        _is_rtt_inflated,
        "round trips from {site} to {peer_site} take three times the least: a queue fills on the way",
        "GEOCOMM_MAX_PACING_BPS a little below the link's rate",
    ),
    AlertRule(
        *("LinkOutages", _WARNING, LinkState, 0),
        lambda link: link.grown(15).most_outages > 3,
        "connections from {site} to {peer_site} broke more than 3 times in 15 minutes",
        "an idle timeout, a NAT that forgets, a link that fails: GEOCOMM_LOG=info says why",
    ),
    AlertRule(
        *("ClockSkew", _WARNING, LinkState, 600),
        lambda link: abs(link.clock_offset_seconds) - link.clock_error_seconds > 0.05,
        "the clocks of {site} and {peer_site} are more than 50 ms apart",
        "run chrony or another NTP client on both",
    ),
    AlertRule(
        *("ClockSkew", _CRITICAL, LinkState, 600),
        lambda link: abs(link.clock_offset_seconds) - link.clock_error_seconds > 1,
        "the clocks of {site} and {peer_site} are more than a second apart",
        "run chrony or another NTP client on both",
    ),
    AlertRule(
        *("CertificateExpiry", _WARNING, SiteOverview, 0),
        lambda site: site.certificate_left_seconds < 14 * DAY_S,
        "the certificate of {site} expires within 14 days",
        "geocomm keys renew",
    ),
    AlertRule(
        *("CertificateExpiry", _CRITICAL, SiteOverview, 0),
        lambda site: site.certificate_left_seconds < 7 * DAY_S,
        "the certificate of {site} expires within 7 days",
        "geocomm keys renew",
    ),
    AlertRule(
        *("EgressBudget", _WARNING, SiteOverview, 0),
        lambda site: site.grown(60).egress_dollars * 24 > site.egress_dollars_per_day,
        "what {site} sent other sites within an hour cost more than a 24th of its GEOCOMM_EGRESS_BUDGET",
        "a coarser codec, or exchange less often: geocomm plan --price says what each would cost",
    ),
    AlertRule(
        # Ranks look at their disks once a minute: they tell first of one that both lie on.
        *(DISK_FULL, _CRITICAL, StoreNumbers, 120),
        _is_full,
        "the disk of the run store has less than 5 % and 10 GiB left",
        "free room there; training continues, but telemetry is dropped once it is full",
    ),
    AlertRule(
        *(RUN_DISK_FULL, _CRITICAL, SiteOverview, 0),
        _is_full_there,
        "the disk of the run folder of {site} has less than 5 % and 10 GiB left",
        "free room there: once it is full, the site is away: it trains on, and does not count until there is room",
    ),
    AlertRule(
        *("CheckpointOld", _WARNING, SiteOverview, 0),
        _is_checkpoint_old,
        "the last checkpoint of {site} is older than three times the interval before it",
        "look at the disk and the log of the rank that writes it",
    ),
    AlertRule(
        *("MemberAway", _WARNING, MemberNumbers, 300),
        lambda member: (member.is_away == 1) & (member.is_not_ready == 0),
        "{site} has been away from the elastic run for five minutes, and the leader does not hear it",
        "see whether its machine and its line are there, and start it again; or geocomm members remove",
    ),
    AlertRule(
        *("MemberNotReady", _WARNING, MemberNumbers, 600),
        lambda member: member.is_not_ready == 1,
        "the agent of {site} is connected, and its ranks have not been ready to count for ten minutes",
        "geocomm members ls and its own log say why: ranks that fail at their start, a long replay, a full disk",
    ),
    AlertRule(
        *("LeaderInDoubt", _CRITICAL, LeaderNumbers, 0),
        lambda run: run.in_doubt == 1,
        "two sites lead the elastic run, or the one that leads lacks the journal that others have",
        "the log of the agent there says which sites, and what to do: promote one, or start others with empty folders",
    ),
    AlertRule(
        *("FrameLeftOut", _WARNING, StoreNumbers, 0),
        lambda own: own.grown(15).leader_frames_left_out > 0,
        "{site}, which leads, has left out a delta that was 50 times as long as usual: a site may diverge",
        "the log of the agent there says which site: look at its loss, and start its ranks again, or end them",
    ),
    AlertRule(
        *("AverageWrong", _CRITICAL, StoreNumbers, 0),
        lambda own: own.grown(15).leader_averages_wrong > 0,
        "{site}, which leads, found that an aggregator's average was not what another site made of the same frames",
        "the log of the agent there names the site: look at that machine, or geocomm members remove; a snapshot from "
        "before is in the run folders",
    ),
    AlertRule(
        *("SnapshotLost", _WARNING, RecentEvents, 0),
        lambda events: events.count > 0,
        "{site} could not keep a snapshot of the elastic run; its event snapshot_lost says which, and why",
        "free room on the disk of its run folder; geocomm snapshot ls says which other sites have it",
        kind="snapshot_lost",
    ),
    AlertRule(
        *("SnapshotNotKept", _WARNING, LeaderNumbers, 300),
        lambda run: run.snapshot_not_kept == 1,
        "too few sites have the last snapshot of the elastic run after five minutes",
        "the log of the leader says which site lacks it, and the log of that site why",
    ),
    AlertRule(
        *("TelemetryLost", _WARNING, SiteOverview, 60),
        lambda site: site.grown(10).reports_lost > site.grown(10).reports * 0.01,
        "more than 1 % of the reports of {site} do not arrive",
        "the logs of its collector and of the run store's say why: a line that breaks, a full disk, refused reports; "
        "where they say nothing, leave both a share of a core",
    ),
    AlertRule(
        *("DashboardDown", _WARNING, NumberRow, 60),
        'up{job="geocomm"} == 0',
        "geocomm dashboard does not answer, so that no alert of a run can fire",
        "start it again: geocomm dashboard FOLDER",
    ),
    AlertRule(
        *("Watchdog", Severity.NONE, NumberRow, 0),
        "vector(1)",
        "always there: let who receives it say when it stops",
        "nothing",
    ),
)


def prometheus_rules() -> dict[str, Any]:
    """The content of a rules file of Prometheus (2.42 or later)."""
    return {"groups": [{"name": "geocomm", "rules": [_prometheus_rule(rule) for rule in RULES]}]}


def _prometheus_rule(rule: AlertRule) -> dict[str, Any]:
    labels = {name: f"{{{{ $labels.{name} }}}}" for name in rule.labels}
    own = {name: value for name, value in labels_of(rule, labels).items() if name not in (*labels, "alertname")}
    return {
        "alert": PREFIX + rule.name,
        "expr": rule.promql(),
        **({"for": f"{rule.for_seconds:g}s"} if rule.for_seconds else {}),
        "keep_firing_for": f"{KEEP_FIRING_S:g}s",
        "labels": own,
        "annotations": annotations_of(rule, labels),
    }


def labels_of(rule: AlertRule, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of an alert, as Alertmanager gets it. labels: those of its row."""
    found = {"alertname": PREFIX + rule.name, "severity": rule.severity.value, **labels}
    if rule.name == SITE_SILENT:
        found["peer_site"] = labels["site"]  # inhibitions compare equal labels alone: links to the site too
    return found


def annotations_of(rule: AlertRule, labels: Mapping[str, str]) -> dict[str, str]:
    """What is said of it, wherever it is said."""
    return {"summary": rule.text.format(**labels), "fix": rule.fix, "docs": rule.docs}


@dataclass(frozen=True)
class Inhibition:
    """An alert is no news while one that its `source` matches fires with the same `equal` labels."""

    source: tuple[str, str]
    """A label, and its value."""
    target: tuple[str, frozenset[str]]
    """A label, and its values."""
    equal: tuple[str, ...]

    def matchers(self) -> dict[str, Any]:
        """The inhibition as Alertmanager's configuration has it."""
        (source, value), (target, values) = self.source, self.target
        return {
            "source_matchers": [f'{source}="{value}"'],
            "target_matchers": [f'{target}=~"{"|".join(sorted(values))}"'],
            "equal": list(self.equal),
        }

    def inhibited(self, firing: Sequence[Mapping[str, str]]) -> set[int]:
        """Which of these, by their labels, are no news."""
        by = {self._same(labels) for labels in firing if labels.get(self.source[0]) == self.source[1]}
        label, values = self.target
        return {i for i, one in enumerate(firing) if one.get(label) in values and self._same(one) in by}

    def _same(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(labels.get(name, "") for name in self.equal)


_LINKS = frozenset(PREFIX + rule.name for rule in RULES if rule.of is LinkState)

INHIBITIONS = (
    Inhibition(("alertname", PREFIX + SITE_SILENT), ("alertname", _LINKS), ("site",)),
    Inhibition(("alertname", PREFIX + SITE_SILENT), ("alertname", _LINKS), ("peer_site",)),
    Inhibition(("alertname", PREFIX + RUN_DISK_FULL), ("alertname", frozenset({PREFIX + DISK_FULL})), ("site",)),
    Inhibition(("severity", _CRITICAL), ("severity", frozenset({_WARNING})), ("alertname", "site", "peer_site")),
)
