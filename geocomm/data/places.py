"""Where the files of data sets and their catalogs lie: a folder, or a bucket by its URL. The one place that opens them.

Buckets are opened with obstore, which is imported where the first one is. Keys come from the environment, or by the
name of the store from the TOML file that GEOCOMM_STORES names, whose tables go to obstore as they are.
"""

from __future__ import annotations

import os
import tomllib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.core.environment import stores_file
from geocomm.core.file_systems import write_whole
from geocomm.core.message_log import logger
from geocomm.core.place import own_rank

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_ENDPOINTS = ("endpoint", "endpoint_url", "endpoint_url_s3")
"""What says in a table where a store is; in the environment, with AWS_ before it."""
_TIMEOUTS = {"timeout": "60s", "connect_timeout": "5s"}
"""The limits of a request, which asks for 4 MiB at the most."""
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}
"""Then another store is asked, or the same one later."""
_PIECE_BYTES = 64 << 10
"""Of an answer, at least: what came is kept where the rest does not."""


class FilePlace(ABC):
    """Files by their paths below a URL. Its methods raise OSError; FileNotFoundError where there is no such file. What
    writes is for those that can."""

    writable = True

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def names(self, below: str = "") -> list[str]:
        """Paths of all files whose path begins so, in order."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Bytes of a file."""

    @abstractmethod
    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        """So many bytes of a file, fewer at its end; None: all."""

    def read_on(self, path: str, start: int, count: int, got: bytearray) -> None:
        """Append to `got` what it lacks of a range. After an OSError it has what came until then."""
        got += self.read(path, start + len(got), count - len(got))

    def create(self, path: str, content: bytes) -> bool:
        """Write a file whole or not at all; False: it is there already, with other bytes."""
        raise NotImplementedError

    def put(self, path: str, source: Path) -> None:
        """Write a local file here, over what was there. A folder takes it itself, from the same disk."""
        raise NotImplementedError

    def replace(self, path: str, content: bytes) -> None:
        """Write a file whole, over what was there."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Have it no more."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of connections."""
        return


class Folder(FilePlace):
    """A folder that this machine sees."""

    def __init__(self, url: str, path: Path) -> None:
        super().__init__(url)
        self.path = path

    @override
    def names(self, below: str = "") -> list[str]:
        folder = self.path / below.rpartition("/")[0]
        found = (one.relative_to(self.path).as_posix() for one in folder.rglob("*") if one.is_file())
        return sorted(name for name in found if name.startswith(below))

    @override
    def size(self, path: str) -> int:
        return (self.path / path).stat().st_size

    @override
    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        with (self.path / path).open("rb") as file:
            file.seek(start)
            return file.read(-1 if count is None else count)

    @override
    def create(self, path: str, content: bytes) -> bool:
        whole = self.path / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        partial = whole.with_name(f".{uuid.uuid4().hex}")
        try:
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, whole)
        except FileExistsError:
            return whole.read_bytes() == content
        finally:
            partial.unlink(missing_ok=True)
        return True

    @override
    def put(self, path: str, source: Path) -> None:
        source.rename(self.made() / path)

    @override
    def replace(self, path: str, content: bytes) -> None:
        self.made()
        write_whole(self.path / path, content)

    @override
    def remove(self, path: str) -> None:
        (self.path / path).unlink(missing_ok=True)
        with suppress(OSError):  # there may be other files in it
            (self.path / path).parent.rmdir()

    def made(self) -> Path:
        """The folder itself, which is there then."""
        self.path.mkdir(parents=True, exist_ok=True)
        return self.path


