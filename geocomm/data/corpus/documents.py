"""Texts of a corpus, one after the other, as (document, piece) of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.data.corpus.data_settings import DataConfig

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
