"""Collectors: reports of ranks and of other sites, over real sockets and TLS; and what is no report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.addresses import Address
from geocomm.core.run_dir import RunDir
from geocomm.metrics import own_counters
from geocomm.metrics.report_sender import VERSION
from geocomm.observe.telemetry import collector as collector_module
from geocomm.observe.telemetry.collector import Collector
from geocomm.observe.telemetry.report import MAX_BYTES, MAX_INFLATED_BYTES
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.security.key_folder import Keys
from geocomm.wire.dial import dial
from geocomm.wire.greeting import Greeting, Purpose, SessionRefused
from support import reports
from support.hub_support import BreakingProxy, make_keys, run, running_hub, until
from support.small_disk import small_disk

pytestmark = pytest.mark.timeout(120)


def text(sequence: int, site: str = "a", rank: int = 0, process: str = "0123456789abcdef", **more: Any) -> bytes:
    own = {"version": VERSION, "site": site, "rank": rank, "process": process, "sequence": sequence}
    return reports.text({**own, "time": 1.0, "now_ns": 1, **more})


def sent(content: bytes) -> bytes:
    """What begins a connection."""
    packer = zlib.compressobj()
    return packer.compress(content) + packer.flush(zlib.Z_SYNC_FLUSH)


@contextlib.asynccontextmanager
async def collecting(
    folder: Path, site: str, keys: Keys | None = None, to: Callable[[], Address | None] = lambda: None
) -> AsyncIterator[tuple[Collector, RunStore, list[str]]]:
    """A collector of a site with a store in the folder, and what it said."""
    folder.mkdir(exist_ok=True)
    lines: list[str] = []
    store = RunStore(folder, write=True)
    collector = Collector(folder, site, store, keys, to, lines.append)
    serving = asyncio.create_task(collector.serve())
    await until(lambda: RunDir(folder).rank_socket.exists(), "the collector serves")
    try:
        yield collector, store, lines
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        store.close()


def send(folder: Path, *packed: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
        sender.connect(str(RunDir(folder).rank_socket))
        for content in packed:
            sender.send(content)


def sequences(store: RunStore, site: str) -> list[int]:
    return [said.report.sequence for said in store.reports(site=site)]


@pytest.fixture(autouse=True)
def at_any_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_counters, "_EVERY_S", 0.1)
    monkeypatch.setattr(collector_module, "SHORTEST_INTERVAL_S", 0.0)


def test_reports_reach_the_hubs_store_over_a_line_that_breaks_again_and_again(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        async with (
            collecting(tmp_path / "hub", "a") as (_, at_hub, _),
            running_hub(keys["a"], 1, tmp_path / "hub") as place,
        ):
            proxy = BreakingProxy(place.address, 8000, 3)
            async with proxy.running() as way, collecting(tmp_path / "b", "b", keys["b"], lambda: way) as (_, own, _):
                sent = 0
                while proxy.resets < 3 or len(sequences(at_hub, "b")) < 20:
                    sent += 1
                    send(tmp_path / "b", zlib.compress(text(sent, "b", host=f"noise {random.Random(sent).random()}")))
                    await asyncio.sleep(0.02)
                await until(lambda: sequences(own, "b") == list(range(1, sent + 1)), "the site keeps all")
                found = sequences(at_hub, "b")
                assert found == sorted(set(found))  # none twice, none before another
                assert set(found) <= set(sequences(own, "b"))
                assert at_hub.latest()[0].lost == found[-1] - len(found)

    run(work())


def test_reports_of_a_sites_other_node_reach_the_leader_by_way_of_its_first(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        async with (
            collecting(tmp_path / "leader", "a") as (_, at_leader, _),
            running_hub(keys["a"], 1, tmp_path / "leader") as leader,
            collecting(tmp_path / "first", "b", keys["b"], lambda: leader.address) as (_, at_first, _),
            running_hub(keys["b"], 1, tmp_path / "first") as site_hub,
            collecting(tmp_path / "second", "b", keys["b"], lambda: site_hub.address),
        ):
            send(tmp_path / "first", zlib.compress(text(1, "b", rank=0)))
            send(tmp_path / "second", zlib.compress(text(1, "b", rank=1)))
            for store in (at_first, at_leader):
                await until(lambda store=store: len(store.latest()) == 2, "both ranks of b have reported")
                assert [(one.rank.site, one.rank.rank) for one in store.latest()] == [("b", 0), ("b", 1)]

    run(work())


def test_collector_that_ends_does_not_wait_for_who_still_sends_to_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with collecting(tmp_path / "hub", "a") as (_, store, _):
            reader, writer = await asyncio.open_unix_connection(RunDir(tmp_path / "hub").collector_socket)
            writer.write(b"b\n" + sent(text(1, "b") + b"\n"))
            await until(lambda: sequences(store, "b") == [1], "its report is kept")
        assert await reader.read() == b""  # and the connection has ended with the collector
        writer.close()

    run(work())


def test_what_is_reported_last_is_kept_and_passed_on_however_long_the_process_takes(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        async with (
            collecting(tmp_path / "hub", "a") as (_, at_hub, _),
            running_hub(keys["a"], 1, tmp_path / "hub") as place,
        ):
            async with collecting(tmp_path / "b", "b", keys["b"], lambda: place.address) as (collector, own, _):
                send(tmp_path / "b", zlib.compress(text(1, "b")))
                await until(lambda: sequences(at_hub, "b") == [1], "it reaches the hub")
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
                    sender.connect(str(RunDir(tmp_path / "b").rank_socket))
                    ending = asyncio.create_task(collector.last_reports(0.2, 100.0))
                    await asyncio.sleep(0.5)
                    assert not ending.done()
                    for sequence in range(2, 40):
                        sender.send(zlib.compress(text(sequence, "b")))
                        await asyncio.sleep(0)
                await ending
                assert sequences(own, "b") == list(range(1, 40))
            await until(lambda: sequences(at_hub, "b") == list(range(1, 40)), "all has reached the hub")

    run(work())


def test_a_site_cannot_report_for_another_and_what_is_no_report_is_refused(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys", "abc")
    bad = {
        "for another": sent(text(1, "c") + b"\n"),
        "the second for another": sent(text(1, "b") + b"\n" + text(1, "c") + b"\n"),
        "no JSON": sent(b"{\n"),
        "a path for a name": sent(text(1, "../b") + b"\n"),
        "too far": sent(b" " * (MAX_INFLATED_BYTES + 1)),
        "a line without an end": sent(b" " * (MAX_BYTES + 1)),
        "no zlib": b"\x04\0\0\0abcd",
        "a later version": sent(text(1, "b", version=VERSION + 1) + b"\n"),
        "an end": zlib.compress(text(1, "b") + b"\n"),
    }

    async def work() -> None:
        async with (
            collecting(tmp_path / "hub", "a") as (collector, store, lines),
            running_hub(keys["a"], 1, tmp_path / "hub") as place,
        ):
            for number, (name, content) in enumerate(bad.items(), 1):
                stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.TELEMETRY, bytes(16), 0, "telemetry"))
                with contextlib.suppress(OSError):
                    await stream.write(content)
                    async with asyncio.timeout(10):
                        await stream.read_some(1)  # the hub closes
                stream.close()
                await until(lambda number=number: collector.counts.refused == number, name)
            for content in (
                b"abc",
                zlib.compress(b"{}"),
                zlib.compress(b" " * (MAX_BYTES + 1)),
                zlib.compress(text(1) + b"\n" + text(1)),
                zlib.compress(text(1, "b")),
            ):
                send(tmp_path / "hub", content)
            await until(lambda: collector.counts.refused == len(bad) + 5, "reports of ranks")
            assert not list(store.reports())
            senders = ["site b", f"process {os.getpid()} of this machine"]
            assert [line.partition(" is refused")[0] for line in lines] == [f"telemetry of {who}" for who in senders]
            counted = {"kept": 0, "refused": len(bad) + 5, "dropped": 0}
            written = {f"collector_reports_{name}": number for name, number in counted.items()}
            await until(lambda: own_counters.counters_in(tmp_path / "hub") == written, "it counts these")
            stream, _ = await dial(place.address, keys["b"], Greeting(Purpose.TELEMETRY, bytes(16), 0, "telemetry"))
            await stream.write(sent(text(5, "b") + b"\n"))
            await until(lambda: sequences(store, "b") == [5], "a good one still comes")
            stream.close()

    run(work())


def test_a_hub_without_telemetry_says_so(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")

    async def work() -> None:
        async with running_hub(keys["a"], 1) as place:
            with pytest.raises(SessionRefused, match="--telemetry FOLDER"):
                await dial(place.address, keys["b"], Greeting(Purpose.TELEMETRY, bytes(16), 0, "telemetry"))

    run(work())


@pytest.mark.parametrize("patient", [True, False])
def test_a_collector_that_comes_up_later_is_waited_for_and_told_of_only_after_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: bool
) -> None:
    """One whose hub, or whose hub's collector, is not there yet."""
    monkeypatch.setattr("geocomm.core.patience.FIRST_WORD_S", 60.0 if patient else 0.0)
    keys = make_keys(tmp_path / "keys")
    reasons: list[str] = []

    async def dial_and_note(*arguments: Any) -> Any:
        try:
            return await dial(*arguments)
        except (OSError, SessionRefused) as error:
            reasons.append(str(error))
            raise

    monkeypatch.setattr(collector_module, "dial", dial_and_note)

    async def work() -> None:
        async with (
            running_hub(keys["a"], 1, tmp_path / "hub") as place,
            collecting(tmp_path / "b", "b", keys["b"], lambda: place.address) as (_, _, lines),
        ):
            await until(lambda: len(reasons) >= 2, "the collector of b has been refused")
            async with collecting(tmp_path / "hub", "a") as (_, at_hub, _):
                send(tmp_path / "b", zlib.compress(text(1, "b")))
                await until(lambda: sequences(at_hub, "b") == [1], "its report is kept at the hub")
            assert "the collector of this run's telemetry is not there" in reasons[0]
            assert not place.lines  # it says so to who asks, at every attempt
            assert bool(lines) is not patient
            assert patient or reasons[0] in lines[0]

    run(work())


