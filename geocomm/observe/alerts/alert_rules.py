"""The alerts: one table, from which the collector evaluates them and Prometheus's rules are made."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from geocomm.core.units import DAY_S
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS
from geocomm.observe.telemetry.metric_expressions import Always, Expression, MetricValue

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


class AlertScope(enum.Enum):
    """What an alert is about; the value: the labels that it has."""

    RUN = ""
    SITE = "site"
    LINK = "site peer_site"
    """What a site sends another. It is no news while one of the two is silent."""

    @property
    def labels(self) -> Sequence[str]:
        """Their names. The value is no tuple: until Python 3.11.4 the one without elements becomes an `object()`."""
        return self.value.split()


@dataclass(frozen=True)
class AlertRule:
    """One alert at one severity."""

    name: str
    severity: Severity
    scope: AlertScope
    when: Expression
    for_seconds: float
    """How many seconds it has to be so before the alert fires."""
    text: str
    """With {site} and {peer_site}."""
    fix: str
    only_prometheus: bool = field(default=False, kw_only=True)
    """The collector's own evaluation leaves it out."""

    @property
    def docs(self) -> str:
        """Where the documentation has it."""
        return f"{_REFERENCE}#{self.name.lower()}"


def _site(name: str) -> MetricValue:
    return MetricValue(f"geocomm_{name}")


def _link(name: str) -> MetricValue:
    return MetricValue(f"geocomm_site_link_{name}")


def _recent(kind: str) -> Expression:
    return MetricValue("geocomm_site_recent_events", (("kind", kind),)) > 0


def _retransmitted_above(share: float) -> Expression:
    sent = _link("tcp_sent_bytes_total").growth(10)
    return (_link("retransmitted_bytes_total").growth(10) > sent * share) & (sent > 10 * _MIB)


def _is_full(disk: str) -> Expression:
    free, size = MetricValue(f"geocomm_{disk}_free_bytes"), MetricValue(f"geocomm_{disk}_size_bytes")
    return (free < size * 0.05) & (free < 10 * 1024 * _MIB)


