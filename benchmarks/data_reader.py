"""One rank that reads a data set with geocomm or a peer, from a saved state on, for so many batches.

`python data_reader.py READER FOLDER OUT BATCHES STATE`, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set and the
reader's packages there. It writes the numbers of the sequences that it read to OUT and its state to OUT.state; both
names have {} where the rank goes, as has STATE, of the run before; "-": none. With `write` for OUT it writes the data
set, and prints the reader's version.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

SEQUENCES, LENGTH, BATCH = 3840, 16, 8
SHARDS = 16
_DIGIT = 200
State = dict[str, Any]


def _module(name: str) -> Any:  # the peers are not where types are checked
    return import_module(name)


def written(reader: str, folder: Path) -> None:
    """Sequence number i holds i, over and over."""
    numbers = range(SEQUENCES)
    if reader == "streaming":
        with _module("streaming").MDSWriter(
            out=str(folder), columns={"id": "int"}, size_limit=SEQUENCES * 8 // SHARDS
        ) as out:
            for number in numbers:
                out.write({"id": number})
    elif reader == "litdata":
        _module("litdata").optimize(_number, list(numbers), str(folder), chunk_size=SEQUENCES // SHARDS, num_workers=1)
    elif reader == "datasets":
        folder.mkdir()
        for shard in range(SHARDS):
            part = _module("datasets").Dataset.from_dict(
                {"id": list(numbers[shard * SEQUENCES // SHARDS :][: SEQUENCES // SHARDS])}
            )
            part.to_parquet(str(folder / f"{shard:02d}.parquet"))
    else:
        import numpy as np

        from geocomm.data.additions import add_files
        from geocomm.data.catalog import read_rules

        folder.mkdir()
        files = [folder / f"{shard:02d}.ds" for shard in range(SHARDS)]
        for path, part in zip(files, np.array_split(np.arange(SEQUENCES), SHARDS), strict=True):
            digits = np.stack([part // _DIGIT, part % _DIGIT], axis=1)  # ids of a byte tokenizer
            path.write_bytes(np.repeat(digits, LENGTH // 2, axis=1).astype("<u2").tobytes())
        rules = folder / "set.toml"
        rules.write_text(f'catalog = "{folder}/set"\n[stores.disk]\nurl = "{folder}"\n')
        add_files(read_rules(rules), files, tokenizer="byte", labels=(), store="disk")


def _number(number: int) -> int:
    return number


def of_streaming(folder: Path, rank: int, state: Callable[[int], State | None]) -> tuple[Iterator[Any], Any]:
    """MosaicML Streaming: rank 0's state, which fits any number of nodes."""
    data = _module("streaming").StreamingDataset(local=str(folder), shuffle=True, batch_size=BATCH)
    loader = _module("streaming").StreamingDataLoader(data, batch_size=BATCH)
    if (found := state(0)) is not None:
        loader.load_state_dict(found)
    return (batch["id"] for batch in loader), loader.state_dict


def of_litdata(folder: Path, rank: int, state: Callable[[int], State | None]) -> tuple[Iterator[Any], Any]:
    """litData: rank 0's state, of its loader."""
    litdata = _module("litdata")
    loader = litdata.StreamingDataLoader(litdata.StreamingDataset(str(folder), shuffle=True), batch_size=BATCH)
    if (found := state(0)) is not None:
        loader.load_state_dict(found)
    return iter(loader), loader.state_dict


def of_datasets(folder: Path, rank: int, state: Callable[[int], State | None]) -> tuple[Iterator[Any], Any]:
    """Hugging Face: a state of each rank; one that was not there before begins at the start of its part."""
    data = _module("datasets").load_dataset(
        "parquet", data_files=str(folder / "*.parquet"), split="train", streaming=True
    )
    world_size, split = int(os.environ["WORLD_SIZE"]), _module("datasets.distributed").split_dataset_by_node
    data = split(data.shuffle(seed=1, buffer_size=1), rank=rank, world_size=world_size)
    if (found := state(rank)) is not None:
        data.load_state_dict(found)
    rows = iter(data)
    return iter(lambda: [row["id"] for row in itertools.islice(rows, BATCH)], []), data.state_dict


def of_geocomm(folder: Path, rank: int, state: Callable[[int], State | None]) -> tuple[Iterator[Any], Any]:
    import geocomm

    data = geocomm.SiteDataset(str(folder / "set"), batch_size=BATCH, sequence_length=LENGTH)
    if (found := state(0)) is not None:
        data.load_state_dict(found)
    return (rows[:, 0] * _DIGIT + rows[:, LENGTH - 1] for rows in data), data.state_dict


def numbers_read(out: Path) -> list[int]:
    """What a rank has read."""
    return json.loads(out.read_text())


READERS = {"geocomm": of_geocomm, "litdata": of_litdata, "streaming": of_streaming, "datasets": of_datasets}


def main() -> None:
    reader, folder, out, batches, states = sys.argv[1:]
    if out == "write":
        written(reader, Path(folder))
        print(version("mosaicml-streaming" if reader == "streaming" else reader))
        return
    dist: Any = _module("torch.distributed")
    rank = int(os.environ["RANK"])
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOBAL_RANK": str(rank)}
    os.environ["NNODES"] = os.environ["WORLD_SIZE"]
    dist.init_process_group("gloo")

    def state(of: int) -> State | None:
        path = Path(states.format(of))
        return json.loads(path.read_text()) if path.is_file() else None

    found, state_dict = READERS[reader](Path(folder), rank, state)
    read = [int(number) for batch in itertools.islice(found, int(batches)) for number in batch]
    Path(out.format(rank)).write_text(json.dumps(read))
    Path(out.format(rank) + ".state").write_text(json.dumps(state_dict()))
    dist.barrier()
    os._exit(0)  # threads of a reader may go on


if __name__ == "__main__":
    main()
