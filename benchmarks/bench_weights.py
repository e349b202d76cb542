"""Weight streams: bytes against their bound, what the loop waits, a reader that begins, and a line between sites.

`python benchmarks/bench_weights.py [--elements N] [--wan-elements N] [--rounds N] [--no-wan] [--results FOLDER]`

1. The pairs of weights of `bench_deltas` are published as two versions, and read. The bytes are those of the second
   version: its frames and its file. The bound is the entropy of which weights changed and of their steps.
2. `publish()` copies the weights, and a thread does the rest: how long the call takes, beside a plain copy.
3. A reader that begins at version 21, from a relay that has followed the stream: bytes that the relay had to fetch.
4. Over an emulated line between two sites: the second version into a folder, from a relay over TLS and from a bucket
   (moto's server); and the whole file from that bucket, as boto3 gets it.

What is read is compared bit for bit, before any time counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_deltas import Pair, bound_bytes, made_pair, trained_pairs
from safetensors.torch import load_file, save_file

import geocomm
from geocomm.core.addresses import listen_on
from geocomm.data.places import Folder
from geocomm.lab.bench.bench_report import Conditions, page, table_lines, write_pair
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.subscription import StreamRelay

LINE = EmulatedLink(rate_bps=200e6, delay_s=0.05, loss=0.001)
_BUCKET, _S3_PORT, _RELAY_PORT = "weights", 5055, 29700


def same_bits(some: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(some.view(torch.int16), other.view(torch.int16))


def seconds(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


# ---- bytes and times on one machine


def of_pair(pair: Pair, rounds: int, folder: Path) -> dict[str, Any]:
    """Publish it and read it: the bytes, and medians of times."""
    tensors = {"w": pair.base.clone()}
    times: dict[str, list[float]] = {"call": [], "out": [], "update": []}
    size = 0
    for _ in range(rounds):
        shutil.rmtree(folder, ignore_errors=True)
        into = {"w": torch.empty_like(pair.base)}
        tensors["w"].copy_(pair.base)
        with geocomm.WeightPublisher(folder, tensors) as publisher, geocomm.WeightReader(str(folder), into) as reader:
            publisher.publish(wait=True)
            assert reader.update() == 1
            tensors["w"].copy_(pair.values)
            begin = time.perf_counter()
            publisher.publish()
            times["call"].append(time.perf_counter() - begin)
            while publisher.last() < 2:
                time.sleep(0.001)
            times["out"].append(time.perf_counter() - begin)
            times["update"].append(seconds(reader.update))
            assert reader.version == 2
            assert same_bits(into["w"], pair.values), pair.name
        size = (folder / "versions/000000002.json").stat().st_size
        size += sum(path.stat().st_size for path in (folder / "frames/000000002").iterdir())
    bound = bound_bytes(pair)
    return {
        "weights": pair.name,
        "raw": pair.base.nbytes,
        "bytes": size,
        "times_bound": size / bound,
        **{f"{name}_s": statistics.median(values) for name, values in times.items()},
    }


def of_copy(mib: int, rounds: int, folder: Path) -> dict[str, float]:
    """How long `publish()` takes, beside a plain copy of the same tensors."""
    tensors = {f"w{at}": torch.randn(mib << 15).bfloat16() for at in range(16)}
    calls: list[float] = []
    copies: list[float] = []
    own = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with geocomm.WeightPublisher(folder, tensors) as publisher:
        for _ in range(rounds):
            copies.append(seconds(lambda: [own[name].copy_(tensor) for name, tensor in tensors.items()]))
            calls.append(seconds(publisher.publish))
            while publisher.last() < len(calls):
                time.sleep(0.01)
    return {"mib": mib, "call_s": statistics.median(calls), "copy_s": statistics.median(copies)}


def of_late_reader(elements: int, folder: Path) -> dict[str, int]:
    """What a relay fetches for a reader that begins behind 20 versions, and what that reader gets."""
    ca = JobCa.create(folder / "keys", "run", ["a"], 30)
    keys = Keys.load(ca.add("serving", 30, reader=True), readers=True)
    tensors = {"w": made_pair(0.01, elements).base}
    sources = StreamSources([Folder("stream", folder / "stream")], folder / "kept", keys=keys, wait_s=5)
    listener, loop = listen_on("127.0.0.1:0"), asyncio.new_event_loop()
    task = loop.create_task(StreamRelay(sources, keys, print).serve(listener))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    url = f"tls://127.0.0.1:{listener.getsockname()[1]}"
    with geocomm.WeightPublisher(folder / "stream", tensors, keys=ca.folder / "a") as publisher:
        first = {"w": torch.empty_like(tensors["w"])}
        with geocomm.WeightReader(url, first, keys=keys.folder) as reader:
            for version in range(1, 22):
                publisher.publish(wait=True)
                while reader.update() < version:
                    time.sleep(0.1)
                moved = torch.rand(tensors["w"].shape) < 0.01
                before = {"w": tensors["w"].clone()}
                tensors["w"].view(torch.int16).add_(moved.short())
    assert same_bits(first["w"], before["w"])
    fetched = sources.fetched_bytes
    late = {"w": torch.empty_like(tensors["w"])}
    with geocomm.WeightReader(url, late, keys=keys.folder) as reader:
        assert reader.update() == 21
        got = reader._sources.fetched_bytes
    assert same_bits(late["w"], before["w"])
    loop.call_soon_threadsafe(task.cancel)
    return {"raw": tensors["w"].nbytes, "reader_bytes": got, "relay_bytes": sources.fetched_bytes - fetched}


# ---- over the line


def prepare(pair: Pair, folder: Path) -> None:
    """A stream of two versions, one that ends at the first, and the second as one file; keys."""
    ca = JobCa.create(folder / "keys", "run", ["a"], 30)
    ca.add("serving", 30, reader=True)
    tensors = {"w": pair.base.clone()}
    with geocomm.WeightPublisher(folder / "stream", tensors, keys=ca.folder / "a") as publisher:
        publisher.publish(wait=True)
        shutil.copytree(folder / "stream", folder / "first")
        tensors["w"].copy_(pair.values)
        publisher.publish(wait=True)
    save_file(tensors, folder / "whole.safetensors")


def serve(folder: Path) -> None:
    """Site a: a bucket and a relay, until site b has all."""
    address = os.environ["MASTER_ADDR"]
    command = [sys.executable, "-m", "moto.server", "-H", "0.0.0.0", "-p", str(_S3_PORT)]
    bucket = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = _client(address)
    while True:
        try:
            client.create_bucket(Bucket=_BUCKET)
            break
        except Exception:
            time.sleep(0.2)
    for path in (folder / "stream").rglob("*"):
        if path.is_file():
            client.upload_file(str(path), _BUCKET, f"stream/{path.relative_to(folder / 'stream')}")
    client.upload_file(str(folder / "whole.safetensors"), _BUCKET, "whole.safetensors")
    arguments = ["subscribe", str(folder / "stream"), "--into", str(folder / "relayed"), "--every", "0.2s"]
    arguments += ["--listen", f":{_RELAY_PORT}", "--keys", str(folder / "keys/serving")]
    relay = subprocess.Popen([sys.executable, "-m", "geocomm", *arguments])
    while not (folder / "relayed").exists():
        time.sleep(0.2)
    (folder / "ready").touch()
    while not (folder / "done").exists():
        time.sleep(0.2)
    for process in (relay, bucket):
        process.terminate()
        process.wait()


def fetch(folder: Path, rounds: int) -> None:
    """Site b: the second version by each way, in turns."""
    address = os.environ["MASTER_ADDR"]
    while not (folder / "ready").exists():
        time.sleep(0.2)
    expected = load_file(folder / "whole.safetensors")
    table = {"endpoint": f"http://{address}:{_S3_PORT}", "access_key_id": "x", "secret_access_key": "x", "region": "x"}
    lines = [f'["s3://{_BUCKET}/stream"]', *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    (folder / "stores.toml").write_text("\n".join(lines))
    os.environ["GEOCOMM_STORES"] = str(folder / "stores.toml")
    ways = {"relay, TLS": f"tls://{address}:{_RELAY_PORT}", "bucket": f"s3://{_BUCKET}/stream"}
    times: dict[str, list[float]] = {name: [] for name in (*ways, "whole file, bucket")}
    for number in range(rounds):
        for name, url in ways.items():
            into = folder / f"model-{number}-{name[:3]}"
            with geocomm.WeightReader(str(folder / "first"), into, keys=folder / "keys/serving") as reader:
                assert reader.update() == 1
            with geocomm.WeightReader(url, into, keys=folder / "keys/serving") as reader:
                times[name].append(seconds(reader.update))
                assert reader.version == 2
            assert same_bits(load_file(into / "model.safetensors")["w"], expected["w"]), name
            shutil.rmtree(into.resolve())
        target = folder / f"whole-{number}.safetensors"
        get = partial(_client(address).download_file, _BUCKET, "whole.safetensors", str(target))
        whole = seconds(get)
        times["whole file, bucket"].append(whole)
        assert same_bits(load_file(target)["w"], expected["w"])
        target.unlink()
    (folder / "times.json").write_text(json.dumps(times))
    (folder / "done").touch()


def _client(address: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=f"http://{address}:{_S3_PORT}",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        region_name="us-east-1",
    )


def over_the_line(elements: int, rounds: int, folder: Path) -> tuple[dict[str, list[float]], int, bool]:
    """Times by way, the bytes of the second version, and whether the emulator was on time."""
    pair = made_pair(0.01, elements)
    prepare(pair, folder)
    size = sum(path.stat().st_size for path in (folder / "stream/frames/000000002").iterdir())
    command = [sys.executable, __file__, "--site-of", str(folder), "--rounds", str(rounds)]
    environment = os.environ | {"GEOCOMM_SECURITY": "insecure"}
    with WanRun(EmulatedWan.uniform(2, LINE), command, environment=environment, stdout=subprocess.DEVNULL) as run:
        status = run.wait(900)
        report = run.report()
    assert status == 0, status
    return json.loads((folder / "times.json").read_text()), size, report is not None and report.reliable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=64 << 20, help="of made pairs")
    parser.add_argument("--wan-elements", type=int, default=128 << 20)
    parser.add_argument("--copy-mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wan-rounds", type=int, default=3)
    parser.add_argument("--no-wan", action="store_true")
    parser.add_argument("--site-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.site_of is not None:
        serve(options.site_of) if os.environ["NODE_RANK"] == "0" else fetch(options.site_of, options.rounds)
        return
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as name:
        folder = Path(name)
        late = of_late_reader(options.elements // 8, folder / "late")
        print(late, flush=True)
        copy = of_copy(options.copy_mib, options.rounds, folder / "copy")
        shutil.rmtree(folder / "copy")
        print(copy, flush=True)
        pairs = trained_pairs([1e-6, 3e-6, 1e-4], 4, 512, 4)
        pairs += [made_pair(share, options.elements) for share in (0.003, 0.01, 0.045)]
        rows = [of_pair(pair, options.rounds, folder / "pair") for pair in pairs]
        for row in rows:
            print(row, flush=True)
        pairs.clear()
        line: tuple[dict[str, list[float]], int, bool] = ({}, 0, True)
        if not options.no_wan:
            line = over_the_line(options.wan_elements, options.wan_rounds, folder)
            print(line, flush=True)
    cells = [
        (
            str(row["weights"]),
            f"{row['raw'] / 1e6:.0f}",
            f"{row['bytes']:,}",
            f"{row['times_bound']:.3f}",
            *(f"{row[name]:.3f}" for name in ("call_s", "out_s", "update_s")),
        )
        for row in rows
    ]
    headings = ("weights", "raw MB", "bytes", "× the bound", "publish() s", "version out s", "update() s")
    text = [
        *table_lines(headings, cells),
        "",
        f"`publish()` of {copy['mib']} MiB in 16 tensors takes {copy['call_s']:.3f} s, a plain copy of them "
        f"{copy['copy_s']:.3f} s.",
        "",
        f"A reader that begins behind 20 versions (1 % each, {late['raw'] / 1e6:.0f} MB of weights) gets "
        f"{late['reader_bytes']:,} bytes from its relay, which fetches {late['relay_bytes']:,} bytes for it.",
    ]
    if line[0]:
        lines = [(way, *(f"{value:.2f}" for value in sorted(values))) for way, values in line[0].items()]
        text += [
            "",
            f"Over 200 Mbit/s, 100 ms, 0.1 % loss, to a folder: {2 * options.wan_elements / 1e6:.0f} MB of weights, of "
            f"which 1 % changed, {line[1]:,} bytes. Seconds of each of {options.wan_rounds} rounds, sorted. "
            f"{'' if line[2] else 'The emulator was late: these times are void as times of a line.'}",
            "",
            *table_lines(("way", *(str(at + 1) for at in range(options.wan_rounds))), lines),
        ]
    note = "All processes share the machine. The bound is the entropy of which weights changed, and of their steps."
    path = options.results / "weights.md"
    write_pair(
        path,
        page("Weight streams", conditions, note, *text, ""),
        {"conditions": asdict(conditions), "pairs": rows, "copy": copy, "late": late, "line": line},
    )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
