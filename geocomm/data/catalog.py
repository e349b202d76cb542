"""A catalog: the numbered versions of a data set, each a JSON file in a folder, that name shards and rules for them.

    CATALOG/000017.json    {"geocomm_data":1,"number":17,"tokenizer":…,"vocabulary":…,"dtype":"<u4","rules":…,"parts":…}
    CATALOG/parts/SHA256   one shard a line: [sha256, store, path, offset, tokens, [label, …]]

A version is never changed, and of two writers of one number the second is refused. What is read is hostile until it is
validated. Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import tomllib
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator
from typing_extensions import override

from geocomm.core.bad_input import BadInput, did_you_mean, first_problem, problem_text
from geocomm.core.environment import data_cache
from geocomm.core.file_systems import write_whole
from geocomm.core.message_log import logger
from geocomm.core.patience import Waiting, pauses
from geocomm.core.settings import Section
from geocomm.data.places import FilePlace, open_place, require_known_tables
from geocomm.data.token_files import Dtype

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, lt=2**53)]


class Store(Section):
    """Where shards lie."""

    url: str
    region: str = ""
    near: tuple[str, ...] = ()
    """Sites that read from it first."""
    price: Annotated[float, Field(ge=0)] = 0.0
    """Dollars per GB to other sites."""


class Label(Section):
    """A rule for shards."""

    readers: tuple[str, ...]
    """Regions or sites: nobody else reads them."""


class Rules(Section):
    """What lies where, and who may read it."""

    sites: dict[str, str] = Field(default_factory=dict[str, str])
    """Site -> region."""
    stores: dict[str, Store]
    labels: dict[str, Label] = Field(default_factory=dict[str, Label])

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        regions = set(self.sites.values())
        for site, region in self.sites.items():
            if site in regions and region != site:
                raise ValueError(
                    f"sites.{site}: '{site}' is a region, too, and would read what is for that region: rename one"
                )
        for name, store in self.stores.items():
            if store.region and store.region not in regions:
                raise ValueError(f"stores.{name}: unknown region '{store.region}'{did_you_mean(store.region, regions)}")
            for site in store.near:
                if site not in self.sites:
                    raise ValueError(f"stores.{name}: unknown site '{site}'{did_you_mean(site, self.sites)}")
        for name, label in self.labels.items():
            for reader in label.readers:
                if reader not in regions and reader not in self.sites:
                    near = did_you_mean(reader, [*regions, *self.sites])
                    raise ValueError(f"labels.{name}: unknown region or site '{reader}'{near}")
        return self

    @property
    def urls(self) -> dict[str, str]:
        """The URLs of the stores, by name."""
        return {name: store.url for name, store in self.stores.items()}

    def may_read(self, site: str, labels: Iterable[str]) -> bool:
        """Whether all of the labels let the site read; one that has no rule, or not any more, lets nobody."""
        who = {site, self.sites[site]} if site in self.sites else set[str]()
        return all(label in self.labels and who.intersection(self.labels[label].readers) for label in labels)

    def require_labels(self, labels: Collection[str]) -> None:
        """Raise BadInput for a label that is unknown, or for several that no site may read together."""
        for label in labels:
            if label not in self.labels:
                raise BadInput(f"unknown label '{label}'{did_you_mean(label, self.labels)}: no [labels.{label}]")
        if labels and not any(self.may_read(site, labels) for site in self.sites):
            raise BadInput(f"no site of [sites] may read the label {' with '.join(labels)}: nobody would read these")

    def require_site(self, site: str) -> None:
        """Raise BadInput for a site that [sites] lacks."""
        if site not in self.sites:
            near = did_you_mean(site, self.sites)
            raise BadInput(f"unknown site '{site}'{near}: [sites] has {', '.join(self.sites)}")

    def require_store(self, name: str) -> Store:
        """The store of that name. Raises BadInput."""
        if name not in self.stores:
            raise BadInput(f"unknown store '{name}'{did_you_mean(name, self.stores)}: no [stores.{name}]")
        return self.stores[name]


class RulesFile(Rules):
    """What `geocomm data add` is given: the rules, and which catalog they are for."""

    catalog: str


def read_rules(path: Path) -> RulesFile:
    """The rules in a TOML file. Raises BadInput."""
    try:
        return RulesFile.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{path}: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        raise BadInput(f"{path}: {problem_text(first_problem(error), RulesFile.model_fields)}") from None


class Shard(NamedTuple):
    """A range of a flat file of token ids."""

    sha256: Sha256
    store: str
    path: str
    """In the store."""
    offset: Annotated[int, Field(ge=0, lt=2**53)]
    """In bytes."""
    tokens: Count
    labels: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it lies: no two shards of a version share it."""
        return self.store, self.path, self.offset


