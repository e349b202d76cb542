"""Weights from one site to four regions of four readers, over emulated lines, beside Gloo's broadcast in the same run.

`python benchmarks/bench_weights_regions.py [--elements N] [--deltas N] [--results FOLDER]`

Each region has a relay (`geocomm subscribe --listen`), which follows a relay where it trains, and four readers of it,
each a process with tensors of its own. Lines from the training have 50, 50, 50 and 25 Mbit/s, all others 50; a round
trip takes 80 ms. Published are a version with all weights, and deltas of 4.5 %. A time is from `publish()` until the
last reader has the version. Then a reader begins in the first region behind 20 more versions. Then the 17 processes are
ranks of a Gloo group, which broadcasts the bytes of each delta, those of all weights packed, and the raw weights.

Each reader compares the SHA-256 of its tensors, and each rank that of what it was sent, before any time counts. Bytes
are those that the emulator has passed on, with headers.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from bench_deltas import made_pair

import geocomm
from geocomm.core.errors import DataError
from geocomm.lab.bench.bench_report import Conditions, page, table_lines, write_pair
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanReport, WanRun
from geocomm.security.job_ca import JobCa

REGIONS, READERS = 4, 4
SITES = ("train", *(f"region{at}" for at in range(1, REGIONS + 1)))
RATES = dict(zip(SITES[1:], (50e6, 50e6, 50e6, 25e6), strict=True))
DELAY_S = 0.04
PORT, GLOO_PORT = 29700, 29800
LATE = 20
_LIMIT_S = 300.0


def digest(tensor: torch.Tensor) -> str:
    raw: Any = tensor.view(torch.uint8).numpy()
    return hashlib.sha256(raw).hexdigest()


def await_that(done: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _LIMIT_S
    while not done():
        if time.monotonic() > until:
            raise SystemExit(f"not within {_LIMIT_S:g} s: {what}")
        time.sleep(0.02)


def say(path: Path, **facts: Any) -> None:
    """A file that is whole once it is there."""
    new = path.with_name(f".{path.name}")
    new.write_text(json.dumps(facts))
    new.rename(path)


def heard(path: Path) -> dict[str, Any]:
    await_that(path.exists, str(path))
    return json.loads(path.read_text())


# ---- what runs at the sites


def site(folder: Path, node: int, versions: int) -> None:
    """A relay, and the processes of a site."""
    source = str(folder / "stream") if node == 0 else f"tls://{os.environ['MASTER_ADDR']}:{PORT}"
    relay = [*("geocomm", "subscribe", source, "--into", str(folder / f"model{node}"), "--listen", f":{PORT}")]
    relay += ["--every", "0.2", "--keys", str(folder / "keys/serving")]
    ranks = [0] if node == 0 else range(1 + READERS * (node - 1), 1 + READERS * node)
    with subprocess.Popen([sys.executable, "-m", *relay]) as process, contextlib.ExitStack() as held:
        command = [sys.executable, __file__, "--site-of", str(folder), "--deltas", str(versions - 1), "--rank"]
        started = [held.enter_context(subprocess.Popen([*command, str(rank)])) for rank in ranks]
        failed = [one.wait() for one in started if one.wait()]
        process.send_signal(signal.SIGTERM)
    if failed:
        raise SystemExit(f"site {SITES[node]}: a process ended with status {failed[0]}")


def train(folder: Path, versions: int) -> None:
    """Publish each version once the one before has arrived everywhere."""
    pair = made_pair(0.045, int((folder / "elements").read_text()))
    tensors = {f"w{at}": piece.clone() for at, piece in enumerate(pair.base.chunk(8))}
    made = torch.Generator().manual_seed(3)
    with geocomm.WeightPublisher(folder / "stream", tensors, keys=folder / "keys/train") as publisher:

        def publish(version: int) -> None:
            at = time.monotonic()
            publisher.publish(step=version, wait=True)
            frames = list((folder / f"stream/frames/{version:09}").iterdir())
            size = sum(path.stat().st_size for path in frames)
            packed = b"".join(path.read_bytes() for path in frames)
            (folder / f"packed-{version}").write_bytes(packed)
            digests = {name: digest(tensor) for name, tensor in tensors.items()}
            say(folder / f"published-{version}", at=at, bytes=size, digests=digests)

        def change(share: float) -> None:
            for tensor in tensors.values():
                moved = torch.rand(tensor.shape, generator=made) < share
                tensor.view(torch.int16).add_(moved.short())

        for version in range(1, versions + 1):
            heard(folder / f"go-{version}")
            publish(version)
            change(0.045)
        heard(folder / "go-more")
        for version in range(versions + 1, versions + 1 + LATE):
            publish(version)
            change(0.01)


def read(folder: Path, rank: int, versions: int) -> None:
    """Follow the relay of this region."""
    count = int((folder / "elements").read_text())
    into = {f"w{at}": torch.zeros_like(piece) for at, piece in enumerate(torch.empty(count).bfloat16().chunk(8))}

    def follow(reader: geocomm.WeightReader, version: int, name: str) -> None:
        while True:
            with contextlib.suppress(DataError):  # its relay has not begun
                if reader.update() >= version:
                    break
            time.sleep(0.02)
        say(folder / name, at=time.monotonic())
        heard(folder / f"verify-{name}")
        expected = heard(folder / f"published-{version}")["digests"]
        assert {one: digest(tensor) for one, tensor in into.items()} == expected, version
        say(folder / f"good-{name}")

    source, keys = f"tls://127.0.0.1:{PORT}", folder / "keys/serving"
    with geocomm.WeightReader(source, into, keys=keys) as reader:
        say(folder / f"ready-{rank}")
        for version in range(1, versions + 1):
            follow(reader, version, f"arrived-{version}-{rank}")
    if rank == 1:
        heard(folder / "go-late")
        for tensor in into.values():
            tensor.zero_()
        begun = time.monotonic()
        with geocomm.WeightReader(source, into, keys=keys) as late:
            follow(late, versions + LATE, "late")
        say(folder / "late-took", seconds=heard(folder / "late")["at"] - begun, bytes=late._sources.fetched_bytes)


def broadcasts(folder: Path, rank: int, versions: int) -> None:
    """What Gloo does with the same bytes."""
    heard(folder / "go-gloo")
    address = f"tcp://{os.environ['MASTER_ADDR']}:{GLOO_PORT}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=1 + REGIONS * READERS)
    raw = 2 * int((folder / "elements").read_text())
    for name in [*(f"delta-{at}" for at in range(2, versions + 1)), "packed", "raw"]:
        if name == "raw":
            content = torch.arange(raw, dtype=torch.int32).to(torch.uint8)
        else:
            number = 1 if name == "packed" else int(name.partition("-")[2])
            packed = bytearray((folder / f"packed-{number}").read_bytes())
            content = torch.frombuffer(packed, dtype=torch.uint8)
        expected = digest(content)
        got = content if rank == 0 else torch.zeros_like(content)
        heard(folder / f"go-{name}")
        dist.barrier()
        at = time.monotonic()
        dist.broadcast(got, 0)
        own = f"gloo-{name}-{rank}"
        say(folder / own, begun=at, at=time.monotonic(), bytes=content.numel())
        if rank:
            heard(folder / f"verify-{own}")
        assert digest(got) == expected, name
        say(folder / f"good-{own}")
    dist.destroy_process_group()


# ---- the run


def over_the_lines(folder: Path, elements: int, versions: int) -> tuple[list[dict[str, Any]], dict[str, Any], bool]:
    """A row for each version and each broadcast; the late reader; whether the emulator was on time."""
    ca = JobCa.create(folder / "keys", "run", ["train"], 30)
    ca.add("serving", 30, reader=True)
    (folder / "elements").write_text(str(elements))
    wan = EmulatedWan(
        SITES,
        {
            (src, dst): EmulatedLink(rate_bps=min(RATES.get(src, 50e6), RATES.get(dst, 50e6)), delay_s=DELAY_S)
            for src in SITES
            for dst in SITES
            if src != dst
        },
    )
    ranks = range(1, 1 + REGIONS * READERS)
    rows: list[dict[str, Any]] = []
    command = [sys.executable, __file__, "--site-of", str(folder), "--deltas", str(versions - 1)]
    environment = os.environ | {"GEOCOMM_SECURITY": "insecure"}
    with WanRun(wan, command, environment=environment) as run:

        def crossed(before: WanReport, after: WanReport) -> dict[str, int]:
            """Bytes into each region."""
            pairs = [(src, dst) for src in SITES for dst in SITES[1:] if src != dst]
            return {
                region: sum(after.link(*one).bytes - before.link(*one).bytes for one in pairs if one[1] == region)
                for region in SITES[1:]
            }

        def ended(path: Path) -> bool:
            if not run.running():
                raise SystemExit(f"a site ended before there was {path}")
            return path.exists()

        def wait_for(*names: str) -> None:
            for name in names:
                await_that(partial(ended, folder / name), name)

        def measured(what: str, go: str, arrived: Callable[[int], str], begun: str) -> None:
            before = run.control.stats()
            say(folder / go)
            wait_for(*(arrived(rank) for rank in ranks), begun)
            into = crossed(before, run.control.stats())
            begin = heard(folder / begun)
            at = begin.get("begun", begin["at"])
            last = [heard(folder / arrived(rank))["at"] - at for rank in ranks]
            for rank in ranks:
                say(folder / f"verify-{arrived(rank)}")
            wait_for(*(f"good-{arrived(rank)}" for rank in ranks))
            rows.append({"what": what, "bytes": begin["bytes"], "seconds": max(last), "first": min(last), "into": into})
            print(rows[-1], flush=True)

        wait_for(*(f"ready-{rank}" for rank in ranks))
        for version in range(1, versions + 1):
            what = "stream, all weights" if version == 1 else "stream, a delta"
            measured(what, f"go-{version}", lambda r, v=version: f"arrived-{v}-{r}", f"published-{version}")
        say(folder / "go-more")
        newest, state = versions + LATE, folder / "model1/geocomm.json"
        await_that(lambda: json.loads(state.read_text())["number"] == newest, "the relay has all")
        before, begun = run.control.stats(), time.monotonic()
        say(folder / "go-late")
        wait_for("late")
        say(folder / "verify-late")
        wait_for("late-took")
        late = heard(folder / "late-took") | {"into": crossed(before, run.control.stats())["region1"]}
        before, pause_s = run.control.stats(), time.monotonic() - begun
        time.sleep(pause_s)  # what the relay asks in such a time, whoever begins
        late |= {"of_s": pause_s, "idle": crossed(before, run.control.stats())["region1"]}
        print(late, flush=True)
        say(folder / "go-gloo")
        for name in [*(f"delta-{at}" for at in range(2, versions + 1)), "packed", "raw"]:
            what = {"packed": "all weights, packed", "raw": "all weights, as they are"}.get(name, "the delta's bytes")
            measured(f"Gloo, {what}", f"go-{name}", lambda r, n=name: f"gloo-{n}-{r}", f"gloo-{name}-0")
        status = run.wait(120)
        report = run.report()
    assert status == 0, status
    return rows, late, report is not None and report.reliable


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=48 << 20)
    parser.add_argument("--deltas", type=int, default=3)
    parser.add_argument("--site-of", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    folder, versions = options.site_of, 1 + options.deltas
    if options.rank is not None:
        torch.set_num_threads(1)
        train(folder, versions) if options.rank == 0 else read(folder, options.rank, versions)
        broadcasts(folder, options.rank, versions)
        return
    if folder is not None:
        site(folder, int(os.environ["NODE_RANK"]), versions)
        return
    conditions = Conditions.here(shlex.join(["python", *sys.argv]))
    with tempfile.TemporaryDirectory(prefix="bench-weights-regions-") as name:
        rows, late, on_time = over_the_lines(Path(name), options.elements, versions)
    slowest = min(RATES.values())
    cells = [
        (
            str(row["what"]),
            f"{row['bytes'] / 1e6:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['seconds'] / (row['bytes'] * 8 / slowest):.2f}",
            f"{sum(row['into'].values()) / REGIONS / row['bytes']:.2f}",
            f"{max(row['into'].values()) / row['bytes']:.2f}",
        )
        for row in rows
    ]
    headings = ("what", "MB", "s", "× the slowest line's time", "× into a region, mean", "most")
    text = [
        *table_lines(headings, cells),
        "",
        f"The reader that begins behind {LATE} versions gets {late['bytes']:,} bytes in {late['seconds']:.2f} s. "
        f"Meanwhile {late['into']:,} bytes come into its region, and {late['idle']:,} in as much time without it: what "
        "its relay asks.",
    ]
    note = (
        f"{2 * options.elements / 1e6:.0f} MB of weights to {REGIONS} regions of {READERS} readers, over lines of "
        "50, 50, 50 and 25 Mbit/s and 80 ms; all processes share the machine. "
        f"{'' if on_time else 'The emulator was late: these times are void as times of a line.'}"
    )
    path = options.results / "weights-regions.md"
    write_pair(
        path,
        page("Weights to four regions", conditions, note, *text, ""),
        {"conditions": asdict(conditions), "rows": rows, "late": late, "on_time": on_time},
    )
    print(f"written: {path}")


if __name__ == "__main__":
    main()