_silent = MetricValue("geocomm_site_report_age_seconds")
_step_age = _site("train_step_age_seconds")
_clock = _link("clock_offset_seconds").magnitude() - _link("clock_error_seconds")
_loss_jump = _site("train_loss_least") - _site("train_loss_median")
_egress = _site("site_egress_dollars_total").growth(60)
_certificate = _site("site_certificate_left_seconds")

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
        *(SITE_SILENT, _WARNING, AlertScope.SITE, _silent > SILENT_SECONDS, 0),
        f"a rank of {{site}} has not reported for {SILENT_SECONDS:g} s",
        "see whether its processes and its line are there: geocomm hang FOLDER names ranks that others wait for",
    ),
    AlertRule(
        *(SITE_SILENT, _CRITICAL, AlertScope.SITE, _silent > 120, 0),
        "a rank of {site} has not reported for two minutes",
        "start the site again; without an elastic run, the whole job, from its last checkpoint",
    ),
    AlertRule(
        *("TrainingStalled", _CRITICAL, AlertScope.SITE),
        (_step_age > 60) & (_step_age > _site("train_mean_step_seconds") * 5),
        0,
        "{site} reports, but has ended no step for a minute and for five times a step's time",
        "geocomm hang FOLDER says who has not come to which operation",
    ),
    AlertRule(
        *("LossNotFinite", _CRITICAL, AlertScope.SITE, _site("train_ranks_not_finite") > 0, 0),
        "the loss at {site} is NaN or infinite",
        "stop, and go back to a checkpoint with a smaller learning rate; look at that site's data",
    ),
    AlertRule(
        *("LossSpike", _WARNING, AlertScope.SITE),
        (_loss_jump > 0.2) & (_loss_jump > _site("train_loss_spread") * 6) & _site("train_loss_settling").equals(0),
        0,
        "the last 3 losses at {site} are far above the 64 before",
        "look at that site's data and learning rate; go back to a checkpoint if the loss stays high",
    ),
    AlertRule(
        *("WeightsNotFinite", _CRITICAL, AlertScope.SITE),
        _site("train_rounds_not_finite_total").growth(30) > 0,
        0,
        "weights of {site} were NaN or infinite: a round of local steps went on without them",
        "look at that site's learning rate and data",
    ),
    AlertRule(
        *("ReplicasDiverged", _CRITICAL, AlertScope.SITE, _recent("replicas_differ"), 0),
        "replicas have come apart; check_replicas at {site} says which",
        "go back to a checkpoint on all ranks; test the memory of a rank that differs alone",
    ),
    AlertRule(
        *("ResidualGuard", _WARNING, AlertScope.SITE, _recent("codec_fallback"), 0),
        "a gradient hook at {site} took a finer codec, since the one asked for lost too much",
        "ask for a finer preset from the start, or more warm-up",
    ),
    AlertRule(
        *("Straggler", _WARNING, AlertScope.SITE, _site("train_pace_ratio") < 0.7, 300),
        "sites wait for {site}: its steps take 1.4 times those of the quickest, without waits",
        "give it a smaller share of the batch; geocomm why FOLDER says what it costs",
    ),
    AlertRule(
        *("LinkBelowPlan", _WARNING, AlertScope.LINK),
        (_link("rate_bytes_per_second") < _link("planned_rate_bytes_per_second") * 0.7)
        & (_link("busy_ratio") > 0.9)
        & (_link("rtt_seconds") > _link("least_rtt_seconds") * 1.5),
        600,
        "{site} sends {peer_site} less than 0.7 of the planned rate, though the link is always busy",
        "measure with geocomm bench link, then correct GEOCOMM_LINKS; ask the provider",
    ),
    AlertRule(
        *("Retransmits", _WARNING, AlertScope.LINK, _retransmitted_above(0.01), 60),
        "TCP sends more than 1 % again from {site} to {peer_site}",
        "use BBR, and GEOCOMM_MAX_PACING_BPS a little below the link's rate; ask the provider",
    ),
    AlertRule(
        *("Retransmits", _CRITICAL, AlertScope.LINK, _retransmitted_above(0.05), 60),
        "TCP sends more than 5 % again from {site} to {peer_site}",
        "use BBR, and GEOCOMM_MAX_PACING_BPS a little below the link's rate; ask the provider",
    ),
    AlertRule(
        *("RttInflated", _WARNING, AlertScope.LINK),
        (_link("rtt_seconds") > _link("least_rtt_seconds") * 3)
        & (_link("rtt_seconds") - _link("least_rtt_seconds") > 0.1),
        600,
        "round trips from {site} to {peer_site} take three times the least: a queue fills on the way",
        "GEOCOMM_MAX_PACING_BPS a little below the link's rate",
    ),
    AlertRule(
        *("LinkOutages", _WARNING, AlertScope.LINK, _link("worst_pair_outages_total").growth(15) > 3, 0),
        "connections from {site} to {peer_site} broke more than 3 times in 15 minutes",
        "an idle timeout, a NAT that forgets, a link that fails: GEOCOMM_LOG=info says why",
    ),
    AlertRule(
        *("ClockSkew", _WARNING, AlertScope.LINK, _clock > 0.05, 600),
        "the clocks of {site} and {peer_site} are more than 50 ms apart",
        "run chrony or another NTP client on both",
    ),
    AlertRule(
        *("ClockSkew", _CRITICAL, AlertScope.LINK, _clock > 1, 600),
        "the clocks of {site} and {peer_site} are more than a second apart",
        "run chrony or another NTP client on both",
    ),
    AlertRule(
        *("CertificateExpiry", _WARNING, AlertScope.SITE, _certificate < 14 * DAY_S, 0),
        "the certificate of {site} expires within 14 days",
        "geocomm keys renew",
    ),
    AlertRule(
        *("CertificateExpiry", _CRITICAL, AlertScope.SITE, _certificate < 7 * DAY_S, 0),
        "the certificate of {site} expires within 7 days",
        "geocomm keys renew",
    ),
    AlertRule(
        *("EgressBudget", _WARNING, AlertScope.SITE, _egress * 24 > _site("site_egress_budget_dollars"), 0),
        "what {site} sent other sites within an hour cost more than a 24th of its GEOCOMM_EGRESS_BUDGET",
        "a coarser codec, or exchange less often: geocomm plan --price says what each would cost",
    ),
    AlertRule(
        # Ranks look at their disks once a minute: they tell first of one that both lie on.
        *(DISK_FULL, _CRITICAL, AlertScope.RUN, _is_full("disk"), 120),
        "the disk of the run store has less than 5 % and 10 GiB left",
        "free room there; training continues, but telemetry is dropped once it is full",
    ),
    AlertRule(
        *(RUN_DISK_FULL, _CRITICAL, AlertScope.SITE, _is_full("site_disk"), 0),
        "the disk of the run folder of {site} has less than 5 % and 10 GiB left",
        "free room there: once it is full, the site trains on and does not count",
    ),
    AlertRule(
        *("CheckpointOld", _WARNING, AlertScope.SITE),
        (_site("train_checkpoint_age_seconds") > _site("train_checkpoint_interval_seconds") * 3)
        & (_site("train_checkpoint_age_seconds") > 300),
        0,
        "the last checkpoint of {site} is older than three times the interval before it",
        "look at the disk and the log of the rank that writes it",
    ),
    AlertRule(
        *("MemberAway", _WARNING, AlertScope.SITE, MetricValue("geocomm_member_away").equals(1), 300),
        "{site} has been away from the elastic run for five minutes",
        "start it again, or geocomm members remove",
    ),
    AlertRule(
        *("LeaderInDoubt", _CRITICAL, AlertScope.RUN, MetricValue("geocomm_leader_in_doubt").equals(1), 0),
        "two sites lead the elastic run, or the one that leads lacks the journal that others have",
        "the log of the agent there says which sites, and what to do: promote one, or start others with empty folders",
    ),
    AlertRule(
        *("FrameLeftOut", _WARNING, AlertScope.SITE, _site("leader_frames_left_out_total").growth(15) > 0, 0),
        "{site}, which leads, has left out a delta that was 50 times as long as usual: a site may diverge",
        "the log of the agent there says which site: look at its loss, and start its ranks again, or end them",
    ),
    AlertRule(
        *("SnapshotLost", _WARNING, AlertScope.SITE, _recent("snapshot_lost"), 0),
        "{site} could not keep a snapshot of the elastic run; its event snapshot_lost says which, and why",
        "free room on the disk of its run folder; geocomm snapshot ls says which other sites have it",
    ),
    AlertRule(
        *("SnapshotNotKept", _WARNING, AlertScope.RUN, MetricValue("geocomm_snapshot_not_kept").equals(1), 300),
        "too few sites have the last snapshot of the elastic run after five minutes",
        "the log of the leader says which site lacks it, and the log of that site why",
    ),
    AlertRule(
        *("TelemetryLost", _WARNING, AlertScope.SITE),
        _site("site_reports_dropped_total").growth(10) > _site("site_reports_total").growth(10) * 0.01,
        60,
        "more than 1 % of the reports of {site} do not arrive",
        "the logs of its collector and of the run store's say why: a line that breaks, a full disk, refused reports; "
        "where they say nothing, leave both a share of a core",
    ),
    AlertRule(
        *("DashboardDown", _WARNING, AlertScope.RUN, MetricValue("up", (("job", "geocomm"),)).equals(0), 60),
        "geocomm dashboard does not answer, so that no alert of a run can fire",
        "start it again: geocomm dashboard FOLDER",
        only_prometheus=True,
    ),
    AlertRule(
        *("Watchdog", Severity.NONE, AlertScope.RUN, Always(), 0),
        "always there: let who receives it say when it stops",
        "nothing",
        only_prometheus=True,
    ),
)


