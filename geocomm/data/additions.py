"""What `geocomm data` does: files become shards of the next version, or are in it no more. Text is tokenized first, on
all cores. And whether a version is there and whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import NamedTuple

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Catalog, Part, Rules, RulesFile, Shard, Version
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.corpus.token_store import U16, encoded, narrowest
from geocomm.data.places import FilePlace, Folder, open_place, require_known_tables, require_writable
from geocomm.data.token_files import SUFFIXES, hash_of_range, ranges, token_file

_TEXT = {".txt": "text", ".jsonl": "jsonl"}


class _File(NamedTuple):
    """A file of tokens."""

    store: str
    place: FilePlace
    path: str

    @property
    def text(self) -> str:
        return f"{self.path} of store {self.store}"


def add_files(
    rules: RulesFile,
    given: Sequence[str | Path],
    *,
    tokenizer: str | None,
    labels: Collection[str] = (),
    store: str | None = None,
    text_field: str = "text",
) -> Version:
    """Put the next version of a data set: the newest one, and what `given` names, which are paths, or URLs in a store,
    with * for any text. store: for the tokens of text. Raises BadInput, and then there is no new version."""
    rules.require_labels(labels)
    catalog = Catalog(rules.catalog)
    require_known_tables(rules.urls, rules.catalog)
    require_writable(catalog.place, "catalog")
    numbers = catalog.numbers()
    before = catalog.read(numbers[-1]) if numbers else None
    known = [] if before is None else catalog.shards(before)
    for shard in known:
        rules.require_store(shard.store)
        rules.require_labels(shard.labels)
    version = _next(before, rules, tokenizer)
    files, texts = _files(given, rules)
    if texts:
        if tokenizer is None or store is None:
            raise BadInput(f"{texts[0]} is text: say --tokenizer, and the --store that its tokens go to")
        files += _tokenized(texts, rules, store, tokenizer, text_field)
    shards: list[Shard] = []
    for file in files:
        shards += _shards(file, rules, version, sorted(labels))
    twice = {one.place for one in known} & {one.place for one in shards}
    if twice:
        raise BadInput(f"{min(twice)[1]} of store {min(twice)[0]} is in version {version.number - 1} already")
    return catalog.add(version, shards)


def remove_files(rules: RulesFile, given: Sequence[str]) -> tuple[Version, list[Shard]]:
    """Put the next version of a data set, without what `given` names: paths, or URLs in a store, of files or folders,
    with * for any text. And the shards that it has no more. Raises BadInput, and then there is no new version."""
    catalog = Catalog(rules.catalog)
    require_writable(catalog.place, "catalog")
    before = catalog.read()
    version = _next(before, rules, None)
    patterns = [_at_url(one, rules) if "://" in one else _stored(Path(one), rules) for one in given]
    shards, parts = iter(catalog.shards(before)), list[Part]()
    left, removed = list[Shard](), list[Shard]()
    for part in before.parts:
        own, gone = list[Shard](), list[Shard]()
        for shard in islice(shards, part.shards):
            (gone if any(_is_in(shard, pattern) for pattern in patterns) else own).append(shard)
        for shard in own:
            rules.require_store(shard.store)
            rules.require_labels(shard.labels)
        removed += gone
        if gone:
            left += own
        else:
            parts.append(part)
    for name, pattern in zip(given, patterns, strict=True):
        if not any(_is_in(one, pattern) for one in removed):
            raise BadInput(f"{name} is no file of version {before.number}")
    if not parts and not left:
        raise BadInput(f"nothing would be left of version {before.number}; make another catalog")
    return catalog.add(version.model_copy(update={"parts": tuple(parts)}), left), removed


def _is_in(shard: Shard, what: _File) -> bool:
    """what: a file, a pattern, or a folder."""
    return shard.store == what.store and any(fnmatchcase(shard.path, one) for one in (what.path, f"{what.path}/*"))


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


def _files(given: Sequence[str | Path], rules: RulesFile) -> tuple[list[_File], list[Path]]:
    """Files of tokens in their stores, and of text."""
    found: list[_File] = []
    texts: list[Path] = []
    for one in given:
        if isinstance(one, str) and "://" in one:
            found += _listed(one, rules)
            continue
        for path in _local(Path(one)):
            if path.suffix in _TEXT:
                texts.append(path)
            else:
                found.append(_stored(path, rules))
    return found, texts


def _listed(url: str, rules: RulesFile) -> list[_File]:
    """Files of tokens by a URL in a store: one of them, a pattern, or all that lie below it."""
    store, place, inside = found = _at_url(url, rules)
    if PurePosixPath(inside).suffix in SUFFIXES and "*" not in inside:
        return [found]
    try:
        names = [one for one in place.names(inside.partition("*")[0]) if PurePosixPath(one).suffix in SUFFIXES]
    except OSError as error:
        raise BadInput(f"{url} cannot be listed: {error}; name the files one by one") from None
    if "*" in inside:
        names = [one for one in names if fnmatchcase(one, inside)]
    if not names:
        raise BadInput(f"{url} has no {', '.join(SUFFIXES)}")
    return [_File(store, place, one) for one in names]


def _at_url(url: str, rules: RulesFile) -> _File:
    """Its store, and what it names there."""
    store = next((one for one, table in rules.stores.items() if _below(url, table.url)), None)
    if store is None:
        raise BadInput(f"{url} lies in no store: [stores.…] has {', '.join(one.url for one in rules.stores.values())}")
    place = open_place(rules.stores[store].url, store)
    return _File(store, place, url.removeprefix(place.url.rstrip("/")).strip("/"))


def _below(url: str, base: str) -> bool:
    return f"{url.rstrip('/')}/".startswith(f"{base.rstrip('/')}/")


def _local(path: Path) -> list[Path]:
    if path.is_dir():
        inside = sorted(one for one in path.rglob("*") if one.suffix in (*SUFFIXES, *_TEXT) and one.is_file())
        if not inside:
            raise BadInput(f"the folder {path} has no {', '.join((*SUFFIXES, *_TEXT))}")
        return inside
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    if path.suffix not in (*SUFFIXES, *_TEXT):
        raise BadInput(f"{path} is neither a file of tokens ({', '.join(SUFFIXES)}) nor text ({', '.join(_TEXT)})")
    return [path]


def _stored(path: Path, rules: RulesFile) -> _File:
    """A file of this machine, in the store that it lies in."""
    whole = path.resolve()
    for name, store in rules.stores.items():
        place = open_place(store.url, name)
        if isinstance(place, Folder) and whole.is_relative_to(place.path.resolve()):
            return _File(name, place, whole.relative_to(place.path.resolve()).as_posix())
    raise BadInput(f"{path} lies in no store: [stores.…] has {', '.join(one.url for one in rules.stores.values())}")


def _shards(source: _File, rules: RulesFile, version: Version, labels: list[str]) -> list[Shard]:
    file = token_file(source.place, source.path, version.vocabulary)
    if file.dtype == U16 and version.vocabulary > 1 << 16:
        raise BadInput(
            f"{source.text} has ids of 16 bits, and the tokenizer has {version.vocabulary}: ids above 65535 wrapped"
        )
    if file.dtype != version.dtype:
        raise BadInput(
            f"{source.text} has ids of type {file.dtype}, and the data set {version.dtype}: make a data set for each"
        )
    found = ranges(file, version.vocabulary)
    return [Shard(one.sha256, source.store, source.path, one.offset, one.tokens, tuple(labels)) for one in found]


def _tokenized(texts: list[Path], rules: RulesFile, store: str, tokenizer: str, text_field: str) -> list[_File]:
    """The tokens of each text, in a file of its own in the store."""
    place = open_place(rules.require_store(store).url, store)
    require_writable(place, f"store {store},")
    names = [f"{path.stem}.tokens" for path in texts]
    work = partial(_tokenize, tokenizer=tokenizer, text_field=text_field)
    try:
        there = set(place.names())
        taken = [name for name in names if name in there or names.count(name) > 1]
        if taken:
            raise BadInput(f"{taken[0]} is in store {store} already, or would be written twice: rename the text")
        # A folder's files are only renamed at the end.
        with TemporaryDirectory(dir=place.made() if isinstance(place, Folder) else None, prefix=".") as folder:
            targets = [Path(folder) / f"{name}.partial" for name in names]
            with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
                failures = [failure for failure in pool.map(work, texts, targets) if failure]
            if failures:
                raise BadInput(failures[0])
            for name, target in zip(names, targets, strict=True):
                place.put(name, target)
    except OSError as error:
        raise BadInput(f"store {store}, {place.url}, cannot be written: {error}") from None
    return [_File(store, place, name) for name in names]


def _tokenize(source: Path, target: Path, tokenizer: str, text_field: str) -> str:
    """Write the tokens of a text, each document ended; what is wrong, or nothing. Another process runs it."""
    try:
        config = DataConfig(source=_TEXT[source.suffix], paths=(source,), text_field=text_field)  # type: ignore[arg-type]
        with target.open("wb") as file:
            file.writelines(encoded(config, load_tokenizer(tokenizer)))
    except (BadInput, OSError) as error:
        return str(error)
    return ""


_REQUESTS = 16
"""At a time."""


def problems(version: Version, shards: Sequence[Shard], *, deep: bool, site: str | None = None) -> Iterator[str]:
    """What is wrong, a sentence each. deep: read every shard, and compare its hash. site: only what it may read."""
    rules = version.rules
    looked_at = [one for one in shards if site is None or rules.may_read(site, one.labels)]
    files = list({one.place[:2] for one in looked_at})
    with ThreadPoolExecutor(_REQUESTS) as pool:
        sizes = dict(zip(files, pool.map(partial(_size, rules), files), strict=True))
    for shard in looked_at:
        what, size, there = f"{shard.path} of store {shard.store}", shard.tokens * version.width, sizes[shard.place[:2]]
        try:
            if isinstance(there, OSError):
                raise there
            if there < shard.offset + size:
                yield f"{what} has {there} bytes, and {shard.offset + size} were added"
            elif deep and (found := _hash(rules, shard, size)) != shard.sha256:
                yield f"{what}, {size} bytes from {shard.offset}: {found}, not {shard.sha256}"
        except OSError as error:
            yield f"{what} cannot be read: {error}"


def _size(rules: Rules, file: tuple[str, str]) -> int | OSError:
    store, path = file
    try:
        return open_place(rules.require_store(store).url, store).size(path)
    except OSError as error:
        return error


def _hash(rules: Rules, shard: Shard, size: int) -> str:
    return hash_of_range(open_place(rules.require_store(shard.store).url, shard.store), shard.path, shard.offset, size)


def readable(version: Version, shards: Sequence[Shard], site: str) -> int:
    """Tokens that the site may read. Raises BadInput for an unknown one."""
    rules = version.rules
    rules.require_site(site)
    return sum(shard.tokens for shard in shards if rules.may_read(site, shard.labels))