class Bucket(FilePlace):
    """A prefix of a bucket, or a web server to read from."""

    def __init__(self, url: str, name: str) -> None:
        """name: of its table of keys."""
        super().__init__(url)
        self._name = name
        self._store = _opened(url, name)
        self.writable = not url.startswith(("http://", "https://"))

    @override
    def names(self, below: str = "") -> list[str]:
        folder = below.rpartition("/")[0]  # obstore takes a prefix for a folder
        with self._failing():
            pages: Any = self._store.list(folder or None)  # pyright: ignore[reportUnknownMemberType]
            found = [str(one["path"]) for page in pages for one in page]
        return sorted(name for name in found if name.startswith(below))

    @override
    def size(self, path: str) -> int:
        with self._failing():
            return int(self._store.head(path)["size"])

    @override
    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        got = bytearray()
        if count is not None:
            self.read_on(path, start, count, got)
            return bytes(got)
        with self._failing():
            return bytes(self._store.get(path).bytes())

    @override
    def read_on(self, path: str, start: int, count: int, got: bytearray) -> None:
        if len(got) == count:
            return
        with self._failing():
            answer = self._store.get(path, options={"range": (start + len(got), start + count)})
            for piece in answer.stream(min_chunk_size=_PIECE_BYTES):
                got += piece[: count - len(got)]
                if len(got) == count:  # whatever else it has to say
                    return

    @override
    def create(self, path: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._failing(), suppress(AlreadyExistsError):
            self._store.put(path, content, mode="create")
            return True
        return self.read(path) == content  # or a request was repeated whose answer was lost

    @override
    def put(self, path: str, source: Path) -> None:
        with self._failing():
            self._store.put(path, source)

    @override
    def replace(self, path: str, content: bytes) -> None:
        with self._failing():
            self._store.put(path, content)

    @override
    def remove(self, path: str) -> None:
        with self._failing(), suppress(FileNotFoundError):
            self._store.delete(path)

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Raise what obstore raises as an OSError."""
        try:
            yield
        except Exception as error:
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> OSError:
        said = error_line(error)
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(said)
        if any(status in said for status in ("401 Unauthorized", "403 Forbidden")):
            return PermissionError(f"{said} (keys: {_keys_text(self._name)})")
        return OSError(said)


@lru_cache(maxsize=256)
def open_place(url: str, name: str) -> FilePlace:
    """What a URL names: a path, file:, s3:, gs:, az:, https:. name: of its table of keys: the store's, a catalog's URL.

    Raises BadInput for what cannot be opened. Nothing is asked for yet.
    """
    scheme, found, rest = url.partition("://")
    if not found:
        return Folder(url, Path(url.removeprefix("file:")).expanduser())
    return Folder(url, Path(rest)) if scheme == "file" else Bucket(url, name)


def require_writable(place: FilePlace, what: str) -> None:
    """Raise BadInput for a web server. what: it is."""
    if not place.writable:
        raise BadInput(f"{what} {place.url}: a web server is only read from; name a folder, s3://, gs:// or az://")


def require_known_tables(stores: Mapping[str, str], url: str) -> None:
    """Raise BadInput for keys of a store that is none of these (URLs by name, of the catalog at `url`), where one of
    them has none: it may be the same under a wrong name. Else that is a warning: other catalogs may have keys in the
    file."""
    lacking = [name for name, at in stores.items() if _takes_keys(at) and name not in _tables()]
    for name in _tables() if lacking else ():
        if "://" not in name and name not in stores:
            near = did_you_mean(name, stores)
            raise BadInput(
                f"GEOCOMM_STORES, {stores_file()}: [{name}] is no store of {url}{near}; [{lacking[0]}] is missing"
            )
    used = {name for name, at in stores.items() if not is_folder(at)}
    unused = tuple(name for name in _tables() if "://" not in name and name not in used)  # a URL is another catalog's
    if unused and not own_rank():
        _tell_unused(unused, url)


@lru_cache(maxsize=16)
def _tell_unused(names: tuple[str, ...], url: str) -> None:
    text = ", ".join(f"[{name}]" for name in names)
    logger().warning("data: GEOCOMM_STORES, %s: no store of %s, so not used for it: %s", stores_file(), url, text)


def is_folder(url: str) -> bool:
    """Whether this machine sees its files."""
    return "://" not in url or url.startswith("file://")


def _takes_keys(url: str) -> bool:
    return not is_folder(url) and not url.startswith(("http://", "https://"))


def error_line(error: BaseException) -> str:
    """What obstore or the system says, without what follows for programmers."""
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].partition(": <?xml")[0].split())[:400] if lines else type(error).__name__


def _opened(url: str, name: str) -> ObjectStore:
    try:
        from obstore.store import from_url
    except ImportError:
        raise BadInput(
            f"{url} is no folder, and obstore, which reads buckets, is missing: pip install geocomm[data]"
        ) from None
    options = dict(_tables().get(name, {}))
    client = _TIMEOUTS | _allowance(url, options) | options.pop("client_options", {})
    retries: Any = options.pop("retry_config", _RETRIES)
    try:
        return from_url(url, client_options=client, retry_config=retries, **options)
    except Exception as error:  # what a table or the environment may say wrong is as wide as obstore
        raise BadInput(f"{url} cannot be opened: {error_line(error)} (keys: {_keys_text(name)})") from None


def _allowance(url: str, options: Mapping[str, Any]) -> dict[str, bool]:
    """Where the address of a store is a plain http:// one, somebody has written that: it is allowed."""
    named = [options[name] for name in _ENDPOINTS if name in options]
    named = named or [os.environ.get(f"AWS_{name.upper()}") for name in _ENDPOINTS]
    return {"allow_http": True} if any(str(one).startswith("http://") for one in (url, *named)) else {}


def _keys_text(name: str) -> str:
    path = stores_file()
    return f"[{name}] of {path}" if path is not None and name in _tables() else "the environment's"


@lru_cache(maxsize=1)
def _tables() -> dict[str, dict[str, Any]]:
    """By store, from GEOCOMM_STORES."""
    path = stores_file()
    if path is None:
        return {}
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"GEOCOMM_STORES, {path}: {' '.join(str(error).split())}") from None
    wrong = [name for name, table in tables.items() if not isinstance(table, dict)]
    if wrong:
        raise BadInput(f"GEOCOMM_STORES, {path}: {wrong[0]} is no table; a store's keys stand in [NAME]")
    return tables
