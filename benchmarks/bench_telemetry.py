"""What telemetry costs: `python benchmarks/bench_telemetry.py`.

A DDP run of two sites reports over loopback. What arrives at the other end of the stream, and what the store has, is
compared with what the ranks of one site said. Then the bytes of a report are counted, and the collectors' time for one
is measured, by part: one process, the median of several passes. It prints benchmarks/results/telemetry.md. A minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.local_job import run_local_ranks
from geocomm.observe.telemetry.report import ReportLine, ReportPacker, ReportUnpacker
from geocomm.observe.telemetry.run_store import RunStore

PASSES = 15
SITES, RANKS = 64, 8
"""Of the run whose collector shall take at most 5 % of a core."""


def train(seconds: float) -> None:
    """A rank of the run that is recorded."""
    import torch
    import torch.distributed as dist

    import geocomm

    torch.set_num_threads(1)
    dist.init_process_group("geocomm")
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(8)]), bucket_cap_mb=2
    )
    optimizer = torch.optim.AdamW(model.parameters())
    end, step, going_on = time.monotonic() + seconds, 0, torch.ones(1)
    while going_on.item():
        loss = model(torch.randn(32, 512)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        geocomm.report_step(step, loss=loss.item(), tokens=32 * 512)
        time.sleep(0.3)
        going_on.fill_(float(time.monotonic() < end))
        dist.all_reduce(going_on, op=dist.ReduceOp.MIN)
    dist.destroy_process_group()


def record(ranks: int, seconds: float, path: Path) -> None:
    """Write the reports of a run of two sites of `ranks` ranks, a line each."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"{folder}/reports.sock")
        receiver.settimeout(1.0)
        os.environ |= {"GEOCOMM_COLLECTOR": f"{folder}/reports.sock", "GEOCOMM_SECURITY": "insecure"}
        command = [sys.executable, __file__, "--train", str(seconds)]
        with path.with_suffix(".log").open("w") as log:
            run = threading.Thread(target=run_local_ranks, args=(command, ["a"] * ranks + ["b"] * ranks, log))
            run.start()
            with path.open("wb") as file:
                while run.is_alive():
                    with contextlib.suppress(TimeoutError):
                        file.write(zlib.decompress(receiver.recv(1 << 20)) + b"\n")
            run.join()


def recorded(path: Path) -> list[dict[str, Any]]:
    """The reports of the first site while it trained, in their order."""
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [said for said in found if said["site"] == "a" and not said["final"] and "steps" in said]


def text_of(said: dict[str, Any]) -> bytes:
    """The line of a report."""
    return json.dumps(said, separators=(",", ":")).encode()


def packets_of(texts: Sequence[bytes], ranks: int) -> list[bytes]:
    """How reports travel: what the ranks of a site say in a second together."""
    packer = ReportPacker()
    return [packer.pack(deque(texts[i : i + ranks])) for i in range(0, len(texts), ranks)]


