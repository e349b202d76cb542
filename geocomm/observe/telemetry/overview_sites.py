"""The sites of a run at one moment: their ranks together. Events that several ranks of a site saw alike are one."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from geocomm.core.units import DAY_S
from geocomm.observe.telemetry.last_reports import LastReports, Life
from geocomm.observe.telemetry.numbers import NumberRow, counter, gauge
from geocomm.observe.telemetry.overview_links import far_peers
from geocomm.observe.telemetry.report import Report, Row, known, mean, median, share, total
from geocomm.observe.telemetry.run_store import Received, RunStore

RECENT_EVENT_SECONDS = 600.0
_MOST_EVENTS = 50
_SAME_EVENT_S = 10.0
_WAITING_SHARE = 0.1
"""Where no site stands still for a larger share of the time, nobody is waited for: as `geocomm why` has it."""
_LATE_STEP_S = 3.0
"""A step that takes longer counts as a wait before it ends. Chosen: three reports."""


@dataclass(frozen=True)
class RankState:
    """One rank."""

    site: str
    rank: int
    """In the run; in an elastic run, of the site."""
    host: str
    life: Life
    report_age_seconds: float
    """Since its last report came."""
    step: int | None
    """The last training step that ended."""
    step_age_seconds: float | None
    """Since then."""
    step_seconds: float | None
    """The mean time of its last steps."""
    tokens_per_second: float | None
    disk_free_bytes: int | None
    """On the disk of the run folder, where the rank has one and tells of it."""
    disk_size_bytes: int | None
    """The size of that disk, for this user."""
    exposed_share: float | None
    """The share of its time that it stood still for collectives between sites, or for results of local steps."""


@dataclass(frozen=True, kw_only=True)
class SiteOverview(NumberRow):
    """A site: its ranks together. Rates are of those that report."""

    LABELS: ClassVar[tuple[str, ...]] = ("site",)

    name: str
    ranks: tuple[RankState, ...]
    recent_events: dict[str, int]
    """By kind, how many of the last ten minutes; what its ranks saw alike counts once."""
    step: int | None = gauge(
        "train_step: last training step that all ranks of the site have ended",
        lambda own: min(own.of_heard("step"), default=None),
    )
    of_steps: int | None = gauge(
        "train_steps_planned: training steps that the run shall have",
        lambda own: max(own.of_training("of_steps"), default=None),
    )
    loss: float | None = gauge(
        "train_loss: mean of the losses that the site's ranks reported last", lambda own: mean(own.of_training("loss"))
    )
    held_out_loss: float | None = gauge(
        "train_held_out_loss: loss of the site's last evaluation", lambda own: mean(own.of_training("held_out_loss"))
    )
    loss_least: float | None = gauge(
        "train_loss_least: least of the site's last three losses", lambda own: mean(own.of_losses("least"))
    )
    loss_median: float | None = gauge(
        "train_loss_median: median of the site's 64 losses before the last three",
        lambda own: mean(own.of_losses("median")),
    )
    loss_spread: float | None = gauge(
        "train_loss_spread: standard deviation of the 64 losses before the last three",
        lambda own: mean(own.of_losses("spread")),
    )
    ranks_not_finite: int = gauge(
        "train_ranks_not_finite: ranks whose last loss is NaN or infinite",
        lambda own: sum(not math.isfinite(loss) for loss in own.of_training("loss")),
    )
    step_seconds: float | None = gauge(
        "train_step_seconds: time of a step, over the last ones", lambda own: median(own.of_heard("step_seconds"))
    )
    mean_step_seconds: float | None = gauge(
        "train_mean_step_seconds: time of a step since the site's processes started",
        lambda own: median(_mean_step_s(one.get("totals", {})) for one in own.training),
    )
    step_age_seconds: float | None = gauge(
        "time since the last step ended, at the rank that is furthest behind",
        lambda own: max(own.of_heard("step_age_seconds"), default=None),
    )
    no_step_seconds: float | None = gauge("train_step_age_seconds: time since the last step; none once all have ended")
    tokens_per_second: float | None = gauge(
        "train_tokens_per_second: tokens per second of all ranks of the site",
        lambda own: total(own.of_heard("tokens_per_second")),
    )
    exposed_share: float | None = gauge(
        "train_exposed_ratio: share of the time that ranks stood still for other sites",
        lambda own: mean(own.of_heard("exposed_share")),
    )
    pace: float | None = gauge(
        "train_pace_ratio: time of a step without waits, the quickest site's by this site's; "
        "while sites wait for each other"
    )
    loss_settling: float | None = gauge(
        "train_loss_settling: 1: a site took a finer codec within ten minutes, after which a loss may jump"
    )
    checkpoint_age_seconds: float | None = gauge(
        "train_checkpoint_age_seconds: time since the last checkpoint of a day", lambda own: own.checkpoint_age
    )
    checkpoint_interval_seconds: float | None = gauge(
        "train_checkpoint_interval_seconds: time between two checkpoints", lambda own: own.checkpoint_interval
    )
    disk_free_bytes: int | None = gauge(
        "site_disk_free_bytes: free bytes of the disk with the site's run folder", lambda own: own.disk_free_bytes
    )
    disk_size_bytes: int | None = gauge(
        "site_disk_size_bytes: size of the disk with the site's run folder", lambda own: own.disk_size_bytes
    )
    number_of_ranks: int = gauge("site_ranks: ranks of the site", lambda own: len(own.ranks))
    ranks_reporting: int = gauge("site_ranks_reporting: ranks of the site that report", lambda own: len(own.reporting))
    egress_dollars_per_day: float | None = gauge(
        "site_egress_budget_dollars: dollars that the site's egress may cost a day",
        lambda own: max(known(one.report.egress_dollars_per_day for one in own.last), default=None),
    )
    certificate_ends: float | None = gauge(
        "site_certificate_expiry_timestamp_seconds: Unix time of the first expiry", lambda own: own.certificate_ends
    )
    certificate_left_seconds: float | None = gauge(
        "site_certificate_left_seconds: time until the site's first certificate expires",
        lambda own: own.certificate_left,
    )
    rounds_not_finite: int = counter(
        "train_rounds_not_finite: rounds of local steps without the site: NaN or Inf",
        lambda own: sum(run["rounds_not_finite"] for one in own.stats for run in one["local_steps"]),
    )
    bytes_sent: int = counter(
        "bytes sent to other sites", lambda own: sum(peer["bytes_sent"] for one in own.last for peer in far_peers(one))
    )
    egress_dollars: float | None = counter(
        "site_egress_dollars: cost of the site's bytes to other sites",  # with headers and repeats
        lambda own: total(_egress_dollars(one) for one in own.last),
    )
    data_waited_seconds: float | None = counter(
        "site_data_waited_seconds: time that a rank waited for the data set",
        lambda own: mean(own.of_data("waited_seconds")),
    )
    data_fetched_bytes: float | None = counter(
        "site_data_fetched_bytes: bytes of the data set fetched from buckets",
        lambda own: total(own.of_data("fetched_bytes")),
    )
    data_fetched_dollars: float | None = counter(
        "site_data_fetched_dollars: cost of what the site fetched from buckets",
        lambda own: total(own.of_data("fetched_dollars")),
    )
    reports: int = counter(
        "site_reports: reports that the site's ranks made", lambda own: sum(one.report.sequence for one in own.last)
    )
    reports_lost: int = counter(
        "site_reports_dropped: reports of the site's ranks that never came to the run store",
        lambda own: sum(one.lost for one in own.last),
    )

    @property
    def life(self) -> Life:
        """The state of the site's ranks together: silent if one is, or else ended if all have."""
        return _life(self.ranks)

    @property
    def report_age_seconds(self) -> float:
        """Since the last report of the rank that was heard longest ago, among those that have not ended."""
        ages = [rank.report_age_seconds for rank in self.ranks if rank.life is not Life.ENDED]
        return max(ages) if ages else min(rank.report_age_seconds for rank in self.ranks)