class Part(NamedTuple):
    """Shards that were added together."""

    sha256: Sha256
    shards: Count
    tokens: Count


class Version(BaseModel, frozen=True, extra="forbid"):
    """A state of a data set."""

    geocomm_data: Literal[1] = 1
    number: Annotated[int, Field(ge=1, le=999_999)]
    tokenizer: str
    """Its identity."""
    vocabulary: Annotated[int, Field(ge=1, le=2**32)]
    dtype: Dtype
    rules: Rules
    parts: tuple[Part, ...]

    @property
    def width(self) -> int:
        """Bytes of an id."""
        return int(self.dtype[-1])


_VERSION = re.compile(r"[0-9]{6}\.json")
_SHARD = TypeAdapter[Shard](Shard)


@dataclass(frozen=True)
class Catalog:
    """The versions of one data set."""

    url: str

    @property
    def place(self) -> FilePlace:
        """Where it lies. Raises BadInput for a URL that cannot be opened."""
        return open_place(self.url, self.url)

    def numbers(self) -> list[int]:
        """The numbers of the versions, ascending. Raises BadInput."""
        try:
            names = self.place.names()
        except OSError as error:
            raise BadInput(f"{self.url} cannot be listed: {error}") from None
        return sorted(int(name[:6]) for name in names if _VERSION.fullmatch(name))

    def content(self, path: str, sha256: str | None = None) -> bytes:
        """A file of it; sha256: what is known of it. OSError."""
        del sha256
        return self.place.read(path)

    def read(self, number: int | None = None, sha256: str | None = None) -> Version:
        """A version; None: the newest, whose stores the tables of keys must name. sha256: of its file, where that is
        known. Raises BadInput."""
        if number is None:
            numbers = self.numbers()
            if not numbers:
                raise BadInput(f"{self.url} has no version of a data set; geocomm data add makes one")
            version = self.read(numbers[-1])
            require_known_tables(version.rules.urls, self.url)
            return version
        path = _path(number)
        try:
            version = Version.model_validate_json(self.content(path, sha256))
        except FileNotFoundError:
            raise BadInput(f"{self.url} has no version {number}") from None
        except OSError as error:
            raise BadInput(f"{path} of {self.url} cannot be read: {error}") from None
        except ValidationError as error:
            raise BadInput(
                f"{path} of {self.url}: {problem_text(first_problem(error), Version.model_fields)}"
            ) from None
        if version.number != number:
            raise BadInput(f"{path} of {self.url} says that it is version {version.number}")
        return version

    def digest(self, number: int, sha256: str | None = None) -> str:
        """SHA-256 of a version's file, and so of all that it names; sha256: what it should be. OSError."""
        return hashlib.sha256(self.content(_path(number), sha256)).hexdigest()

    def shards(self, version: Version) -> list[Shard]:
        """All shards of a version, in order. Raises BadInput for a part that is missing or damaged."""
        found: list[Shard] = []
        for part in version.parts:
            path = f"parts/{part.sha256} of {self.url}"
            try:
                content = self.content(f"parts/{part.sha256}", part.sha256)
                shards = [shard_of(line) for line in content.splitlines()]
            except OSError as error:
                raise BadInput(f"version {version.number}: its part {path} cannot be read: {error}") from None
            except ValidationError as error:
                raise BadInput(f"{path}: {problem_text(first_problem(error))}") from None
            if hashlib.sha256(content).hexdigest() != part.sha256:
                raise BadInput(f"version {version.number}: its part {path} has another hash than its name: restore it")
            if (len(shards), sum(one.tokens for one in shards)) != part[1:]:
                raise BadInput(f"version {version.number}: its part {path} has other shards than the version says")
            found += shards
        for shard in found:
            _require_sound(shard, version)
        return found

    def add(self, version: Version, shards: Collection[Shard]) -> Version:
        """Write `version` with these shards, if there are any, as one more part. Raises BadInput where its number is
        there already."""
        content = b"".join(json.dumps(one, separators=(",", ":")).encode() + b"\n" for one in shards)
        part = Part(hashlib.sha256(content).hexdigest(), len(shards), sum(one.tokens for one in shards))
        whole = version.model_copy(update={"parts": (*version.parts, part)}) if shards else version
        try:
            if shards:
                self.place.create(f"parts/{part.sha256}", content)
            if not self.place.create(_path(whole.number), whole.model_dump_json().encode()):
                raise BadInput(f"{self.url} has version {whole.number} since just now: somebody else adds. Try again")
        except OSError as error:
            raise BadInput(f"{self.url} cannot be written: {error}") from None
        return whole


