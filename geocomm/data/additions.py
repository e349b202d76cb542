"""What `geocomm data add` does: files become shards of the next version. Text is tokenized first, on all cores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from geocomm.core.bad_input import BadInput
from geocomm.corpus.data_settings import DataConfig
from geocomm.corpus.documents import documents
from geocomm.corpus.text_tokenizer import load_tokenizer
from geocomm.data.catalog import Catalog, Rules, RulesFile, Shard, Version
from geocomm.data.shard_stores import folder_of
from geocomm.data.token_files import SUFFIXES, U16, narrowest, ranges, token_file

_TEXT = {".txt": "text", ".jsonl": "jsonl"}
_FLUSH_TOKENS = 1 << 20


def add_files(
    rules: RulesFile,
    given: Sequence[Path],
    *,
    tokenizer: str | None,
    labels: Collection[str] = (),
    store: str | None = None,
    text_field: str = "text",
) -> Version:
    """Put the next version of a data set: the newest one, and these files and folders. store: for the tokens of text.
    Raises BadInput, and then there is no new version."""
    rules.require_labels(labels)
    catalog = Catalog(rules.catalog)
    before = catalog.read() if catalog.numbers() else None
    known = [] if before is None else catalog.shards(before)
    for shard in known:
        rules.require_store(shard.store)
        rules.require_labels(shard.labels)
    version = _next(before, rules, tokenizer)
    files = _files(given)
    texts = [path for path in files if path.suffix in _TEXT]
    if texts:
        if tokenizer is None or store is None:
            raise BadInput(f"{texts[0]} is text: say --tokenizer, and the --store that its tokens go to")
        folder = folder_of(rules.require_store(store).url)
        files = [path for path in files if path not in texts] + _tokenized(texts, folder, tokenizer, text_field)
    shards: list[Shard] = []
    for path in files:
        shards += _shards(path, rules, version, sorted(labels))
    twice = {one.place for one in known} & {one.place for one in shards}
    if twice:
        raise BadInput(f"{min(twice)[1]} of store {min(twice)[0]} is in version {version.number - 1} already")
    return catalog.add(version, shards)


def _next(before: Version | None, rules: RulesFile, tokenizer: str | None) -> Version:
    own = Rules.model_validate(rules.model_dump(exclude={"catalog"}))
    if before is None and tokenizer is None:
        raise BadInput("the first version of a data set needs --tokenizer: byte, or the folder of a Hugging Face one")
    if before is not None and tokenizer is None:
        return before.model_copy(update={"number": before.number + 1, "rules": own})
    loaded = load_tokenizer(tokenizer or "")
    if before is None:
        dtype = narrowest(loaded.vocab_size)
        return Version(
            number=1, tokenizer=loaded.identity, vocabulary=loaded.vocab_size, dtype=dtype, rules=own, parts=()
        )
    if loaded.identity != before.tokenizer:
        raise BadInput(
            f"the data set has tokenizer {before.tokenizer[:16]} of {before.vocabulary} tokens, and {tokenizer} is "
            f"{loaded.identity[:16]} of {loaded.vocab_size}: one data set has one tokenizer"
        )
    return before.model_copy(update={"number": before.number + 1, "rules": own})


def _files(given: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix in (*SUFFIXES, *_TEXT) and one.is_file())
            if not inside:
                raise BadInput(f"the folder {path} has no {', '.join((*SUFFIXES, *_TEXT))}")
            found += inside
        elif not path.is_file():
            raise BadInput(f"{path} does not exist")
        elif path.suffix not in (*SUFFIXES, *_TEXT):
            raise BadInput(f"{path} is neither a file of tokens ({', '.join(SUFFIXES)}) nor text ({', '.join(_TEXT)})")
        else:
            found.append(path)
    return found


def _shards(path: Path, rules: RulesFile, version: Version, labels: list[str]) -> list[Shard]:
    store, inside = _place(path, rules)
    file = token_file(path, version.vocabulary)
    if file.dtype == U16 and version.vocabulary > 1 << 16:
        raise BadInput(
            f"{path} has ids of 16 bits, and the tokenizer has {version.vocabulary}: ids above 65535 wrapped"
        )
    if file.dtype != version.dtype:
        raise BadInput(
            f"{path} has ids of type {file.dtype}, and the data set {version.dtype}: make a data set for each"
        )
    found = ranges(file, version.vocabulary)
    return [Shard(one.sha256, store, inside, one.offset, one.tokens, tuple(labels)) for one in found]


def _place(path: Path, rules: RulesFile) -> tuple[str, str]:
    """The store that a file lies in, and where."""
    whole = path.resolve()
    for name, store in rules.stores.items():
        folder = folder_of(store.url).resolve()
        if whole.is_relative_to(folder):
            return name, whole.relative_to(folder).as_posix()
    raise BadInput(f"{path} lies in no store: [stores.…] has {', '.join(one.url for one in rules.stores.values())}")


def _tokenized(texts: list[Path], folder: Path, tokenizer: str, text_field: str) -> list[Path]:
    """The tokens of each text, in a file of its own in the store."""
    targets = [folder / f"{path.stem}.tokens" for path in texts]
    taken = [path for path in targets if path.exists() or targets.count(path) > 1]
    if taken:
        raise BadInput(f"{taken[0]} is there already, or would be written twice: rename the text")
    folder.mkdir(parents=True, exist_ok=True)
    work = partial(_tokenize, tokenizer=tokenizer, text_field=text_field)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        failures = [failure for failure in pool.map(work, texts, targets) if failure]
    if failures:
        for target in targets:
            target.unlink(missing_ok=True)
        raise BadInput(failures[0])
    return targets


def _tokenize(source: Path, target: Path, tokenizer: str, text_field: str) -> str:
    """Write the tokens of a text, each document ended; what is wrong, or nothing. Another process runs it."""
    try:
        loaded = load_tokenizer(tokenizer)
        dtype = narrowest(loaded.vocab_size)
        config = DataConfig(source=_TEXT[source.suffix], paths=(source,), text_field=text_field)  # type: ignore[arg-type]
        beside = target.with_suffix(".partial")
        pending: list[int] = []
        with beside.open("wb") as file:
            for pieces in documents(config):
                empty = True
                for piece in pieces:
                    pending += loaded.encode(piece)
                    empty = empty and not piece
                    if len(pending) >= _FLUSH_TOKENS:
                        file.write(np.asarray(pending, dtype).tobytes())
                        pending.clear()
                if not empty:
                    pending.append(loaded.end_of_text)
            file.write(np.asarray(pending, dtype).tobytes())
        beside.rename(target)
    except (BadInput, OSError) as error:
        target.with_suffix(".partial").unlink(missing_ok=True)
        return str(error)
    return ""