class _SiteReports:
    """What the ranks of a site said last."""

    def __init__(self, store: RunStore, seen: LastReports, name: str) -> None:
        self.seen = seen
        self.last = [received for received in seen.last if received.report.site == name]
        self.ranks = tuple(_rank(seen, received) for received in self.last)
        self.reporting = [rank for rank in self.ranks if rank.life is Life.REPORTING]
        self.training = [received.report.training for received in self.last]
        self.stats = [received.report.stats for received in self.last]
        self.certificate_ends = min(known(received.report.certificate_ends for received in self.last), default=None)
        self.certificate_left = None if self.certificate_ends is None else self.certificate_ends - seen.at
        disks = [(one.disk_free_bytes, one.disk_size_bytes) for one in self.ranks if one.disk_free_bytes is not None]
        self.disk_free_bytes, self.disk_size_bytes = min(disks, key=lambda disk: disk[0], default=(None, None))
        saved = moments(store.events(seen.at - DAY_S, seen.at, site=name, kind="checkpoint"))
        last, before = (*itertools.islice(saved, 2), None, None)[:2]
        self.checkpoint_age = None if last is None else seen.at - last
        self.checkpoint_interval = None if last is None or before is None else last - before

    def of_heard(self, name: str) -> list[Any]:
        """What is known of the ranks that report; of all, where none does."""
        return [value for rank in self.reporting or self.ranks if (value := getattr(rank, name)) is not None]

    def of_training(self, name: str) -> list[Any]:
        """What their last steps tell."""
        return [value for one in self.training if (value := one.get(name)) is not None]

    def of_losses(self, name: str) -> list[float]:
        """What their last losses tell together."""
        return [losses[name] for losses in self.of_training("losses")]

    def of_data(self, name: str) -> list[float]:
        """What they tell of the data set."""
        return [one["data"][name] for one in self.stats if name in one["data"]]