def test_ranks_that_report_at_one_moment_are_all_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with collecting(tmp_path / "a", "a") as (collector, store, lines):
            with contextlib.ExitStack() as ranks:
                for rank in range(64):  # the collector has no turn meanwhile
                    sender = ranks.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                    sender.setblocking(False)
                    sender.connect(str(RunDir(tmp_path / "a").rank_socket))
                    for sequence in range(1, 4):
                        sender.send(zlib.compress(text(sequence, rank=rank)))
                await until(lambda: collector.counts.kept == 3 * 64, "all are kept")
            # Not `latest()`: where this takes long, ranks that came first look like those of an earlier start.
            kept = {(said.report.rank, said.report.sequence, said.lost) for said in store.reports()}
            assert kept == {(rank, sequence, 0) for rank in range(64) for sequence in range(1, 4)}
            assert not lines

    run(work())


def test_a_flood_is_dropped_and_counted_and_other_ranks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "SHORTEST_INTERVAL_S", 60.0)
    monkeypatch.setattr(collector_module, "MOST_AT_ONCE", 10)
    monkeypatch.setattr(collector_module, "MOST_RANKS_OF_A_SITE", 3)

    async def work() -> None:
        async with collecting(tmp_path / "a", "a") as (collector, store, lines):
            for sequence in range(50):
                send(tmp_path / "a", zlib.compress(text(sequence)))
                await asyncio.sleep(0)
            for rank in range(1, 5):
                send(tmp_path / "a", zlib.compress(text(1, rank=rank)))
                await asyncio.sleep(0)
            await until(lambda: collector.counts.refused == 2, "two ranks too many")
            assert collector.counts.dropped == 40
            assert sequences(store, "a")[:10] == list(range(10))  # as after a black-out
            assert [said.report.rank for said in store.latest()] == [0, 1, 2]
            assert len(lines) == 1

    run(work())


