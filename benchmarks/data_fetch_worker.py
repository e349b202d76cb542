"""What a site of bench_data_fetch.py runs: a server of its shards, and the same steps and rounds in several ways of
reading. Site 0 reads shards of both sites. Prints a line of JSON for each way. GEOCOMM_PEERS: the peers' Python."""

from __future__ import annotations

import hashlib
import json
import math
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
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from geocomm.data.catalog import Rules, Shard, Version
from geocomm.data.places import open_place
from geocomm.data.shard_cache import ShardCache
from geocomm.data.shard_stores import ShardStores

PEER = Path(__file__).with_name("data_stream_peer.py")
PEER_SETS = os.environ.get("GEOCOMM_PEER_SETS", "")
"""A folder; for each peer, READER0 is what site 0 has of its data set, and READER1 what site 1 has."""
STEP_S = 0.1
BATCH = 15
ROW_BYTES = BATCH * 8000
"""Of a step: 440,000 tokens of 16 bits a second with the time of rounds, 46 GPUs of 9,500."""
SHARD_BYTES = 2 << 20
DEAL = 8
ROUND_EVERY = 25
ROUND_ELEMENTS = 4 << 20
WARM_STEPS = 50
WAIT_S = 0.05
"""A step that waits for longer counts; batches of workers come through a queue, which takes a few milliseconds."""
DEAD_FROM = 300
_OWN_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /dev/shm && exec "$@"', "site"]
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


def by_geocomm(stores: ShardStores, shards: list[Shard], ahead: int) -> Generator[float]:
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


def by_hand(stores: ShardStores, shards: list[Shard], ahead: int) -> Generator[float]:
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


def by_peer(reader: str, ahead: int, endpoint: str) -> Generator[float]:
    """One of `data_stream_peer`, which is a process of its own, as it would be with the model in it. It waits no more
    where it has ended with an error, which is printed."""
    url = f"s3://tokens/web/{reader}"
    command = [os.environ["GEOCOMM_PEERS"], str(PEER), "read", reader, f"{PEER_SETS}/{reader}0"]
    command += [str(ahead), str(BATCH), url, endpoint]
    with subprocess.Popen(
        [*_OWN_SHM, *command], env=peer_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        while process.poll() is None:
            process.stdin.write("\n")
            process.stdin.flush()
            if line := process.stdout.readline():
                yield float(line)
            else:
                break
        while True:
            yield math.nan


def peer_environment() -> dict[str, str]:
    """Of one rank; the peers' Python may have torch's entry points of a geocomm that is not there."""
    alone = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "NNODES": "1",
        "NODE_RANK": "0",
    }
    return os.environ | alone | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}


def alone(stores: ShardStores, shards: list[Shard], ahead: int) -> Generator[float]:
    """Nothing is read."""
    yield from [0.0] * (len(shards) // DEAL * (DEAL * SHARD_BYTES // ROW_BYTES))


def steps(waits: Generator[float], count: int, dead_s: float, server: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Of both sites together: site 1 only waits for rounds. dead_s: seconds for which its server stands still."""
    weights = torch.zeros(ROUND_ELEMENTS)
    waited: list[float] = []
    rounds: list[float] = []
    for step in range(count):
        if RANK == 1 and dead_s and step == DEAD_FROM:
            server.send_signal(signal.SIGSTOP)
            threading.Timer(dead_s, server.send_signal, [signal.SIGCONT]).start()
        waited.append(next(waits) if RANK == 0 else 0.0)
        time.sleep(STEP_S)
        if step % ROUND_EVERY == ROUND_EVERY - 1:
            dist.barrier()
            began = time.monotonic()
            dist.all_reduce(weights)
            rounds.append(time.monotonic() - began)
    read = next((step for step in range(count) if math.isnan(waited[step])), count)
    late = [step for step in range(WARM_STEPS, read) if waited[step] > WAIT_S]
    return {
        "steps": read - WARM_STEPS,
        "ended": read < count,
        "waited_steps": len(late),
        "waited_at": late,
        "waited_s": sum(waited[step] for step in late),
        "rounds_s": rounds[1:],
    }


def main() -> None:
    """Arguments: deals, deals ahead, seconds for which site 1's server stands still, ways. A peer's has the shards that
    it is to have ahead behind a blank, if that is not its default."""
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
            peers = {way.partition(" ")[0] for way in sys.argv[4:]} & {"litdata", "streaming"}
            for reader in sorted(peers) if RANK else ():
                fill_for_peer(reader)
            os.environ |= {"RANK": str(RANK), "WORLD_SIZE": "2"}
            dist.init_process_group("geocomm")
            measure(shards_of(deals), ahead, dead_s, server, f"http://{addresses[1]}:{PORT}")
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


def fill_for_peer(reader: str) -> None:
    """Put site 1's half of a peer's data set into its server."""
    place = open_place("s3://tokens/web", f"site{RANK}")
    for path in Path(f"{PEER_SETS}/{reader}{RANK}").iterdir():
        place.create(f"{reader}/{path.name}", path.read_bytes())


def measure(shards: list[Shard], ahead: int, dead_s: float, server: subprocess.Popen[bytes], far: str) -> None:
    """One way after the other, at both sites."""
    tables = {f"site{site}": {"url": "s3://tokens/web", "near": [f"site{site}"]} for site in (0, 1)}
    rules = Rules.model_validate({"sites": {"site0": "a", "site1": "b"}, "stores": tables})
    version = Version(number=1, tokenizer="byte", vocabulary=1 << 16, dtype="<u2", rules=rules, parts=())
    stores = ShardStores(version, shards, f"site{RANK}")
    count = len(shards) // DEAL * (DEAL * SHARD_BYTES // ROW_BYTES)
    for way in sys.argv[4:]:
        reader, _, more = way.partition(" ")
        if reader in ("litdata", "streaming"):
            waits = by_peer(reader, int(more or 0), far)
        else:
            waits = {"alone": alone, "geocomm": by_geocomm, "obstore": by_hand}[reader](stores, shards, ahead)
        found = steps(waits, count, dead_s, server)
        waits.close()
        if RANK == 0:
            print(json.dumps({"way": way, **found}), flush=True)


if __name__ == "__main__":
    main()
