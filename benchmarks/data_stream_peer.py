"""A peer's reader for bench_data_fetch.py, as its documentation says to read a bucket through a local cache.

With the peers' packages there, `python data_stream_peer.py COMMAND READER FOLDER …`:

- `write FIRST SHARDS`: shards from number FIRST on, in FOLDER, of 2 MiB
- `read AHEAD BATCH URL ENDPOINT`: for each line on standard input a batch, half of it of FOLDER and half of a bucket,
  and a line on standard output, the seconds that it took. AHEAD: shards; 0: the reader's default. It ends at a sequence
  that is not as it was written, or comes twice in a pass
- `resume SHARDS`: shards that are all there, and the seconds from the imports to the first batch from the middle on
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

LENGTH = 4000
"""Ids of a sequence, of 16 bits."""
OF_A_SHARD = (2 << 20) // (2 * LENGTH)
WORKERS = 2
_ROWS = 64
"""Of a first batch, of 4,096 tokens each."""
_SHARD_TOKENS = (64 << 20) // 2


def _module(name: str) -> Any:  # the peers are not where types are checked
    return import_module(name)


def sequence(number: int) -> Any:
    """Its ids, which begin with its number."""
    ids = (np.arange(LENGTH) * 31 + number * 7919) % 65536
    ids[:2] = divmod(number, 65536)
    return ids.astype(np.uint16)


def write(reader: str, folder: Path, first: int, shards: int) -> None:
    """Make shards as the reader's documentation says."""
    numbers = range(first * OF_A_SHARD, (first + shards) * OF_A_SHARD)
    if reader == "streaming":
        columns = {"ids": f"ndarray:uint16:{LENGTH}"}
        with _module("streaming").MDSWriter(out=str(folder), columns=columns, size_limit=2 << 20) as out:
            for number in numbers:
                out.write({"ids": sequence(number)})
        return
    litdata = _module("litdata")
    loader, size = litdata.TokensLoader(), OF_A_SHARD * LENGTH
    litdata.optimize(_tensor, [*numbers], str(folder), chunk_size=size, num_workers=1, item_loader=loader)


def _tensor(number: int) -> Any:
    return _module("torch").from_numpy(sequence(number))