def shard_of(line: bytes) -> Shard:
    """A line of a part. ValidationError: it is none."""
    return _SHARD.validate_json(line)


def _path(number: int) -> str:
    return f"{number:06}.json"


def _require_sound(shard: Shard, version: Version) -> None:
    """What a catalog says must stay inside its stores and rules."""
    version.rules.require_store(shard.store)
    for label in shard.labels:
        if label not in version.rules.labels:
            raise BadInput(f"version {version.number}: unknown label '{label}' of {shard.path}")
    path = PurePosixPath(shard.path)
    if path.is_absolute() or ".." in path.parts:
        raise BadInput(f"version {version.number}: {shard.path} is no path inside a store")


# As ranks read a catalog, its files are kept in the cache, so that they start also while it cannot be read:
#
# CACHE/catalogs/HASH/    HASH: of the catalog's URL. What was read of it, under the names that it has there.

_LOOK_S = 0.2


@dataclass(frozen=True)
class KeptCatalog(Catalog):
    """What has a known hash is taken from the cache, or awaited. Of the rest the catalog itself is asked first."""

    wait_s: float = 300.0
    """Until an error, where files of a known hash cannot be read. Files that are missing, or that no key opens, are not
    awaited."""

    @override
    def numbers(self) -> list[int]:
        try:
            return super().numbers()
        except BadInput as error:
            if not (kept := Catalog(str(self._kept)).numbers()):
                raise
            logger().warning("data: %s; the newest version that was read before is %d", error, kept[-1])
            return kept

    @override
    def content(self, path: str, sha256: str | None = None) -> bytes:
        kept: bytes | None = None
        with suppress(OSError):
            kept = (self._kept / path).read_bytes()
        if kept is not None and sha256 == _sha256(kept):
            return kept
        try:
            found = super().content(path) if sha256 is None else self._awaited(path)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if kept is None or sha256 is not None:
                raise
            return kept
        if found != kept and sha256 in (None, _sha256(found)):
            with suppress(OSError):
                (self._kept / path).parent.mkdir(parents=True, exist_ok=True)
                write_whole(self._kept / path, found)
        return found

    def kept_shards(self) -> Iterator[Shard]:
        """The shards of all versions that were read here, as far as they are kept."""
        for part in self._kept.glob("parts/*"):
            with suppress(OSError, ValidationError):  # what is damaged is read anew where it is wanted
                yield from [shard_of(line) for line in part.read_bytes().splitlines()]

    @property
    def _kept(self) -> Path:
        return data_cache()[0] / "catalogs" / _sha256(self.url.encode())[:16]

    def _awaited(self, path: str) -> bytes:
        waiting, until = Waiting(logger().warning), time.monotonic() + self.wait_s
        pause_s, said = pauses(1.0, 10.0), "it has not answered"

        def what() -> str:
            return f"the catalog {self.url}, to read {path}: {said}"

        with ThreadPoolExecutor(1, "geocomm-catalog") as pool:
            while True:
                tried = pool.submit(self.place.read, path)
                while not wait([tried], _LOOK_S).done:
                    waiting.tell(what)
                try:
                    return tried.result()
                except (FileNotFoundError, PermissionError):
                    raise
                except OSError as error:
                    said = str(error)
                    if time.monotonic() > until:
                        raise OSError(f"{said}, since {self.wait_s:.0f} s") from None
                waiting.tell(what)
                time.sleep(next(pause_s))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
