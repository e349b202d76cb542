"""The emulated links carry what they say: rate, delay, loss, cuts, and changes while a job runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan, WanConfigError
from geocomm.lab.emulator.emulated_wan import WanRun
from support.wan_site_programs import CANNOT_BBR
from support.wan_support import emulate, program, require_wan, wait_until


@pytest.fixture(autouse=True)
def _wan() -> None:
    require_wan()


def test_link_one_bbr_flow_fills_most_of_the_rate() -> None:
    outcome = emulate(EmulatedWan.uniform(2, EmulatedLink(rate_bps=200e6, delay_s=0.05)), program("send", "60", "bbr"))
    if outcome.status == CANNOT_BBR:
        pytest.skip("this kernel has no BBR, or does not allow it")
    assert outcome.status == 0, outcome.stderr
    assert outcome.report is not None
    (started,), (ended,) = outcome.values("started_s"), outcome.values("ended_s")
    rate_bps, payload_bps = 8 * 60e6 / (float(ended) - float(started)), 200e6 * 1448 / 1500
    assert rate_bps <= payload_bps
    if not outcome.report.reliable:
        pytest.skip("packets came late: this machine is too busy to tell more than that the rate is not exceeded")
    assert 0.4 * payload_bps < rate_bps


def test_link_ping_pong_takes_the_round_trip_time() -> None:
    outcome = emulate(EmulatedWan.uniform(2, EmulatedLink(delay_s=0.02)), program("pingpong", "12"))
    assert outcome.status == 0, outcome.stderr
    assert 0.04 <= float(outcome.values("min_rtt_s")[0]) < 0.06


def test_link_lossy_tcp_delivers_the_same_bytes() -> None:
    outcome = emulate(EmulatedWan.uniform(2, EmulatedLink(delay_s=0.002, loss=0.02)), program("send", "20"))
    assert outcome.status == 0, outcome.stderr
    assert outcome.values("received") == ["20000000"]
    sent, received = outcome.values("sha256")
    assert sent == received
    assert outcome.report is not None
    link = outcome.report.link("site1", "site0")
    assert link.packets < link.segments / 4, "segmentation offload is not at work"
    assert link.dropped_loss > 0


def until_counted(datagrams: int) -> Callable[[WanRun], None]:
    """Ends a job whose site 1 sends so many, once its link has read them all."""

    def during(run: WanRun) -> None:
        def counted() -> int:
            link = run.control.stats().link("site1", "site0")
            return link.segments + link.dropped_loss + link.dropped_queue

        wait_until(lambda: counted() == datagrams, "the link has read all datagrams")
        run.interrupt()

    return during


def test_link_loss_counters_lie_in_binomial_bounds() -> None:
    count, loss = 4000, 0.05
    outcome = emulate(
        EmulatedWan.uniform(2, EmulatedLink(delay_s=0.001, loss=loss)),
        program("datagrams", str(count), "20"),
        until_counted(count),
    )
    assert outcome.report is not None
    link = outcome.report.link("site1", "site0")
    assert link.segments + link.dropped_loss + link.dropped_queue == count
    assert abs(link.dropped_loss - loss * count) < 5 * math.sqrt(count * loss * (1 - loss))


def test_link_byte_counters_match_what_was_sent() -> None:
    outcome = emulate(EmulatedWan.uniform(2, EmulatedLink(rate_bps=400e6, delay_s=0.005)), program("send", "10"))
    assert outcome.report is not None
    there, back = outcome.report.link("site1", "site0"), outcome.report.link("site0", "site1")
    assert 10_000_000 < there.bytes < 11_000_000 + 1500 * there.dropped_queue
    assert 0 < back.bytes < 1_000_000
    assert outcome.report.exit_status == (0, 0)


def test_link_full_queue_drops_the_excess() -> None:
    link = EmulatedLink(rate_bps=1e6, delay_s=0.01, queue_bytes=20_000)
    outcome = emulate(EmulatedWan.uniform(2, link), program("datagrams", "300", "0"), until_counted(300))
    assert outcome.report is not None
    counters = outcome.report.link("site1", "site0")
    assert counters.dropped_queue > 0
    assert counters.max_queue_bytes <= 20_000
    assert counters.segments + counters.dropped_queue == 300


def _measured_rate(run: WanRun, seconds: float) -> float:
    """What site1 gets onto its link to site0, in bits per second."""
    before = run.control.stats()
    time.sleep(seconds)
    after = run.control.stats()
    sent = after.link("site1", "site0").bytes - before.link("site1", "site0").bytes
    return 8 * sent / (after.elapsed_s - before.elapsed_s)


def test_link_rate_changed_while_running_takes_effect() -> None:
    rates = []

    def during(run: WanRun) -> None:
        wait_until(lambda: run.control.stats().link("site1", "site0").bytes > 2_000_000, "the flood has begun")
        rates.append(_measured_rate(run, 0.7))
        run.control.set_link("site0", "site1", rate="10mbit")
        time.sleep(0.3)  # what was queued at the old rate drains
        rates.append(_measured_rate(run, 1.0))
        assert run.control.stats().link("site1", "site0").rate_bps == 10e6
        run.interrupt()

    outcome = emulate(
        EmulatedWan.uniform(2, EmulatedLink(rate_bps=100e6, delay_s=0.01)), program("flood", "60"), during
    )
    assert rates[0] < 110e6
    assert rates[1] < 12e6
    assert outcome.report is not None
    if not outcome.report.reliable:
        pytest.skip("packets came late: this machine is too busy to tell more than that the rates are not exceeded")
    assert rates[0] > 50e6
    assert rates[1] > 5e6


def test_link_cut_and_joined_tcp_stalls_then_goes_on() -> None:
    seen: dict[str, int] = {}

    def segments(run: WanRun) -> Callable[[], int]:
        return lambda: run.control.stats().link("site1", "site0").segments

    def during(run: WanRun) -> None:
        count = segments(run)
        wait_until(lambda: count() > 10, "the ping-pong has begun")
        run.control.set_link("site0", "site1", up=False)
        wait_until(lambda: run.control.stats().link("site1", "site0").dropped_down > 0, "TCP tried in vain")
        seen["at the cut"] = count()
        time.sleep(0.5)
        seen["while cut"] = count()
        run.control.set_link("site0", "site1", up=True)

    outcome = emulate(EmulatedWan.uniform(2, EmulatedLink(delay_s=0.005)), program("pingpong", "60"), during)
    assert outcome.status == 0, outcome.stderr
    assert seen["while cut"] == seen["at the cut"]
    assert len(outcome.values("round")) == 60
    assert outcome.report is not None
    assert outcome.report.link("site1", "site0").segments > seen["while cut"]


def test_link_changes_one_way_leave_the_other_direction() -> None:
    def during(run: WanRun) -> None:
        run.control.set_link("site0", "site1", loss="1%", rtt="30ms", one_way=True)
        stats = run.control.stats()
        assert (stats.link("site0", "site1").loss, stats.link("site0", "site1").delay_s) == (0.01, 0.015)
        assert (stats.link("site1", "site0").loss, stats.link("site1", "site0").delay_s) == (0.0, 0.05)
        for bad in ({"rate": "fast"}, {"loss": "200%"}, {}):
            with pytest.raises(WanConfigError):
                run.control.set_link("site0", "site1", **bad)  # type: ignore[arg-type]
        with pytest.raises(WanConfigError):
            run.control.set_link("site0", "nowhere", up=False)
        assert run.control.stats().link("site0", "site1").up
        run.interrupt()

    emulate(EmulatedWan.uniform(2, EmulatedLink()), ["sleep", "60"], during)


def test_link_asymmetric_matrix_adds_up_to_the_round_trip(tmp_path: Path) -> None:
    matrix = tmp_path / "links.toml"
    matrix.write_text(
        """
        sites = ["here", "there"]
        [default]
        rate = "100mbit"
        [[link]]
        from = "here"
        to = "there"
        delay = "10ms"
        [[link]]
        from = "there"
        to = "here"
        delay = "50ms"
        rate = "20mbit"
        """
    )
    outcome = emulate(EmulatedWan.from_toml(matrix), program("pingpong", "6"))
    assert outcome.status == 0, outcome.stderr
    assert 0.06 <= float(outcome.values("min_rtt_s")[0]) < 0.08
    assert outcome.report is not None
    assert outcome.report.link("here", "there").rate_bps == 100e6
    assert outcome.report.link("there", "here").rate_bps == 20e6


def test_link_four_sites_reach_each_other() -> None:
    names = ("frankfurt", "virginia", "tokyo", "sydney")
    outcome = emulate(EmulatedWan.uniform(names, EmulatedLink(delay_s=0.01)), program("meet"))
    assert outcome.status == 0, outcome.stderr
    for name in names:
        heard = {line.split("from=")[1] for line in outcome.stdout.splitlines() if line.startswith(f"[{name}] from=")}
        assert heard == set(names) - {name}
    assert outcome.report is not None
    assert all(link.bytes > 0 for link in outcome.report.links)
