"""Flat files of token ids that others have written, and the shards that they are cut into. Nothing is copied.

datatrove writes `.ds`, Megatron `.bin` with an `.idx` beside it, geocomm `.tokens`: ids one after the other, of 16 or
32 bits, little-endian.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import cpu_count
from pathlib import PurePosixPath

import numpy as np

from geocomm.core.bad_input import BadInput
from geocomm.core.units import count_text
from geocomm.data.corpus.token_store import U16, U32, Dtype, narrowest
from geocomm.data.places import FilePlace, Folder

SHARD_BYTES = 64 << 20
SUFFIXES = (".ds", ".bin", ".tokens")

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_TYPES: dict[int, Dtype] = {4: U32, 8: U16}
"""By the code in an .idx; its signed 32 bits hold the same ids."""
_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class TokenFile:
    """A flat file of token ids."""

    place: FilePlace
    path: str
    dtype: Dtype
    tokens: int


@dataclass(frozen=True)
class TokenRange:
    """At most SHARD_BYTES of a file."""

    sha256: str
    offset: int
    """In bytes."""
    tokens: int


def token_file(place: FilePlace, path: str, vocabulary: int) -> TokenFile:
    """The file at `path`, by what lies beside it, or else by the vocabulary. Raises BadInput for what is none."""
    try:
        dtype = _dtype_beside(place, PurePosixPath(path)) or narrowest(vocabulary)
        size = place.size(path)
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise BadInput(f"{path} of {place.url} cannot be read: {' '.join(str(error).split())}") from None
    width = np.dtype(dtype).itemsize
    if size == 0:
        raise BadInput(f"{path} of {place.url} is empty")
    if size % width:
        raise BadInput(
            f"{path} of {place.url} has {size} bytes, which is no multiple of {width}: it is cut, or its ids are not "
            f"{dtype}"
        )
    return TokenFile(place, path, dtype, size // width)


def _dtype_beside(place: FilePlace, path: PurePosixPath) -> Dtype | None:
    """What the writer's own note says; None: there is none."""
    if path.suffix == ".bin":
        index = str(path.with_suffix(".idx"))
        head = place.read(index, 0, 18)
        if head[:9] != _MEGATRON_MAGIC:
            raise ValueError(f"{index} is no index of Megatron")
        if (code := head[17]) not in _MEGATRON_TYPES:
            raise ValueError(f"its .idx says type {code}, and ids have 16 or 32 bits (types 8 and 4)")
        return _MEGATRON_TYPES[code]
    with suppress(FileNotFoundError):
        if path.suffix == ".ds":
            width = place.read(f"{path}.metadata").decode().splitlines()[0].rpartition("|")[2]
            return U16 if width == "2" else U32 if width == "4" else None
        if path.suffix == ".tokens":
            note = str(path.with_suffix(".json"))
            said = json.loads(place.read(note))["dtype"]
            if said not in (U16, U32):
                raise ValueError(f"{note} says dtype {said}")
            return said
    return None


def ranges(file: TokenFile, vocabulary: int) -> list[TokenRange]:
    """The file's shards, read once for their hashes, on all cores. Raises BadInput for ids beyond the vocabulary."""
    offsets = range(0, file.tokens * np.dtype(file.dtype).itemsize, SHARD_BYTES)
    # Hashing and looking for the largest hold no lock; a bucket is waited for.
    with ThreadPoolExecutor(max(cpu_count() or 1, 1 if isinstance(file.place, Folder) else 8)) as pool:
        return list(pool.map(partial(_read, file, vocabulary), offsets))


def _read(file: TokenFile, vocabulary: int, offset: int) -> TokenRange:
    digest, size, largest = hashlib.sha256(), 0, 0
    try:
        left = file.tokens * np.dtype(file.dtype).itemsize - offset
        for content in _pieces(file.place, file.path, offset, min(left, SHARD_BYTES)):
            digest.update(content)
            largest = max(largest, int(np.frombuffer(content, file.dtype).max()))
            size += len(content)
    except (OSError, ValueError) as error:
        raise BadInput(f"{file.path} of {file.place.url} cannot be read: {error}") from None
    if largest >= vocabulary:
        raise BadInput(
            f"{file.path} has id {largest} in the {SHARD_BYTES >> 20} MiB after byte {offset}, and the tokenizer has "
            f"{count_text(vocabulary, 'token')}: it was written with another tokenizer, or its ids are not {file.dtype}"
        )
    return TokenRange(digest.hexdigest(), offset, size // np.dtype(file.dtype).itemsize)


def _pieces(place: FilePlace, path: str, offset: int, size: int) -> Iterator[bytes]:
    """So many bytes of a file, a few MiB at a time. OSError."""
    end = offset + size
    for start in range(offset, end, _READ_BYTES):
        yield place.read(path, start, min(_READ_BYTES, end - start))


def hash_of_range(place: FilePlace, path: str, offset: int, size: int) -> str:
    """SHA-256 of so many bytes of a file. OSError."""
    digest = hashlib.sha256()
    for content in _pieces(place, path, offset, size):
        digest.update(content)
    return digest.hexdigest()
