"""The picture of a run: rates of steps and links, silent and ended ranks, open rounds, events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from geocomm.metrics import schema
from geocomm.observe.alerts.alerting import Evaluation
from geocomm.observe.telemetry.last_reports import SILENT_SECONDS, Life
from geocomm.observe.telemetry.overview import Overview, overview
from geocomm.observe.telemetry.overview_rounds import Phase
from geocomm.observe.telemetry.report import Report
from geocomm.observe.telemetry.run_numbers import metric_rows, rows_now
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.observe.telemetry.store_folder import StoreFolder
from support.metric_help import leans_on_another
from support.reports import keep

S = 10**9
MB = 1_000_000


def peer(site: str, rank: int, **values: Any) -> dict[str, Any]:
    row: dict[str, Any] = {one.name: "" if one.kind is schema.MetricKind.TEXT else 0 for one in schema.PEERS}
    return row | {"peer": f"rank {rank}", "site": site, "rank": rank, "streams": 2, **values}


def told(sequence: int, site: str, rank: int = 0, process: int = 1, **more: Any) -> Report:
    """A report of second `sequence` of the process; its clock is ahead of the collector's by 1000 s for each rank."""
    stats: dict[str, Any] = {
        "exposed_seconds": 0.0,
        "peers": [],
        "groups": [],
        "local_steps": [],
        **more.pop("stats", {}),
    }
    own = {"site": site, "rank": rank, "process": f"{process:016x}", "sequence": sequence, "time": 0.0}
    return Report.model_validate({**own, "now_ns": (sequence + 1000 * rank) * S, "stats": stats, **more})


def picture(folder: Path, reports: Iterable[tuple[float, Report]], at: float) -> Overview:
    folder.mkdir(exist_ok=True)
    store = RunStore(folder, write=True)
    for when, report in reports:
        keep(store, report, when)
    return overview(store, at)


def steps(number: int, ended_s: float, tokens: int, **more: Any) -> dict[str, Any]:
    totals = {"steps": number, "tokens": tokens}
    return {"step": number + 5, "ended_ns": int(ended_s * S), "of_steps": 100, "totals": totals, **more}


