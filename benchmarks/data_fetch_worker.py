"""What a site of bench_data_fetch.py runs: a server of its shards, and the same steps and rounds in several ways of
reading. Site 0 reads shards of both sites. Prints a line of JSON for each way."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from geocomm.data.catalog import Rules, Shard, Version
from geocomm.data.places import open_place
from geocomm.data.shard_cache import ShardCache
from geocomm.data.shard_stores import ShardStores

STEP_S = 0.1
ROW_BYTES = 120_000
"""Of a step: 440,000 tokens of 16 bits a second with the time of rounds, 46 GPUs of 9,500."""
SHARD_BYTES = 2 << 20
DEAL = 8
ROUND_EVERY = 25
ROUND_ELEMENTS = 4 << 20
ROUND_S = 0.9
"""Of a round, about, for the time of a step."""
WARM_STEPS = 50
DEAD_FROM = 1000
PORT = 5557
RANK = int(os.environ["NODE_RANK"])


def shards_of(deals: int) -> list[Shard]:
    """Every other one at each site."""
    return [
        Shard(hashlib.sha256(content(n)).hexdigest(), f"site{n % 2}", f"{n}.ds", 0, SHARD_BYTES // 2)
        for n in range(deals * DEAL)
    ]


def content(number: int) -> bytes:
    """Of a shard."""
    return np.random.default_rng(number).bytes(SHARD_BYTES)


def by_geocomm(stores: ShardStores, shards: list[Shard], ahead: int) -> Iterator[float]:
    """Seconds that each step has waited."""
    cache = ShardCache(stores, row_bytes=ROW_BYTES)
    rows = DEAL * SHARD_BYTES // ROW_BYTES
    for first in range(0, len(shards), DEAL):
        cache.want(shards[first : first + (1 + ahead) * DEAL])
        for row in range(rows):
            before = cache.waited_seconds
            cache.ids(shards[first + row % DEAL])[: ROW_BYTES // 2].sum()
            yield cache.waited_seconds - before
    cache.close()


def by_hand(stores: ShardStores, shards: list[Shard], ahead: int) -> Iterator[float]:
    """A thread gets whole objects with obstore, as fast as it goes."""
    found: dict[str, bytes] = {}
    ready: queue.Queue[Shard] = queue.Queue(maxsize=max(ahead * DEAL, 1))

    def get() -> None:
        for shard in shards:
            found[shard.sha256] = stores.read(shard, 0, SHARD_BYTES)  # one request for all of it
            ready.put(shard)

    thread = threading.Thread(target=get, daemon=True)
    thread.start()
    rows = DEAL * SHARD_BYTES // ROW_BYTES
    for first in range(0, len(shards), DEAL):
        for row in range(rows):
            began = time.monotonic()
            shard = shards[first + row % DEAL]
            while shard.sha256 not in found:
                ready.get() if not ready.empty() else time.sleep(0.005)
            np.frombuffer(found[shard.sha256], "<u2")[: ROW_BYTES // 2].sum()
            yield time.monotonic() - began
        for shard in shards[first : first + DEAL]:
            del found[shard.sha256]


def alone(stores: ShardStores, shards: list[Shard], ahead: int) -> Iterator[float]:
    """Nothing is read."""
    yield from [0.0] * (len(shards) // DEAL * (DEAL * SHARD_BYTES // ROW_BYTES))


def steps(waits: Iterator[float], count: int, dead: tuple[int, int], server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Of both sites together: site 1 only waits for rounds. dead: steps between which site 1's server stands still."""
    weights = torch.zeros(ROUND_ELEMENTS)
    waited: list[float] = []
    rounds: list[float] = []
    for step in range(count):
        if RANK == 1 and step in dead:
            print(json.dumps({"step": step, "at": time.monotonic()}), flush=True)
            server.send_signal(signal.SIGSTOP if step == dead[0] else signal.SIGCONT)
        waited.append(next(waits) if RANK == 0 else 0.0)
        time.sleep(STEP_S)
        if step % ROUND_EVERY == ROUND_EVERY - 1:
            dist.barrier()
            began = time.monotonic()
            dist.all_reduce(weights)
            rounds.append(time.monotonic() - began)
    late = [step for step in range(WARM_STEPS, count) if waited[step] > 0.01]
    return {
        "steps": count - WARM_STEPS,
        "waited_steps": len(late),
        "waited_at": late,
        "waited_s": sum(waited[step] for step in late),
        "rounds_s": rounds[1:],
    }


def main() -> None:
    """Arguments: deals, deals ahead, seconds for which site 1's server stands still, names of ways."""
    deals, ahead, dead_s = (int(text) for text in sys.argv[1:4])
    head, _, last = os.environ["MASTER_ADDR"].rsplit(".", 2)
    addresses = [f"{head}.{site}.{last}" for site in (0, 1)]
    folder = Path(tempfile.mkdtemp())
    own = [sys.executable, "-m", "moto.server", "-H", addresses[RANK], "-p", str(PORT)]
    with subprocess.Popen(own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            lines = [
                f'[site{site}]\naccess_key_id = "a"\nsecret_access_key = "b"\nregion = "us-east-1"\n'
                f'endpoint = "http://{address}:{PORT}"\nclient_options = {{allow_http = true}}\n'
                for site, address in enumerate(addresses)
            ]
            (folder / "stores.toml").write_text("".join(lines))
            os.environ |= {"GEOCOMM_STORES": str(folder / "stores.toml"), "GEOCOMM_DATA_CACHE": str(folder / "cache")}
            fill(addresses[RANK], shards_of(deals))
            os.environ |= {"RANK": str(RANK), "WORLD_SIZE": "2"}
            dist.init_process_group("geocomm")
            measure(shards_of(deals), ahead, dead_s, server)
            dist.destroy_process_group()
        finally:
            server.send_signal(signal.SIGCONT)
            server.kill()
            shutil.rmtree(folder, ignore_errors=True)


def fill(address: str, shards: list[Shard]) -> None:
    """Put this site's shards into its server, once it is up."""
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(f"http://{address}:{PORT}/tokens", method="PUT")).close()
            break
        except OSError:
            time.sleep(0.2)
    place = open_place("s3://tokens/web", f"site{RANK}")
    for number in range(RANK, len(shards), 2):
        place.create(shards[number].path, content(number))


def measure(shards: list[Shard], ahead: int, dead_s: int, server: subprocess.Popen[bytes]) -> None:
    """One way after the other, at both sites."""
    tables = {f"site{site}": {"url": "s3://tokens/web", "near": [f"site{site}"]} for site in (0, 1)}
    rules = Rules.model_validate({"sites": {"site0": "a", "site1": "b"}, "stores": tables})
    version = Version(number=1, tokenizer="byte", vocabulary=1 << 16, dtype="<u2", rules=rules, parts=())
    stores = ShardStores(version, shards, f"site{RANK}")
    count = len(shards) // DEAL * (DEAL * SHARD_BYTES // ROW_BYTES)
    step_s = STEP_S + ROUND_S / ROUND_EVERY
    dead = (DEAD_FROM, DEAD_FROM + int(dead_s / step_s)) if dead_s else (-1, -1)
    for way in sys.argv[4:]:
        read = {"alone": alone, "geocomm": by_geocomm, "obstore": by_hand}[way]
        found = steps(read(stores, shards, ahead), count, dead, server)
        if RANK == 0:
            print(json.dumps({"way": way, **found}), flush=True)


if __name__ == "__main__":
    main()
