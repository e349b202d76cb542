"""The sites of a run at one moment: their ranks together. Events that several ranks of a site saw alike are one."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from geocomm.core.units import DAY_S
from geocomm.observe.telemetry.last_reports import LastReports, Life
from geocomm.observe.telemetry.overview_links import far_peers
from geocomm.observe.telemetry.report import Report, Row, known, mean, median, share, total
from geocomm.observe.telemetry.run_store import Received, RunStore

RECENT_EVENT_SECONDS = 600.0
_MOST_EVENTS = 50
_SAME_EVENT_S = 10.0
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


@dataclass(frozen=True)
class SiteOverview:
    """A site: its ranks together. Rates are of those that report."""

    name: str
    ranks: tuple[RankState, ...]
    step: int | None
    """The last training step that all its reporting ranks have ended."""
    of_steps: int | None
    """How many steps the run shall have."""
    step_seconds: float | None
    """The time of the last steps, the median of the site's ranks."""
    mean_step_seconds: float | None
    """The time of all steps of the site's processes, the median of its ranks. Not known before the second step."""
    step_age_seconds: float | None
    """Since its last step ended, at the rank that is furthest behind."""
    tokens_per_second: float | None
    """The tokens of all its ranks."""
    exposed_share: float | None
    """The mean of its ranks."""
    loss: float | None
    """The mean of what its ranks said last."""
    loss_least: float | None
    """The least of the last three losses, the mean of the site's ranks."""
    loss_median: float | None
    """The median of the 64 losses before those three, the mean of the site's ranks."""
    loss_spread: float | None
    """The standard deviation of these 64 losses, the mean of the site's ranks."""
    held_out_loss: float | None
    """The loss of the last evaluation, the mean of the site's ranks."""
    bytes_sent: int
    """To other sites, since its processes started."""
    egress_dollars: float | None
    """That this has cost, with headers and repeats."""
    egress_dollars_per_day: float | None
    """That it may cost."""
    data_waited_seconds: float | None
    """That a rank waited for shards of the data set, in the mean."""
    data_fetched_bytes: float | None
    """The bytes of the data set that all its ranks have fetched."""
    data_fetched_dollars: float | None
    """What they cost."""
    ranks_not_finite: int
    """Ranks whose last loss is NaN or infinite."""
    rounds_not_finite: int
    """Rounds of local steps that left its weights out: NaN or infinite."""
    reports: int
    """That its processes have made."""
    reports_lost: int
    """Of these, how many never came to the run store."""
    certificate_ends: float | None
    """Unix seconds; of the rank whose certificate expires first."""
    disk_free_bytes: int | None
    """On the disk of its run folder; the least, where it has several."""
    disk_size_bytes: int | None
    """The size of that disk."""
    checkpoint_age_seconds: float | None
    """Since the last checkpoint that it wrote within a day."""
    checkpoint_interval_seconds: float | None
    """Between that and the one before."""
    recent_events: dict[str, int]
    """By kind, how many of the last ten minutes; what its ranks saw alike counts once."""

    @property
    def ranks_reporting(self) -> int:
        """How many of its ranks report."""
        return sum(rank.life is Life.REPORTING for rank in self.ranks)

    @property
    def life(self) -> Life:
        """The state of the site's ranks together: silent if one is, or else ended if all have."""
        lives = {rank.life for rank in self.ranks}
        return next(life for life in (Life.SILENT, Life.REPORTING, Life.ENDED) if life in lives)

    @property
    def report_age_seconds(self) -> float:
        """Since the last report of the rank that was heard longest ago, among those that have not ended."""
        ages = [rank.report_age_seconds for rank in self.ranks if rank.life is not Life.ENDED]
        return max(ages) if ages else min(rank.report_age_seconds for rank in self.ranks)


def site_states(store: RunStore, seen: LastReports) -> Iterator[SiteOverview]:
    """The sites by name."""
    for name in sorted({received.report.site for received in seen.last}):
        own = [received for received in seen.last if received.report.site == name]
        ranks = tuple(_rank(seen, received) for received in own)
        heard = [rank for rank in ranks if rank.life is Life.REPORTING] or list(ranks)
        training = [received.report.training for received in own]
        windows: list[Row] = [one["losses"] for one in training if one.get("losses")]
        losses = [one["loss"] for one in training if isinstance(one.get("loss"), float)]
        stats = [received.report.stats for received in own]
        data: list[Row] = [one["data"] for one in stats if one.get("data")]
        disk = min((rank for rank in ranks if rank.disk_free_bytes is not None), key=_free_bytes, default=None)
        saved = moments(store.events(seen.at - DAY_S, seen.at, site=name, kind="checkpoint"))
        checkpoints = list(itertools.islice(saved, 2))
        recent = event_states(store.events(seen.at - RECENT_EVENT_SECONDS, seen.at, site=name))
        yield SiteOverview(
            name=name,
            ranks=ranks,
            step=min((rank.step for rank in heard if rank.step is not None), default=None),
            of_steps=max((one["of_steps"] for one in training if one.get("of_steps") is not None), default=None),
            step_seconds=median(rank.step_seconds for rank in heard),
            mean_step_seconds=median(_mean_step_s(one.get("totals", {})) for one in training),
            step_age_seconds=max(
                (rank.step_age_seconds for rank in heard if rank.step_age_seconds is not None), default=None
            ),
            tokens_per_second=total(rank.tokens_per_second for rank in heard),
            exposed_share=mean(rank.exposed_share for rank in heard),
            loss=mean(one.get("loss") for one in training),
            loss_least=mean(one["least"] for one in windows),
            loss_median=mean(one["median"] for one in windows),
            loss_spread=mean(one["spread"] for one in windows),
            held_out_loss=mean(one.get("held_out_loss") for one in training),
            bytes_sent=sum(peer["bytes_sent"] for received in own for peer in far_peers(received)),
            egress_dollars=total(_egress_dollars(received) for received in own),
            egress_dollars_per_day=max(known(one.report.egress_dollars_per_day for one in own), default=None),
            data_waited_seconds=mean(one.get("waited_seconds") for one in data),
            data_fetched_bytes=total(one.get("fetched_bytes") for one in data),
            data_fetched_dollars=total(one.get("fetched_dollars") for one in data),
            ranks_not_finite=sum(not math.isfinite(loss) for loss in losses),
            rounds_not_finite=sum(
                run.get("rounds_not_finite", 0) for one in stats for run in one.get("local_steps", ())
            ),
            reports=sum(received.report.sequence for received in own),
            reports_lost=sum(received.lost for received in own),
            certificate_ends=min(known(received.report.certificate_ends for received in own), default=None),
            disk_free_bytes=disk and disk.disk_free_bytes,
            disk_size_bytes=disk and disk.disk_size_bytes,
            checkpoint_age_seconds=seen.at - checkpoints[0] if checkpoints else None,
            checkpoint_interval_seconds=checkpoints[0] - checkpoints[1] if len(checkpoints) > 1 else None,
            recent_events=dict(collections.Counter(event.kind for event in recent)),
        )


def _free_bytes(rank: RankState) -> int:
    return rank.disk_free_bytes or 0


def _egress_dollars(received: Received) -> float | None:
    """What the rank has sent to other sites, at the site's price."""
    price = received.report.egress_dollars_per_gb
    if price is None:
        return None
    return sum(egress_dollars(price, peer["bytes_sent"], peer["retransmitted_bytes"]) for peer in far_peers(received))


def _mean_step_s(totals: Row) -> float | None:
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