def of_litdata(near: Path, url: str, endpoint: str, batch: int, ahead: int, cache: str) -> Any:
    litdata = _module("litdata")
    # It takes https alone, and has no option for the servers of a test.
    _module("litdata.streaming.downloader")._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    options = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "endpoint_url": endpoint}
    more: dict[str, Any] = {"max_pre_download": ahead // (2 * WORKERS)} if ahead else {}
    parts = [
        litdata.StreamingDataset(place, item_loader=litdata.TokensLoader(block_size=LENGTH), shuffle=True, **told)
        for place, told in (
            (str(near), {}),
            (url, {"storage_options": options | {"region_name": "us-east-1"}, "cache_dir": cache, **more}),
        )
    ]
    combined = litdata.CombinedStreamingDataset(parts, iterate_over_all=True)
    return litdata.StreamingDataLoader(combined, batch_size=batch, num_workers=WORKERS)


def of_streaming(near: Path, url: str, endpoint: str, batch: int, ahead: int, cache: str) -> Any:
    streaming = _module("streaming")
    os.environ |= {"S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    more: dict[str, Any] = {"predownload": ahead * OF_A_SHARD // WORKERS} if ahead else {}
    parts = [streaming.Stream(local=str(near)), streaming.Stream(remote=url, local=cache)]
    # A pass of these benchmarks is shorter than the block of half a million sequences that is shuffled by default.
    data = streaming.StreamingDataset(
        streams=parts, batch_size=batch, shuffle=True, shuffle_block_size=8 * OF_A_SHARD, **more
    )
    return streaming.StreamingDataLoader(data, batch_size=batch, num_workers=WORKERS)


def _passes(loader: Any) -> Iterator[Any]:
    while True:
        seen: set[int] = set()
        for batch in loader:
            rows: Any = (batch["ids"] if isinstance(batch, dict) else batch).numpy()
            yield rows
            for row in rows:
                number = int(row[0]) * 65536 + int(row[1])
                if number in seen or not np.array_equal(row, sequence(number)):
                    raise ValueError(f"sequence {number} is not as it was written, or comes twice")
                seen.add(number)


def read(reader: str, near: Path, ahead: int, batch: int, url: str, endpoint: str) -> None:
    """Batch by batch, as asked for."""
    make = of_streaming if reader == "streaming" else of_litdata
    with tempfile.TemporaryDirectory() as cache:
        batches = _passes(make(near, url, endpoint, batch, ahead, cache))
        for _ in sys.stdin:
            began = time.perf_counter()
            next(batches)
            print(time.perf_counter() - began, flush=True)
        os._exit(0)  # workers and threads of a reader may go on


def resume(reader: str, folder: Path, shards: int) -> None:
    """Prepare in a first call, measure in the next ones."""
    (_resume_datasets if reader == "datasets" else _resume_litdata)(folder, shards)


def _resume_datasets(folder: Path, shards: int) -> None:
    datasets = _module("datasets")
    if not folder.exists():
        folder.mkdir()
        rows = {"ids": [[0] * 4096] * _ROWS}
        datasets.Dataset.from_dict(rows).to_parquet(str(folder / "00000.parquet"))
        for number in range(1, shards):
            os.link(folder / "00000.parquet", folder / f"{number:05d}.parquet")
        return
    began = time.perf_counter()
    data = datasets.load_dataset("parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True)
    state = data.state_dict()
    inner = state["examples_iterable"]
    while "examples_iterable" in inner and "shard_idx" not in inner:
        inner = inner["examples_iterable"]
    inner["shard_idx"] = shards // 2
    data.load_state_dict(state)
    rows = iter(data)
    assert len([next(rows) for _ in range(_ROWS)]) == _ROWS
    print(time.perf_counter() - began, flush=True)


def _resume_litdata(folder: Path, shards: int) -> None:
    litdata = _module("litdata")
    loader = litdata.TokensLoader(block_size=4096)
    if not folder.exists():
        litdata.optimize(_tensor, [0], str(folder), chunk_size=LENGTH, num_workers=1, item_loader=loader)
        index = json.loads((folder / "index.json").read_text())
        index["config"]["chunk_size"] = _SHARD_TOKENS
        chunk = index["chunks"][0] | {"chunk_bytes": 2 * _SHARD_TOKENS, "chunk_size": 8192, "dim": _SHARD_TOKENS}
        first = folder / "chunk-0-0.bin"
        os.truncate(first, chunk["chunk_bytes"])
        index["chunks"] = [chunk | {"filename": f"chunk-0-{number}.bin"} for number in range(shards)]
        for number in range(1, shards):
            os.link(first, folder / f"chunk-0-{number}.bin")
        (folder / "index.json").write_text(json.dumps(index))
        return
    began = time.perf_counter()
    data = litdata.StreamingDataset(str(folder), item_loader=loader, shuffle=True)
    batches = litdata.StreamingDataLoader(data, batch_size=_ROWS)
    read = len(data) // 2 // _ROWS * _ROWS
    batches.load_state_dict(
        batches.state_dict() | {"dataset": data.state_dict(read, 0, _ROWS), "num_samples_yielded": read}
    )
    assert next(iter(batches)).shape == (_ROWS, 4096)
    print(time.perf_counter() - began, flush=True)
    os._exit(0)


def main() -> None:
    command, reader, folder, *rest = sys.argv[1:]
    if command == "write":
        write(reader, Path(folder), *map(int, rest))
    elif command == "read":
        ahead, batch, url, endpoint = rest
        read(reader, Path(folder), int(ahead), int(batch), url, endpoint)
    else:
        resume(reader, Path(folder), int(rest[0]))


if __name__ == "__main__":
    main()