def test_a_flood_of_last_reports_is_dropped_too_and_one_of_them_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "SHORTEST_INTERVAL_S", 60.0)
    monkeypatch.setattr(collector_module, "MOST_AT_ONCE", 10)

    async def work() -> None:
        async with collecting(tmp_path / "a", "a") as (collector, store, _):
            for sequence in range(50):
                process, final = f"{sequence:016x}", sequence >= 20
                send(tmp_path / "a", zlib.compress(text(sequence, process=process, final=final)))
                await asyncio.sleep(0)
            # 39 come too fast, and one of the others does not wait for the hub any more.
            await until(lambda: collector.counts.dropped == 40, "all are looked at")
            assert sequences(store, "a") == [*range(10), 20]

    run(work())


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: gives a folder to another user")
def test_folder_of_another_user_is_not_served_from(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.chown(tmp_path / "a", 12345, 12345)

    async def work() -> None:
        collector = Collector(tmp_path / "a", "a", None, None, lambda: None, print)
        with pytest.raises(PermissionError, match="12345"):
            await collector.serve()

    run(work())


def test_a_full_disk_costs_a_line_and_reports_are_still_passed_on(tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys")
    noise = random.Random(1).randbytes(40_000).hex()

    async def work() -> None:
        async with (
            collecting(tmp_path / "hub", "a") as (_, at_hub, _),
            running_hub(keys["a"], 1, tmp_path / "hub") as place,
        ):
            with small_disk(tmp_path / "b") as folder:
                async with collecting(folder, "b", keys["b"], lambda: place.address) as (collector, _, lines):
                    sequence = 0
                    while collector.counts.dropped < 3:
                        sequence += 1
                        send(folder, zlib.compress(text(sequence, "b", events=[{"kind": "x", "noise": noise}])))
                        await asyncio.sleep(0.01)
                    assert any("training goes on" in line for line in lines)
                    await until(lambda: sequence in sequences(at_hub, "b"), "the last one is at the hub")

    run(work())