def travelling_bytes(reports: Sequence[dict[str, Any]], ranks: int, without: str = "") -> float:
    """Of a report, once the stream has begun. without: that field."""
    said = [text_of({name: value for name, value in one.items() if name != without}) for one in reports]
    packets = packets_of(said, ranks)
    return statistics.mean(map(len, packets[len(packets) // 4 :])) / ranks


def check(reports: Sequence[dict[str, Any]], packets: Sequence[bytes]) -> list[ReportLine]:
    """What arrives is what was said, and the store has it. Returns what arrives."""
    unpacker = ReportUnpacker()
    arrived = [line for packet in packets for some in unpacker.take(packet) for line in some]
    assert [line.text for line in arrived] == [text_of(said) for said in reports]
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:
        store.add([line.report for line in arrived], 1.0)
        for said, received in zip(reports, store.reports(details=True), strict=True):
            assert received.report.model_dump(include={*said} - {"events"}) | {"events": said.get("events", [])} == (
                {"events": [], **said}
            )
    return arrived


def unpack_s(packets: Sequence[bytes], ranks: int) -> float:
    """Processor time for a report: from the bytes of a connection to what they say, once the stream has begun."""
    unpacker, begun = ReportUnpacker(), len(packets) // 4
    for packet in packets[:begun]:
        list(unpacker.take(packet))
    began = time.process_time()
    for packet in packets[begun:]:
        list(unpacker.take(packet))
    return (time.process_time() - began) / (len(packets) - begun) / ranks


def seconds_of(reports: int, work: Callable[[], object]) -> float:
    """Processor time for a report of what does some work for that many."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / reports


def store_s(lines: Sequence[ReportLine], ranks: int) -> float:
    """Processor time for a report: to the disk, what the ranks of a site say in a second together."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:

        def keep() -> None:
            for i in range(0, len(lines), ranks):
                store.add([line.report for line in lines[i : i + ranks]], float(i))

        return seconds_of(len(lines), keep)


def stored_bytes(lines: Sequence[ReportLine]) -> float:
    """Of a report in the store's file."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder), write=True)
        store.add([line.report for line in lines], 1.0)
        store.close()
        return sum(file.stat().st_size for file in Path(folder).iterdir()) / len(lines)


def measure(reports: Sequence[dict[str, Any]], ranks: int) -> None:
    """Check, and print."""
    count, texts = len(reports), [text_of(said) for said in reports]
    packets = packets_of(texts, ranks)
    arrived = check(reports, packets)
    datagrams = [zlib.compress(text, 1) for text in texts]
    operations = statistics.mean(len(said.get("operations", [])) for said in reports)
    print(f"{count} reports of {ranks} ranks, with {operations:.1f} operations each:")
    print(f"{statistics.mean(map(len, texts)):.0f} B of JSON, {statistics.mean(map(len, datagrams)):.0f} B as ", end="")
    print(f"a datagram, {stored_bytes(arrived):.0f} B in the store.\n")
    print("| a report as it travels | bytes | of the site, a second |\n|---|---:|---:|")
    for name in ("", "stats", "training", "steps", "operations"):
        size = travelling_bytes(reports, ranks, name)
        print(f"| {f'without {name}' if name else 'whole'} | {size:.0f} | {size * ranks:.0f} |")
    unpacked, kept, read, packed = (
        [measured() for _ in range(PASSES)]
        for measured in (
            lambda: unpack_s(packets, ranks),
            lambda: store_s(arrived, ranks),
            lambda: seconds_of(count, lambda: [ReportLine.unpack(datagram) for datagram in datagrams]),
            lambda: seconds_of(count, lambda: packets_of(texts, ranks)),
        )
    )
    both = [one + other for one, other in zip(unpacked, kept, strict=True)]
    print("\n| time for a report | µs, median | least |\n|---|---:|---:|")
    for name, times in (
        ("at the hub: unpack and check", unpacked),
        ("at the hub: store", kept),
        ("at the hub: both", both),
        ("at its site: unpack the datagram and check", read),
        ("at its site: pack for the hub", packed),
    ):
        print(f"| {name} | {1e6 * statistics.median(times):.0f} | {1e6 * min(times):.0f} |")
    share = statistics.median(both) * SITES * RANKS
    print(f"\nAt the hub of {SITES} sites of {RANKS} ranks: {share:.1%} of a core.")


def main() -> None:
    """Record, or be a rank, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="of a site")
    parser.add_argument("--seconds", type=float, default=40, help="of the run")
    parser.add_argument("--reports", type=Path, help="recorded before; made where it is not there")
    parser.add_argument("--train", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        train(args.train)
        return
    for line in Conditions.here(" ".join(sys.argv)).lines():
        print(line)
    print()
    with tempfile.TemporaryDirectory() as scratch:
        path = args.reports or Path(scratch) / "reports"
        if not path.exists():
            record(args.ranks, args.seconds, path)
        measure(recorded(path), args.ranks)


if __name__ == "__main__":
    main()