def site_states(store: RunStore, seen: LastReports) -> list[SiteOverview]:
    """The sites by name."""
    found: list[SiteOverview] = []
    for name in sorted({received.report.site for received in seen.last}):
        own = _SiteReports(store, seen, name)
        recent = event_states(store.events(seen.at - RECENT_EVENT_SECONDS, seen.at, site=name))
        kinds = dict(collections.Counter(event.kind for event in recent))
        values = SiteOverview.added_up(own)
        waits = _life(own.ranks) is Life.REPORTING and not _has_ended(values["step"], values["of_steps"])
        values["no_step_seconds"] = values["step_age_seconds"] if waits else None
        found.append(
            SiteOverview(name=name, ranks=own.ranks, recent_events=kinds, pace=None, loss_settling=None, **values)
        )
    return _beside_each_other(found)


def _life(ranks: Iterable[RankState]) -> Life:
    lives = {rank.life for rank in ranks}
    return next(life for life in (Life.SILENT, Life.REPORTING, Life.ENDED) if life in lives)


def _has_ended(step: int | None, of_steps: int | None) -> bool:
    return step is not None and of_steps is not None and step >= of_steps - 1


def _beside_each_other(sites: list[SiteOverview]) -> list[SiteOverview]:
    """The sites with what shows only beside the others; silent ones count nowhere."""
    heard = [site for site in sites if site.life is not Life.SILENT]
    settling = float(any(site.recent_events.get("codec_fallback") for site in heard))
    own = {
        site.name: site.step_seconds * (1 - site.exposed_share)
        for site in heard
        if site.step_seconds is not None and site.exposed_share is not None
    }
    quickest = min(own.values(), default=0.0)
    waits = quickest > 0 and max(site.exposed_share or 0.0 for site in heard) >= _WAITING_SHARE
    return [
        dataclasses.replace(
            site, loss_settling=settling, pace=quickest / own[site.name] if waits and site.name in own else None
        )
        for site in sites
    ]


def _egress_dollars(received: Received) -> float | None:
    """What the rank has sent to other sites, at the site's price."""
    price = received.report.egress_dollars_per_gb
    if price is None:
        return None
    return sum(egress_dollars(price, peer["bytes_sent"], peer["retransmitted_bytes"]) for peer in far_peers(received))


def _mean_step_s(totals: Row) -> float | None:
    """Not known before the second step."""
    if totals.get("steps", 0) < 2 or "seconds" not in totals:
        return None
    return totals["seconds"] / (totals["steps"] - 1)  # what the first one took is not known where the program is silent