def prometheus_rules() -> dict[str, Any]:
    """The content of a rules file of Prometheus (2.42 or later)."""
    return {"groups": [{"name": "geocomm", "rules": [_prometheus_rule(rule) for rule in RULES]}]}


def _prometheus_rule(rule: AlertRule) -> dict[str, Any]:
    labels = {name: f"{{{{ $labels.{name} }}}}" for name in rule.scope.labels}
    own = {name: value for name, value in labels_of(rule, labels).items() if name not in (*labels, "alertname")}
    return {
        "alert": PREFIX + rule.name,
        "expr": rule.when.promql(),
        **({"for": f"{rule.for_seconds:g}s"} if rule.for_seconds else {}),
        "keep_firing_for": f"{KEEP_FIRING_S:g}s",
        "labels": own,
        "annotations": annotations_of(rule, labels),
    }


def labels_of(rule: AlertRule, labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of an alert, as Alertmanager gets it. labels: those of its scope."""
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


_LINKS = frozenset(PREFIX + rule.name for rule in RULES if rule.scope is AlertScope.LINK)

INHIBITIONS = (
    Inhibition(("alertname", PREFIX + SITE_SILENT), ("alertname", _LINKS), ("site",)),
    Inhibition(("alertname", PREFIX + SITE_SILENT), ("alertname", _LINKS), ("peer_site",)),
    Inhibition(("alertname", PREFIX + RUN_DISK_FULL), ("alertname", frozenset({PREFIX + DISK_FULL})), ("site",)),
    Inhibition(("severity", _CRITICAL), ("severity", frozenset({_WARNING})), ("alertname", "site", "peer_site")),
)
