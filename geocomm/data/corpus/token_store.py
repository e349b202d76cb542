"""Texts of a corpus, and as tokens on disk: one flat array per corpus and tokenizer, made once per machine and mapped
into memory."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.core.file_systems import held_by_one, put_in_place, write_whole
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import TextTokenizer

_PIECE_CHARS = 1 << 20
_SUFFIXES = {"text": ".txt", "jsonl": ".jsonl"}


def corpus_files(config: DataConfig) -> list[Path]:
    """The files behind `config.paths`, in reading order; empty for the built-in corpus. Raises BadInput for gaps."""
    if config.source == "builtin":
        return []
    files: list[Path] = []
    for given in config.paths:
        path = given.expanduser()
        if not path.exists():
            raise BadInput(f"data.paths: {path} does not exist")
        if path.is_file():
            if config.source == "dataset":
                raise BadInput(f"data.paths: {path} is a file; a dataset is a folder written by save_to_disk")
            files.append(path)
            continue
        suffix = _SUFFIXES.get(config.source)
        found = sorted(p for p in path.rglob(f"*{suffix}" if suffix else "*") if p.is_file())
        if not found:
            raise BadInput(f"data.paths: the folder {path} holds no {suffix or 'files'}")
        files += found
    return files


def documents(config: DataConfig) -> Iterator[Iterable[str]]:
    """The texts of the corpus in order; each is an iterable of pieces that belong together."""
    if config.source == "builtin":
        return _builtin()
    if config.source == "text":
        return (_text_pieces(path) for path in corpus_files(config))
    if config.source == "jsonl":
        return ((text,) for path in corpus_files(config) for text in _jsonl_texts(path, config.text_field))
    return ((text,) for path in config.paths for text in _dataset_texts(path.expanduser(), config))


def _builtin() -> Iterator[Iterable[str]]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield (topics[name],)


def _text_pieces(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            while lines := file.readlines(_PIECE_CHARS):
                yield "".join(lines)
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error}") from None


def _jsonl_texts(path: Path, field: str) -> Iterator[str]:
    number = 0
    for piece in _text_pieces(path):
        for line in piece.splitlines():
            number += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadInput(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(record, dict) or not isinstance(record.get(field), str):
                names = record if isinstance(record, dict) else ()
                raise BadInput(
                    f"{path}:{number}: no text in field '{field}' (data.text_field){did_you_mean(field, names)}"
                )
            yield record[field]


def _dataset_texts(folder: Path, config: DataConfig) -> Iterator[str]:
    try:
        import datasets  # pyright: ignore[reportMissingImports] - optional
    except ImportError:
        raise BadInput("data.source dataset needs the package 'datasets': pip install datasets") from None
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, ValueError) as error:
        raise BadInput(f"{folder} is no saved dataset: {' '.join(str(error).split())}") from None
    if isinstance(loaded, datasets.DatasetDict):
        if config.split not in loaded:
            raise BadInput(
                f"{folder} has no split '{config.split}'{did_you_mean(config.split, loaded)}; it has {list(loaded)}"
            )
        loaded = loaded[config.split]
    if config.text_field not in loaded.column_names:
        raise BadInput(
            f"{folder} has no column '{config.text_field}' (data.text_field)"
            f"{did_you_mean(config.text_field, loaded.column_names)}; it has {loaded.column_names}"
        )
    for record in loaded:
        if not isinstance(record[config.text_field], str):
            raise BadInput(f"{folder}: column '{config.text_field}' holds no text")
        yield record[config.text_field]


Dtype = Literal["<u2", "<u4"]
U16: Dtype = "<u2"
U32: Dtype = "<u4"
_FORMAT = 1
_PIECE_TOKENS = 1 << 20


def narrowest(vocabulary: int) -> Dtype:
    """The dtype that holds all ids of so many tokens, as datatrove and geocomm choose it."""
    return U16 if vocabulary <= 1 << 16 else U32


@dataclass(frozen=True)
class TokenArray:
    """Token ids of a whole corpus, texts separated by the end-of-text token. `sha256` is that of the ids."""

    tokens: NDArray[np.unsignedinteger]
    sha256: str


def load_tokens(config: DataConfig, tokenizer: TextTokenizer) -> TokenArray:
    """The tokens of the corpus from `config.cache_dir`, tokenizing it first if they are not there.

    Processes of one machine may call it at the same time: one tokenizes, the others wait for it.
    """
    folder = config.cache_dir.expanduser()
    key = _cache_key(config, tokenizer)
    dtype = np.dtype(narrowest(tokenizer.vocab_size))
    data_path, note_path = folder / f"{key}.tokens", folder / f"{key}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held_by_one(folder / f"{key}.lock", math.inf):
            if not note_path.exists():
                _tokenize(config, tokenizer, data_path, note_path)
        note = json.loads(note_path.read_text())
        size = data_path.stat().st_size
        if size != note["tokens"] * dtype.itemsize:
            raise BadInput(
                f"{data_path} has {size} bytes, expected {note['tokens'] * dtype.itemsize}; remove {note_path}"
            )
        if size == 0:
            raise BadInput("the corpus holds no text")
        return TokenArray(np.memmap(data_path, dtype=dtype, mode="r"), note["sha256"])
    except OSError as error:
        raise BadInput(f"data.cache_dir {folder} cannot be used: {error}") from None


def _cache_key(config: DataConfig, tokenizer: TextTokenizer) -> str:
    """Changes whenever a file, the way it is read, or the tokenizer changes."""
    if config.source == "builtin":
        from pydoc_data.topics import topics

        origin: object = hashlib.sha256(repr(sorted(topics.items())).encode()).hexdigest()
    else:
        origin = [(str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns) for p in corpus_files(config)]
    reading = (_FORMAT, config.source, config.text_field, config.split, tokenizer.identity, tokenizer.end_of_text)
    return hashlib.sha256(repr((reading, origin)).encode()).hexdigest()[:32]


def encoded(config: DataConfig, tokenizer: TextTokenizer) -> Iterator[bytes]:
    """The ids of a corpus, each text ended, as `narrowest` says: a piece of about a million after the other."""
    dtype, pending = narrowest(tokenizer.vocab_size), list[int]()
    for pieces in documents(config):
        empty = True
        for piece in pieces:
            pending += tokenizer.encode(piece)
            empty = empty and not piece
            if len(pending) >= _PIECE_TOKENS:
                yield np.asarray(pending, dtype).tobytes()
                pending.clear()
        if not empty:
            pending.append(tokenizer.end_of_text)
    yield np.asarray(pending, dtype).tobytes()


def _tokenize(config: DataConfig, tokenizer: TextTokenizer, data_path: Path, note_path: Path) -> None:
    """Write the tokens beside `data_path`, then rename; the note comes last, so that it stands for a whole array."""
    partial, dtype = data_path.with_suffix(".partial"), np.dtype(narrowest(tokenizer.vocab_size))
    digest, size = hashlib.sha256(), 0
    try:
        with partial.open("wb") as file:
            for piece in encoded(config, tokenizer):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
        put_in_place(partial, data_path)
        note = {"tokens": size // dtype.itemsize, "sha256": digest.hexdigest(), "dtype": dtype.str}
        write_whole(note_path, json.dumps(note))
    finally:
        partial.unlink(missing_ok=True)