def _rank(seen: LastReports, received: Received) -> RankState:
    report = received.report
    age = max(0.0, seen.at - received.at)
    ended_ns: int | None = report.training.get("ended_ns")
    step_seconds = tokens_per_second = exposed_share = None
    step_age = None if ended_ns is None else (report.now_ns - ended_ns) / 1e9 + age
    if seen.has_rates(received) and (before := seen.before_steps(received)) is not None:
        step_seconds, tokens_per_second = _pace(before.report, report)
    if seen.has_rates(received) and (before := seen.before(received)) is not None:
        stood_s = _stood_still_s(report.stats) - _stood_still_s(before.report.stats)
        seconds = (report.now_ns - before.report.now_ns) / 1e9
        if step_age is not None and step_age > _LATE_STEP_S:  # counters know of a wait once it is over
            stood_s += min(seconds, seen.open_wait_seconds(received))
        exposed_share = share(stood_s, seconds)
    return RankState(
        site=report.site,
        rank=report.rank,
        host=report.host,
        life=seen.life(received),
        report_age_seconds=age,
        step=report.training.get("step"),
        step_age_seconds=step_age,
        step_seconds=step_seconds,
        tokens_per_second=tokens_per_second,
        disk_free_bytes=report.disk_free_bytes,
        disk_size_bytes=report.disk_size_bytes,
        exposed_share=exposed_share,
    )


def _pace(before: Report, report: Report) -> tuple[float | None, float | None]:
    """Seconds of a step, and tokens per second; None: not known."""
    was, now = (one.training.get("totals", _NOTHING) for one in (before, report))
    began_ns, ended_ns = (one.training.get("ended_ns") for one in (before, report))
    steps = now.get("steps", 0) - was.get("steps", 0)
    if steps <= 0 or began_ns is None or ended_ns is None or began_ns >= ended_ns:
        return None, None
    seconds = (ended_ns - began_ns) / 1e9
    step_seconds = seconds / steps
    if "tokens" not in now:
        return step_seconds, None
    # A step that takes longer than the ones before counts with what it has taken so far.
    late_s = max(0.0, (report.now_ns - ended_ns) / 1e9 - step_seconds)
    return step_seconds, (now["tokens"] - was.get("tokens", 0)) / (seconds + late_s)


def _stood_still_s(stats: Row) -> float:
    return stats.get("exposed_seconds", 0.0) + sum(run.get("waited_seconds", 0.0) for run in stats["local_steps"])


_NOTHING: Row = {}
_HEADERS = 1.04
"""Bytes of a packet by those of its content: Ethernet, IP and TCP."""


def egress_dollars(price: float, content: float, sent_again: float = 0.0) -> float:
    """In dollars. price: dollars per GB. content: bytes that TCP sent, or a rate of them. sent_again: bytes that TCP
    sent once more, with their headers, where `content` does not have them."""
    return price / 1e9 * (_HEADERS * content + sent_again)


@dataclass(frozen=True)
class EventState:
    """Something that happened."""

    at: float
    """Unix seconds of the collector's clock, when it was reported."""
    site: str
    ranks: tuple[int, ...]
    """Those that said the same."""
    kind: str
    """One of `geocomm.metrics.events.KINDS`."""
    fields: Row


def event_states(rows: Iterable[Row]) -> Iterator[EventState]:
    """The events of `RunStore.events`, newest first, at most 50. Reads no more rows than these need."""
    found: list[EventState] = []
    for row in rows:
        fields = {name: value for name, value in row.items() if name not in ("at", "site", "rank", "kind", "time")}
        for number, other in enumerate(found):
            alike = (other.site, other.kind, other.fields) == (row["site"], row["kind"], fields)
            if alike and other.at - row["at"] < _SAME_EVENT_S:
                found[number] = dataclasses.replace(other, ranks=tuple(sorted({*other.ranks, row["rank"]})))
                break
        else:
            if len(found) == _MOST_EVENTS:
                break
            found.append(EventState(row["at"], row["site"], (row["rank"],), row["kind"], fields))
    yield from found


def moments(rows: Iterable[Row]) -> Iterator[float]:
    """When the events of `RunStore.events` were reported, the last first; what several ranks reported at once is one,
    of when the first of them did."""
    first = last = None
    for row in rows:
        if last is None or last - row["at"] >= _SAME_EVENT_S:
            if first is not None:
                yield first
            last = row["at"]
        first = row["at"]
    if first is not None:
        yield first
