"""What telemetry costs: `python benchmarks/bench_telemetry.py`.

A DDP run of two sites reports over loopback. What arrives at the other end of the stream, and what the store has, is
compared with what the ranks of one site said. Then the bytes of a report are counted, and the collector's time for one
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.local_job import run_local_ranks
from geocomm.observe.telemetry.report import PackedReport, packed
from geocomm.observe.telemetry.report_lines import read_line
from geocomm.observe.telemetry.report_stream import ReportPacker, ReportUnpacker
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
    """Write the reports of a run of two sites of `ranks` ranks, with an empty line after each."""
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
                        file.write(zlib.decompress(receiver.recv(1 << 20)) + b"\n\n")
            run.join()


def recorded(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    """Of the reports of the first site while it trained, in their order: the head, and the lines after it."""
    found: list[tuple[dict[str, Any], bytes]] = []
    for text in path.read_bytes().split(b"\n\n"):
        first, _, rest = text.partition(b"\n")
        head: dict[str, Any] = json.loads(first)["head"] if first else {}
        if head.get("site") == "a" and not head["final"] and b'\n{"step":' in text:
            found.append((head, rest))
    return found


def joined(head: dict[str, Any], rest: bytes) -> bytes:
    """A report of its head and its other lines."""
    return json.dumps({"head": head}, separators=(",", ":")).encode() + b"\n" + rest


def read(text: bytes) -> PackedReport:
    """A report as collectors have it."""
    return packed([read_line(line) for line in text.split(b"\n")])


def by_second(reports: Sequence[PackedReport], ranks: int) -> list[list[PackedReport]]:
    """What the ranks of a site say in each second."""
    return [list(reports[i : i + ranks]) for i in range(0, len(reports), ranks)]


def packets_of(reports: Sequence[PackedReport], ranks: int) -> list[bytes]:
    """How they travel: a packet a second."""
    packer = ReportPacker()
    return [packer.pack(deque(said)) for said in by_second(reports, ranks)]


def travelling_bytes(reports: Sequence[PackedReport], ranks: int, without: str = "") -> float:
    """Of a report, once the stream has begun. without: lines of that kind."""
    said = [PackedReport(one.head, [line for line in one.lines if line.shape.kind != without]) for one in reports]
    packets = packets_of(said, ranks)
    return statistics.mean(map(len, packets[len(packets) // 4 :])) / ranks


def check(texts: Sequence[bytes], packets: Sequence[bytes]) -> list[PackedReport]:
    """What arrives is what was said, and the store has it. Returns what arrives."""
    unpacker = ReportUnpacker()
    arrived = [report for packet in packets for some in unpacker.take(packet) for report in some]
    for text, report in zip(texts, arrived, strict=True):
        assert b"\n".join(line.text for line in report.lines) == text
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:
        store.add(arrived, 1.0)
        for text, received in zip(texts, store.reports(details=True), strict=True):
            lines: list[dict[str, Any]] = [json.loads(line) for line in text.split(b"\n")]
            assert received.report.stats == lines[1]["stats"]
            assert received.report.operations == [line["operation"] for line in lines if "operation" in line]
    return arrived


def unpack_s(packets: Sequence[bytes], ranks: int) -> float:
    """Processor time for a report: from the bytes of a connection to lines, once the stream has begun."""
    unpacker, begun = ReportUnpacker(), len(packets) // 4
    for packet in packets[:begun]:
        list(unpacker.take(packet))
    began = time.process_time()
    for packet in packets[begun:]:
        list(unpacker.take(packet))
    return (time.process_time() - began) / (len(packets) - begun) / ranks


def store_s(reports: Sequence[PackedReport], ranks: int) -> float:
    """Processor time for a report: from lines to the disk."""
    seconds = by_second(reports, ranks)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(RunStore(Path(folder), write=True)) as store:
        began = time.process_time()
        for second, said in enumerate(seconds):
            store.add(said, float(second))
        return (time.process_time() - began) / len(reports)


def stored_bytes(reports: Sequence[PackedReport]) -> float:
    """Of a report in the store's file."""
    with tempfile.TemporaryDirectory() as folder:
        store = RunStore(Path(folder), write=True)
        store.add(reports, 1.0)
        store.close()
        return sum(file.stat().st_size for file in Path(folder).iterdir()) / len(reports)


def measure(texts: Sequence[bytes], ranks: int) -> None:
    """Check, and print."""
    reports = [read(text) for text in texts]
    packets = packets_of(reports, ranks)
    arrived = check(texts, packets)
    alone = statistics.mean(len(zlib.compress(text, 1)) for text in texts)
    operations = sum(line.shape.kind == "operation" for report in reports for line in report.lines) / len(reports)
    print(f"{len(texts)} reports of {ranks} ranks, with {operations:.1f} operations each:")
    print(f"{statistics.mean(map(len, texts)):.0f} B of JSON, {alone:.0f} B as a datagram, ", end="")
    print(f"{stored_bytes(reports):.0f} B in the store.\n\n| a report as it travels | bytes | of the site, a second |")
    print("|---|---:|---:|")
    for name, kind in (
        ("whole", ""),
        *((f"without {kind}", kind) for kind in ("stats", "training", "step", "operation")),
    ):
        size = travelling_bytes(reports, ranks, kind)
        print(f"| {name} | {size:.0f} | {size * ranks:.0f} |")
    unpacked = [unpack_s(packets, ranks) for _ in range(PASSES)]
    kept = [store_s(arrived, ranks) for _ in range(PASSES)]
    print("\n| the collector's time for a report | µs, median | least |\n|---|---:|---:|")
    both = [one + other for one, other in zip(unpacked, kept, strict=True)]
    for name, times in (("unpack and check", unpacked), ("store", kept), ("both", both)):
        print(f"| {name} | {1e6 * statistics.median(times):.0f} | {1e6 * min(times):.0f} |")
    share = statistics.median(both) * SITES * RANKS
    print(f"\n{SITES} sites of {RANKS} ranks: {share:.1%} of a core.")


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
        measure([joined(head, rest) for head, rest in recorded(path)], args.ranks)


if __name__ == "__main__":
    main()