def test_rates_of_steps_are_per_process_and_a_step_that_takes_too_long_lowers_them(tmp_path: Path) -> None:
    def at(second: int, step: int, ended_s: float) -> tuple[float, Report]:
        stats = {"exposed_seconds": second / 4}
        return float(second), told(second, "a", training=steps(step, ended_s, 100 * step, loss=2.0), stats=stats)

    reports = [at(second, min(4, second // 2), 2.0 * min(4, second // 2)) for second in range(2, 20)]
    early = picture(tmp_path, reports, 9.0)
    (site,) = early.sites
    assert (site.step, site.of_steps, site.step_seconds, site.tokens_per_second) == (9, 100, 2.0, 50.0)
    assert (site.exposed_share, site.loss, early.seconds_left) == (0.25, 2.0, 91 * 2.0)
    late = overview(RunStore(tmp_path), 19.0).sites[0]
    assert late.step_age_seconds == 11.0
    assert late.tokens_per_second == pytest.approx(200 / (4 + 9))  # 2 steps in 4 s; the next is late by 9 s
    # It starts again: what the process before had counted is not taken from what this one has.
    again = picture(tmp_path, [(20.0, told(1, "a", process=2, training=steps(1, 0.5, 100)))], 20.0).sites[0]
    assert (again.step, again.step_seconds, again.tokens_per_second) == (6, None, None)


def test_pace_of_a_rank_that_began_to_report_long_before_its_first_step_is_that_of_its_steps(tmp_path: Path) -> None:
    before = [(float(second), told(second, "a")) for second in range(1, 6)]
    ends = {second: second // 2 - 2 for second in range(6, 13)}  # a step each two seconds
    after = [(float(s), told(s, "a", training=steps(n, 2.0 * (n + 2), 100 * n))) for s, n in ends.items()]
    site = picture(tmp_path, [*before, *after], 12.0).sites[0]
    assert (site.step, site.step_seconds, site.tokens_per_second) == (9, 2.0, 50.0)


def test_link_is_summed_over_its_ranks_and_may_begin_anew(tmp_path: Path) -> None:
    def pair(second: int, *sent: int) -> Iterable[tuple[float, Report]]:
        for rank, total in enumerate(sent):
            values = {"bytes_sent": total, "tcp_bytes_sent": total, "retransmitted_bytes": total // 100, "outages": 1}
            values |= {"rtt_us": 30_000 + rank, "min_rtt_us": 20_000, "busy_us": second * MB}
            inside = peer("a", 1 - rank, bytes_sent=10**9)
            yield float(second), told(second, "a", rank, stats={"peers": [peer("b", rank + 2, **values), inside]})

    run = picture(tmp_path, [*pair(0, 7 * MB, 0), *pair(5, 17 * MB, 5 * MB)], 5.0)
    assert [(link.source, link.target) for link in run.links] == [("a", "b"), ("b", "a")]
    link = run.links[0]
    assert link.bytes_per_second == 3 * MB
    assert (link.bytes_sent, link.retransmitted_share, link.outages) == (22 * MB, 0.01, 2)
    assert (link.rtt_seconds, link.least_rtt_seconds, link.streams) == (0.030001, 0.02, 4)
    assert link.busy_share == 0.5  # of two streams
    assert run.sites[0].bytes_sent == 22 * MB
    back = run.links[1]
    assert (back.bytes_per_second, back.bytes_sent, back.retransmitted_share) == (0, 0, None)
    # Rank 0's channel is a new one, which has sent 1 MB.
    link = picture(tmp_path, pair(8, 1 * MB, 15 * MB), 8.0).links[0]
    assert link.bytes_per_second == 2 * MB


def test_site_that_is_not_heard_is_known_from_the_other_end(tmp_path: Path) -> None:
    reports = [
        (float(s), told(s, "a", stats={"peers": [peer("b", 1, bytes_received=s * MB, rtt_us=5000)]})) for s in (1, 4)
    ]
    link = picture(tmp_path, reports, 4.0).links[1]
    known = {"source": "b", "target": "a", "bytes_per_second": MB, "bytes_sent": 4 * MB, "rtt_seconds": 0.005}
    assert link == dataclasses.replace(link, **known)


def test_ranks_are_reporting_silent_or_ended_and_a_silent_one_has_no_rates(tmp_path: Path) -> None:
    def life(rank: int, *seconds: int, **more: Any) -> list[tuple[float, Report]]:
        return [(float(s), told(s, "a", rank, training=steps(s, s + 1000 * rank, 9 * s), **more)) for s in seconds]

    run = picture(tmp_path, [*life(0, 43, 50, 60), *life(1, 40, 44), *life(2, 40, 41, final=True)], 60.0)
    (site,) = run.sites
    assert [rank.life for rank in site.ranks] == [Life.REPORTING, Life.SILENT, Life.ENDED]
    assert site.ranks[1].report_age_seconds == site.report_age_seconds == 16.0 > SILENT_SECONDS
    assert (site.ranks_reporting, site.life, site.step, site.tokens_per_second) == (1, Life.SILENT, 65, 9.0)
    assert site.ranks[1].tokens_per_second is None


def in_rounds(second: int, site: str, *rows: dict[str, Any]) -> tuple[float, Report]:
    return float(second), told(second, site, "ab".index(site), rounds=list(rows), stats={"local_steps": [{}]})


def round_row(number: int, *, peers: dict[str, int | None], **values: Any) -> dict[str, Any]:
    times = dict.fromkeys(("due_ns", "begun_ns", "listed_ns", "averaged_ns", "applied_ns", "counted"))
    rows = [{"site": site, "arrived_ns": arrived} for site, arrived in peers.items()]
    own = {"number": number, "elastic": False, "fragment": 0, "round": number, "failed": False, "peers": rows}
    return {**own, **times, **values}


def test_open_round_names_the_site_whose_frame_is_missing_and_the_last_one_says_who_counted(tmp_path: Path) -> None:
    done = {"begun_ns": 1 * S, "listed_ns": 2 * S, "applied_ns": 3 * S, "counted": ["a", "b", "c"]}
    reports = [
        in_rounds(3, "a", round_row(1, peers={"b": 2, "c": 2}, **done)),
        in_rounds(8, "b", round_row(2, peers={"a": 1008 * S, "c": None}, begun_ns=1006 * S)),
        in_rounds(9, "a", round_row(2, peers={"b": 8 * S, "c": None}, due_ns=4 * S, begun_ns=5 * S)),
    ]
    running, last = picture(tmp_path, reports, 10.0).rounds
    assert (running.round, running.phase, running.waits_for) == (2, Phase.OPEN, ("c",))
    assert (running.age_seconds, running.sites) == (6.0, ("a", "b", "c"))
    assert (last.round, last.phase, last.counted, last.age_seconds) == (1, Phase.DONE, ("a", "b", "c"), 7.0)
    # Both report on, and none has it any more: how it ended was not reported.
    after = picture(tmp_path, [in_rounds(20, "a"), in_rounds(20, "b")], 20.0)
    assert [state.phase for state in after.rounds] == [Phase.DONE]


def test_event_that_ranks_of_a_site_saw_alike_is_there_once(tmp_path: Path) -> None:
    def event(second: int, site: str, rank: int) -> tuple[float, Report]:
        seen = {"kind": "checkpoint", "time": 5.0 + rank, "site": site, "rank": rank, "step": 3}
        return float(second), told(second, site, rank, events=[seen])

    events = picture(tmp_path, [event(1, "a", 0), event(2, "a", 1), event(3, "b", 2), event(30, "a", 0)], 40.0).events
    assert [(one.at, one.site, one.ranks) for one in events] == [
        (30.0, "a", (0,)),
        (3.0, "b", (2,)),
        (2.0, "a", (0, 1)),
    ]
    assert events[0].fields == {"step": 3}


def test_clocks_are_compared_by_heartbeats_and_the_time_of_day_of_both(tmp_path: Path) -> None:
    def at(site: str, rank: int, other: str, ahead_s: float, **seen: Any) -> tuple[float, Report]:
        stats = {"peers": [peer(other, 1 - rank, clock_error_us=2000, **seen)]}
        return 5.0, told(5, site, rank, stats=stats).model_copy(update={"time": 1e9 + 5 + ahead_s})

    # Rank 1's monotonic clock is ahead by 1000 s, as told() has it, and its time of day by 3 s.
    reports = [at("a", 0, "b", 0.0, clock_offset_us=1_000_000_000), at("b", 1, "a", 3.0, clock_offset_us=None)]
    there, back = picture(tmp_path, reports, 5.0).links
    assert (there.clock_offset_seconds, there.clock_error_seconds) == (pytest.approx(3.0), 0.002)
    assert back.clock_offset_seconds is None


def test_bad_losses_and_checkpoints_are_counted(tmp_path: Path) -> None:
    def at(second: int, rank: int, loss: float, checkpoint: bool) -> tuple[float, Report]:
        seen = [{"kind": "checkpoint", "step": 7}] if checkpoint else []
        return float(second), told(second, "a", rank, training={"step": second, "loss": loss}, events=seen)

    moments = [100, 700, 701, 1500]
    reports = [at(second, rank, math.nan if rank else 2.0, second != 1500) for second in moments for rank in (0, 1)]
    site = picture(tmp_path, reports, 1500.0).sites[0]
    assert (site.loss, site.ranks_not_finite) == (2.0, 1)
    assert (site.checkpoint_age_seconds, site.checkpoint_interval_seconds) == (800.0, 600.0)
    assert site.recent_events == {}
    assert overview(RunStore(tmp_path), 702.0).sites[0].recent_events == {"checkpoint": 1}
    assert overview(RunStore(tmp_path), 1600.0, since=1550.0).sites == ()


def test_losses_that_jump_are_told_unless_a_codec_was_just_changed(tmp_path: Path) -> None:
    def jumps(folder: Path, events: list[dict[str, Any]]) -> list[str]:
        losses = {"least": 2.7, "median": 2.0, "spread": 0.1}
        ranks = [told(3, "a", rank, training={"step": 70, "loss": 2.8, "losses": losses}) for rank in (0, 1)]
        seen = picture(folder, [(3.0, one) for one in (*ranks, told(3, "b", 2, events=events))], 3.0)
        return [alert.rule.name for alert in Evaluation().step(3.0, rows_now(seen, StoreFolder(None, None, None)))]

    assert jumps(tmp_path / "one", []) == ["LossSpike"]
    assert jumps(tmp_path / "two", [{"kind": "codec_fallback", "hook": "ddp", "step": 60}]) == ["ResidualGuard"]


def test_help_of_every_metric_of_all_sites_stands_alone(tmp_path: Path) -> None:
    rows = list(
        metric_rows(picture(tmp_path, [(3.0, told(3, "a"))], 3.0), StoreFolder(None, None, members=(), site="a"))
    )
    assert not [f"{row.name}: {row.help}" for row in rows if leans_on_another(row.help)]


def test_egress_costs_the_price_of_each_site_with_headers_and_repeats(tmp_path: Path) -> None:
    sent = {"bytes_sent": 1e9, "retransmitted_bytes": 2e7}
    stats = {"peers": [peer("b", 1, **sent), peer("c", 2, **sent), peer("a", 3, **sent)]}
    own: dict[str, Any] = {"egress_dollars_per_gb": 0.1, "egress_dollars_per_day": 50.0}
    priced, other = picture(tmp_path, [(1.0, told(1, "a", stats=stats, **own)), (1.0, told(1, "b", 1))], 1.0).sites
    assert (priced.egress_dollars, priced.egress_dollars_per_day) == (pytest.approx(2 * 0.106), 50.0)
    assert (other.egress_dollars, other.egress_dollars_per_day) == (None, None)


def test_site_has_the_fullest_of_the_disks_that_its_ranks_tell_of(tmp_path: Path) -> None:
    sizes = [(7, 9), (5, 100), (None, None)]
    ranks = [told(1, "a", n, disk_free_bytes=free, disk_size_bytes=size) for n, (free, size) in enumerate(sizes)]
    one, other = picture(tmp_path, [(1.0, report) for report in (*ranks, told(1, "b", 3))], 1.0).sites
    assert (one.disk_free_bytes, one.disk_size_bytes) == (5, 100)
    assert (other.disk_free_bytes, other.disk_size_bytes) == (None, None)


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0, 1e6])
def test_rank_that_a_restart_of_its_site_leaves_out_is_there_no_more(tmp_path: Path, ahead_s: float) -> None:
    """Whatever the clock of the node of rank 0 shows."""

    def rank(site: str, number: int, process: int, at: float) -> tuple[float, Report]:
        shown = at + (ahead_s if number == 0 else 0.0) + 1e7
        return at, told(int(at), site, number, process).model_copy(update={"time": shown})

    before = [rank("a", number, number, second) for second in (29.0, 30.0) for number in (0, 1)]
    run = picture(tmp_path, [*before, rank("b", 2, 3, 30.0)], 60.0)
    assert [len(site.ranks) for site in run.sites] == [2, 1]
    # Site a starts again with a rank less; site b is just not heard.
    run = picture(tmp_path, [rank("a", 0, 4, second) for second in (41.0, 59.0)], 63.0)
    assert [(site.name, site.life) for site in run.sites] == [("a", Life.REPORTING), ("b", Life.SILENT)]
    assert [one.rank for one in run.sites[0].ranks] == [0]


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
def test_ranks_whose_clocks_differ_are_all_there_also_where_one_began_later(tmp_path: Path, ahead_s: float) -> None:
    def rank(number: int, at: float) -> tuple[float, Report]:
        return at, told(int(at), "a", number, number).model_copy(update={"time": 1e7 + at + ahead_s * (number == 0)})

    reports = [rank(number, float(second)) for second in range(120) for number in range(3) if second >= 40 * number]
    for at in (39.5, 40.0, 79.0, 80.5, 119.0):
        seen = picture(tmp_path / str(at), [one for one in reports if one[0] <= at], at)
        assert [one.rank for one in seen.sites[0].ranks] == [n for n in range(3) if at >= 40 * n]
